"""Weights of examples: as so many rows, by every method and likelihood, however run."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayesrule as br
from bayesrule import curvature, likelihoods
from bayesrule.curvature import Here
from bayesrule.execution import Compiled, Stacked
from bayesrule.hmc.density import LogDensity
from bayesrule.likelihoods import Likelihood
from bayesrule.predicting.predict import as_tensor, elbo
from bayesrule.tensors import tree
from bayesrule.training.checkpoint import CheckpointError
from bayesrule.types import Info, State

WEIGHTS = torch.tensor([1, 0, 3, 2, 1, 2])
METHODS: list[Callable[..., br.Learner]] = [
    br.tagi, br.vogn, br.noisy_full, br.mean_field, br.map, br.adam, br.variational_laplace,
    br.laplace, br.ogn, br.ivon, br.noisy_kfac,
]  # fmt: skip


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def net(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))


def inputs() -> Tensor:
    return torch.randn(len(WEIGHTS), 3, generator=torch.Generator().manual_seed(1))


def numbers(columns: int = 2) -> Tensor:
    return torch.randn(len(WEIGHTS), columns, generator=torch.Generator().manual_seed(2))


def classes() -> Tensor:
    return torch.tensor([0, 1, 2, 1, 0, 2])


CASES: dict[str, tuple[Likelihood, int, Callable[[], Tensor]]] = {
    "gaussian": (br.GaussianLikelihood(noise=0.5), 2, numbers),
    "learned noise": (br.GaussianLikelihood(), 2, numbers),
    "heteroscedastic": (br.HeteroscedasticLikelihood(), 4, numbers),
    "categorical": (br.CategoricalLikelihood(), 3, classes),
    "bernoulli": (br.BernoulliLikelihood(), 2, lambda: (numbers() > 0).double()),
    "poisson": (br.PoissonLikelihood(), 2, lambda: numbers().abs().round()),
    "negative binomial": (br.NegativeBinomialLikelihood(), 2, lambda: numbers().abs().round()),
    "one-hot": (likelihoods.OneHotLikelihood(), 3, classes),
    "hierarchical": (likelihoods.HierarchicalLikelihood(3), 3, classes),
    "remax": (likelihoods.RemaxLikelihood(), 3, classes),
    "softmax": (likelihoods.SoftmaxLikelihood(), 3, classes),
}
CURVATURES = {
    "per example": curvature.PerExample(),
    "ggn": curvature.GGN(),
    "hessian": curvature.Hessian(),
    "second order": curvature.SecondOrder(exact=True),
}


def twins(case: str, method: Callable[..., br.Learner], **options: Any) -> tuple[Any, Any]:
    """A learner with a batch of weights, and one with the same rows repeated."""
    likelihood, outputs, targets = CASES[case]
    x, y, total = inputs(), targets(), int(WEIGHTS.sum())
    rows = torch.arange(len(y)).repeat_interleave(WEIGHTS)
    one = method(net(outputs), likelihood, num_data=len(y), **options)
    many = method(net(outputs), likelihood, num_data=total, **options)
    return (one, (x, br.weighted(y, WEIGHTS))), (many, (x[rows], y[rows]))


def close(a: Any, b: Any, rtol: float = 1e-9) -> None:
    first, second = dict(tree.leaves(a)), dict(tree.leaves(b))
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=rtol, atol=1e-9, msg=name)


@pytest.mark.parametrize("kind", CURVATURES)
@pytest.mark.parametrize("case", CASES)
def test_loss_gradient_and_curvature_are_those_of_repeated_rows(case: str, kind: str) -> None:
    found = []
    for learner, batch in twins(case, br.noisy_full):
        state = learner.init()
        problem = learner.problem(state, batch)
        structure = br.Diagonal() if kind == "second order" else br.Dense()
        belief = br.mean_field(learner.model, learner.likelihood, num_data=9).init().posterior
        here = Here(state.posterior.at_mean(), structure, belief)
        local = CURVATURES[kind].local(problem, here)
        assert local.curvature is not None
        found.append((local.loss, local.gradient, local.curvature, local.statistics.get("squares")))
    (loss, gradient, matrix, squares), (other, gradients, matrices, others) = found
    torch.testing.assert_close(loss, other)
    close(gradient, gradients)
    close(matrix, matrices)
    torch.testing.assert_close(squares, others)


CLOSED = [case for case in CASES if CASES[case][0].lacks("condition") is None]


@pytest.mark.parametrize("case", CLOSED)
def test_one_step_of_tagi_is_that_of_repeated_rows(case: str) -> None:
    (one, batch), (many, rows) = twins(case, br.tagi)
    state, info = one.step(one.init(), batch)
    other, expected = many.step(many.init(), rows)
    torch.testing.assert_close(info.loss, expected.loss)
    close(state.posterior, other.posterior)
    close(state.likelihood, other.likelihood)


def after(learner: br.Learner, batch: Any, steps: int = 3) -> tuple[State, Info]:
    state = learner.init(seed=1)
    for _ in range(steps):
        state, info = learner.step(state, batch)
    return learner.finish(state, [batch]), info


@pytest.mark.parametrize("case", ["gaussian", "categorical", "learned noise"])
def test_laplace_has_the_posterior_of_repeated_rows(case: str) -> None:
    both = twins(case, br.laplace, prior_precision=0.7, empirical_prior=False)
    (one, batch), (many, rows) = both
    found, expected = (a.finish(a.init(), [b]) for a, b in both)
    close(found.posterior, expected.posterior)
    assert elbo(one, found, batch) == pytest.approx(float(elbo(many, found, rows)), rel=1e-9)


def test_ridge_is_the_closed_form() -> None:
    x, y = inputs(), numbers(1)
    learner = br.ridge(
        nn.Linear(3, 1), br.GaussianLikelihood(noise=0.5), num_data=6, prior_precision=0.7
    )
    state, _ = learner.step(learner.init(), (x, br.weighted(y, WEIGHTS)))
    design = torch.cat([x, torch.ones(6, 1)], 1)
    precision = design.mT @ (design * WEIGHTS[:, None]) / 0.25 + 0.7 * torch.eye(4)
    expected = torch.linalg.solve(precision, design.mT @ (y[:, 0] * WEIGHTS) / 0.25)
    found = torch.cat([state.posterior.mean["weight"].flatten(), state.posterior.mean["bias"]])
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
@pytest.mark.parametrize("case", ["learned noise", "categorical"])
def test_weights_of_one_change_nothing(case: str, method: Callable[..., br.Learner]) -> None:
    likelihood, outputs, targets = CASES[case]
    x, y = inputs(), targets()
    learner = method(net(outputs), likelihood, num_data=6)
    found, info = after(learner, (x, br.weighted(y)))
    expected, before = after(learner, (x, y))
    torch.testing.assert_close(info.loss, before.loss)
    close(found.posterior, expected.posterior, 1e-7)
    close(found.likelihood, expected.likelihood, 1e-7)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
def test_rows_without_weight_say_nothing(method: Callable[..., br.Learner]) -> None:
    likelihood, outputs, _ = CASES["gaussian"]
    x, y, other = inputs(), numbers(), numbers()
    other[1] = torch.nan
    weight = WEIGHTS.double()
    learner = method(net(outputs), likelihood, num_data=6)
    found, _ = after(learner, (x, br.weighted(other, weight)))
    expected, _ = after(learner, (x, br.weighted(y, weight)))
    close(found.posterior, expected.posterior)
    missing, _ = after(learner, (x, br.weighted(other)))
    expected, _ = after(learner, (x, br.weighted(y, (WEIGHTS > -1).double() * (WEIGHTS != 0))))
    close(missing.posterior, expected.posterior)


@pytest.mark.parametrize("method", [br.vogn, br.tagi, br.laplace, br.mean_field])
def test_class_weights_and_ignored_classes_are_weights(method: Callable[..., br.Learner]) -> None:
    x, y = inputs(), classes()
    weighing = br.CategoricalLikelihood(class_weight=(0.5, 2.0, 3.0), ignore_index=-100)
    one = method(net(3), weighing, num_data=6)
    other = method(net(3), br.CategoricalLikelihood(), num_data=6)
    ignored = y.clone()
    ignored[4] = -100
    weight = torch.tensor([0.5, 2.0, 3.0])[y] * (ignored >= 0)
    found, _ = after(one, (x, ignored))
    expected, _ = after(other, (x, br.weighted(y, weight)))
    close(found.posterior, expected.posterior)
    twice, _ = after(one, (x, br.weighted(ignored, WEIGHTS)))
    expected, _ = after(other, (x, br.weighted(y, weight * WEIGHTS)))
    close(twice.posterior, expected.posterior)


STACKED: list[tuple[str, Callable[..., br.Learner]]] = [
    (case, method)
    for case in ("learned noise", "gaussian", "categorical")
    for method in (br.vogn, br.mean_field, br.tagi)
]


@pytest.mark.parametrize(
    ("case", "method"), [*STACKED, ("gaussian", br.noisy_kfac), ("learned noise", br.noisy_kfac)]
)
def test_stacked_nets_take_weights(case: str, method: Callable[..., br.Learner]) -> None:
    likelihood, outputs, targets = CASES[case]
    x, y = inputs(), targets()
    learner = method(net(outputs), likelihood, num_data=6)
    weights = torch.stack([WEIGHTS.double(), torch.linspace(0.1, 2.0, 6)])
    alone = [after(learner, (x, br.weighted(y, weight)), 3)[0] for weight in weights]
    stack = Stacked(learner, 2)
    state = stack.stack([learner.init(seed=1) for _ in weights])
    each = torch.stack([br.weighted(y, weight) for weight in weights])
    for _ in range(3):
        state, _ = stack.step(state, (x.expand(2, *x.shape), each))
    for found, expected in zip(stack.unstack(state), alone, strict=True):
        close(found.posterior, expected.posterior, 1e-7)
        close(found.likelihood, expected.likelihood, 1e-7)


def test_compiled_steps_take_weights() -> None:
    for case in ("learned noise", "categorical"):
        likelihood, outputs, targets = CASES[case]
        learner = br.tagi(net(outputs), likelihood, num_data=6)
        batch = inputs(), br.weighted(targets(), WEIGHTS)
        step, state = Compiled(learner, backend="eager").step, learner.init(seed=1)
        for _ in range(3):
            state, _ = step(state, batch)
        close(state.posterior, after(learner, batch)[0].posterior)


def test_fit_takes_weights_from_tensors_datasets_and_loaders(tmp_path: Any) -> None:
    x, y = inputs(), br.weighted(classes(), WEIGHTS)
    learner = br.ivon(net(3), br.CategoricalLikelihood(), num_data=6)
    run = br.fit(learner, (x, y), epochs=2, batch_size=4, out=tmp_path)
    same = br.fit(learner, TensorDataset(x, y), epochs=2, batch_size=4)
    close(run.state.posterior, same.state.posterior)
    loaded = br.fit(learner, DataLoader(TensorDataset(x, y), 6), epochs=2)
    plain = br.fit(learner, (x, classes()), epochs=2, batch_size=4)
    assert loaded.history[0]["loss"] != plain.history[0]["loss"]
    with pytest.raises(CheckpointError, match="training targets"):
        br.fit(learner, (x, br.weighted(classes())), epochs=2, batch_size=4, out=tmp_path)
    many = br.fit_many([learner, learner], [(x, y), (x, y)], epochs=2, batch_size=4, seeds=[0, 1])
    close(many[0].state.posterior, run.state.posterior, 1e-7)


def test_targets_follow_the_weights_to_another_device() -> None:
    for y in (br.weighted(classes(), WEIGHTS), br.uncertain(numbers(), 1.0)):
        moved = as_tensor(y, torch.device("meta"))
        assert type(moved) is type(y)
        assert moved.device.type == "meta"
    assert br.weighted(classes(), WEIGHTS).to("meta").weight.device.type == "meta"


def test_weights_go_with_uncertain_targets() -> None:
    x, y = inputs(), numbers()
    learner = br.vogn(net(2), br.GaussianLikelihood(noise=0.5), num_data=6)
    more = br.vogn(net(2), br.GaussianLikelihood(noise=1.0), num_data=6)
    found, _ = after(learner, (x, br.weighted(br.uncertain(y, 0.75), WEIGHTS)))
    expected, _ = after(more, (x, br.weighted(y, WEIGHTS)))
    close(found.posterior, expected.posterior)


@pytest.mark.parametrize("case", ["gaussian", "learned noise", "categorical", "poisson"])
def test_samplers_see_the_density_of_repeated_rows(case: str) -> None:
    likelihood, outputs, targets = CASES[case]
    x, y, rows = inputs(), targets(), torch.arange(6).repeat_interleave(WEIGHTS)
    found = LogDensity(net(outputs), likelihood, (x, br.weighted(y, WEIGHTS)), temperature=0.7)
    expected = LogDensity(net(outputs), likelihood, (x[rows], y[rows]), temperature=0.7)
    theta = torch.randn(found.num, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found(theta), expected(theta), rtol=1e-10, atol=1e-10)


def test_samplers_see_weights_of_classes() -> None:
    x, y = inputs(), classes()
    weighing = br.CategoricalLikelihood(class_weight=(0.5, 2.0, 3.0))
    weighted = br.weighted(y, torch.tensor([0.5, 2.0, 3.0])[y])
    found = LogDensity(net(3), weighing, (x, y))
    expected = LogDensity(net(3), br.CategoricalLikelihood(), (x, weighted))
    theta = torch.randn(found.num, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found(theta), expected(theta))


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        ([1.0, 2.0], r"one weight for each example, \(6,\), got \(2,\)"),
        ([1.0, 1.0, -1.0, 1.0, 1.0, 1.0], "from 0 up, got -1.0 to 1.0"),
        ([1.0, 1.0, torch.inf, 1.0, 1.0, 1.0], "finite numbers from 0 up"),
    ],
)
def test_unfit_weights_are_refused(weight: list[float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        br.weighted(classes(), weight)


def test_what_would_lose_the_weights_is_refused() -> None:
    y = br.weighted(classes(), WEIGHTS)
    with pytest.raises(TypeError, match="'sum' of weighted targets would lose their weights"):
        y.sum()
    with pytest.raises(TypeError, match="have weights already"):
        br.weighted(y, WEIGHTS)
    with pytest.raises(TypeError, match="Some targets have weights and others do not"):
        torch.cat([y, classes()])
    with pytest.raises(ValueError, match="Row 2 of the targets is NaN in some of its columns"):
        br.weighted(
            numbers().index_put((torch.tensor(2), torch.tensor(0)), torch.tensor(torch.nan))
        )


def test_unfit_class_weights_are_refused() -> None:
    for weights in ((), (1.0, -1.0), (0.0, 0.0), (1.0, torch.nan)):
        with pytest.raises(ValueError, match="finite number from 0 up for each class"):
            br.CategoricalLikelihood(class_weight=weights)
    with pytest.raises(TypeError, match=r"ignore_index is a whole number, got 0\.5"):
        br.CategoricalLikelihood(ignore_index=0.5)  # type: ignore[arg-type]
    learner = br.vogn(net(3), br.CategoricalLikelihood(class_weight=(1.0, 2.0)), num_data=6)
    with pytest.raises(ValueError, match="hold class 2, but class_weight has 2 numbers"):
        learner.step(learner.init(), (inputs(), classes()))
    with pytest.raises(ValueError, match="class_weight has 2 numbers, but the network has 3"):
        learner.step(learner.init(), (inputs(), classes().clamp_max(1)))
