"""The learner: what it refuses when it is built, and how it scales to the data set."""

import dataclasses
from typing import Any

import pytest
import torch
from learning import Given, Spy, small_batch, small_learner, small_model
from torch import Tensor, nn

import bayesrule as br
from bayesrule import (
    GGN,
    AtMean,
    CategoricalLikelihood,
    Dense,
    Diagonal,
    Draws,
    Fisher,
    GaussianFamily,
    GaussianLikelihood,
    Hessian,
    Learner,
    Natural,
    PerExample,
    PerGroup,
    PointEstimate,
    Price,
)
from bayesrule.curvature import NoCurvature, SquaredGradient
from bayesrule.tensors import tree
from bayesrule.types import Batch, Derivatives, Info, State

pytestmark = pytest.mark.usefixtures("double_precision")


def _seen(learner: Learner, batch: tuple[Tensor, Tensor]) -> Derivatives:
    state, _ = learner.step(learner.init(), batch)
    found = state.rule["seen"]
    assert isinstance(found, Derivatives)
    return found


# What is refused when the learner is built.

REFUSED: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("price", {"curvature": Price(), "rule": Natural(retract=True)}, ValueError, r"use Draws\(1\)"),
    ("none", {"curvature": NoCurvature()}, ValueError, "gives nothing to move the precision with"),
    ("num_data", {"num_data": 0}, ValueError, "num_data, the size of the data set, must be posi"),
    ("temperature", {"temperature": -1.0}, ValueError, "temperature must be positive, got -1.0"),
    (
        "infinite",
        {"temperature": float("inf")},
        ValueError,
        "temperature must be positive, got inf",
    ),
    (
        "prior",
        {"prior_precision": -2.0},
        ValueError,
        "prior_precision must not be negative, got -2",
    ),
    ("dense", {"posterior": GaussianFamily(Dense(10))}, ValueError, r"31 parameters.*Dense\(limit"),
    ("final class", {"final_curvature": GGN}, TypeError, r"got the class: write GGN\(\)"),
    ("final price", {"final_curvature": Price()}, ValueError, r"use GGN\(\).*got Price\(\)"),
    ("final none", {"final_curvature": NoCurvature()}, ValueError, r"got NoCurvature\(\)"),
    (
        "final square",
        {"final_curvature": SquaredGradient()},
        ValueError,
        r"got SquaredGradient\(\)",
    ),
    (
        "group",
        {"posterior": PerGroup({"3.weight": GaussianFamily(), "*": PointEstimate()})},
        ValueError,
        r"No parameter is named '3.weight'. There are: 0.weight, 0.bias",
    ),
]


@pytest.mark.parametrize(("name", "change", "kind", "text"), REFUSED, ids=[r[0] for r in REFUSED])
def test_what_does_not_fit_is_refused(
    name: str, change: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        small_learner(**change)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("likelihood", CategoricalLikelihood),
        ("posterior", GaussianFamily),
        ("expectation", AtMean),
        ("curvature", PerExample),
        ("rule", Natural),
    ],
)
def test_a_class_is_refused_where_an_object_belongs(name: str, part: type) -> None:
    with pytest.raises(TypeError, match=rf"{name} takes an object.*write {part.__name__}\(\)"):
        small_learner(None, **{name: part})
    with pytest.raises(TypeError, match=rf"{name} takes a .* such as .*got 'nonsense'"):
        small_learner(None, **{name: "nonsense"})


def test_a_structure_class_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a structure such as Diagonal\(\)"):
        GaussianFamily(Diagonal)  # type: ignore[arg-type]


def test_a_model_that_cannot_learn_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module, got dict"):
        small_learner({"weight": torch.zeros(2)})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no trainable parameters"):
        small_learner(nn.ReLU())


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [((0, 3), 0, "The batch is empty"), ((5, 3), 4, "The batch has 5 inputs but 4 targets")],
)
def test_bad_batches_are_refused(x: tuple[int, ...], y: int, message: str) -> None:
    learner = small_learner()
    with pytest.raises(ValueError, match=message):
        learner.step(learner.init(), (torch.zeros(x), torch.zeros(y, dtype=torch.long)))


# How sums over a batch become estimates for the data set.

EVERY = [NoCurvature(), SquaredGradient(), PerExample(), Fisher(), GGN(), Hessian(), Price()]


@pytest.mark.parametrize("curvature", EVERY, ids=lambda c: type(c).__name__)
def test_sums_are_scaled_to_the_data_and_the_temperature(curvature: br.curvature.Curvature) -> None:
    model, batch = small_model(), small_batch(6)
    offsets = ({k: 0.1 * torch.randn_like(v) for k, v in model.named_parameters()},)
    parts: dict[str, Any] = {"expectation": Given(offsets), "curvature": curvature, "rule": Spy()}
    family = {"posterior": GaussianFamily(Diagonal(), 0.0)}
    plain = _seen(small_learner(model, num_data=6, temperature=1.0, **parts, **family), batch)
    scaled = _seen(small_learner(model, num_data=24, temperature=0.5, **parts, **family), batch)
    assert scaled.weight == 48.0
    torch.testing.assert_close(scaled.loss, 4.0 * plain.loss)
    for name, value in plain.gradient.items():
        torch.testing.assert_close(scaled.gradient[name], 8.0 * value)
    if plain.curvature is None:
        assert scaled.curvature is None
        return
    assert scaled.curvature is not None
    for name, value in plain.curvature.diagonal().items():
        torch.testing.assert_close(scaled.curvature.diagonal()[name], 8.0 * value)


def test_squared_gradient_is_taken_of_the_mean() -> None:
    learner = small_learner(curvature=SquaredGradient(), rule=Spy(), temperature=2.0)
    seen = _seen(learner, small_batch(6))
    assert seen.curvature is not None
    for name, value in seen.gradient.items():
        mean = value / 12.0
        torch.testing.assert_close(seen.curvature.diagonal()[name], 12.0 * mean.square())


@pytest.mark.parametrize("curvature", EVERY[2:], ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("structure", [Diagonal(), Dense()], ids=repr)
def test_several_points_are_averaged(
    curvature: br.curvature.Curvature, structure: br.matrices.Structure
) -> None:
    # Sampled targets differ from point to point, so the Fisher is compared in its limit, the GGN.
    curvature = GGN() if isinstance(curvature, Fisher) else curvature
    model, batch = small_model(), small_batch()
    draws = [{k: 0.3 * torch.randn_like(v) for k, v in model.named_parameters()} for _ in range(3)]
    parts: dict[str, Any] = {"curvature": curvature, "rule": Spy()}
    parts["posterior"] = GaussianFamily(structure)
    together = _seen(small_learner(model, expectation=Given(tuple(draws)), **parts), batch)
    alone = [_seen(small_learner(model, expectation=Given((d,)), **parts), batch) for d in draws]
    torch.testing.assert_close(together.loss, torch.stack([a.loss for a in alone]).mean())
    for name, value in together.gradient.items():
        torch.testing.assert_close(value, torch.stack([a.gradient[name] for a in alone]).mean(0))
    alike = [dict(tree.leaves(a.curvature)) for a in alone]
    for place, got in tree.leaves(together.curvature):
        want = torch.stack([torch.as_tensor(one[place]) for one in alike]).mean(0)
        torch.testing.assert_close(torch.as_tensor(got), want)


def test_antithetic_draws_are_exact_for_the_gradient_of_a_quadratic() -> None:
    model = nn.Linear(3, 1)
    batch = torch.randn(6, 3), torch.randn(6, 1)
    parts: dict[str, Any] = {"likelihood": GaussianLikelihood(0.5), "rule": Spy()}
    parts["curvature"] = NoCurvature()
    at_mean = _seen(small_learner(model, expectation=AtMean(), **parts), batch)
    pair = _seen(small_learner(model, expectation=Draws(2, antithetic=True), **parts), batch)
    single = _seen(small_learner(model, expectation=Draws(2), **parts), batch)
    torch.testing.assert_close(pair.gradient, at_mean.gradient, rtol=1e-10, atol=1e-10)
    assert not torch.allclose(single.gradient["weight"], at_mean.gradient["weight"])


def test_different_batch_sizes_stand_for_the_same_data() -> None:
    x, y = small_batch(4)
    learner = small_learner(rule=Spy())
    once, twice = _seen(learner, (x, y)), _seen(learner, (x.repeat(2, 1), y.repeat(2)))
    torch.testing.assert_close(once.loss, twice.loss)
    torch.testing.assert_close(once.gradient, twice.gradient)
    torch.testing.assert_close(once.curvature.diagonal(), twice.curvature.diagonal())  # type: ignore[union-attr]


def test_info_is_about_the_data_set() -> None:
    options = {"temperature": 0.5, "prior_precision": 2.0, "expectation": Draws(2)}
    learner, batch = small_learner(**options), small_batch()
    state, info = learner.step(learner.init(), batch)
    torch.testing.assert_close(info.kl, state.posterior.kl(2.0))
    # The loss of the step is that of the belief before it; the bound is of the belief after it.
    _, later = learner.step(state, batch)
    assert later.loss != info.loss
    torch.testing.assert_close(info.elbo, -later.loss - 0.5 * info.kl)


@pytest.mark.parametrize("name", ["ogn", "vogn", "noisy_kfac", "mean_field", "tagi"])
def test_learned_noise_does_not_depend_on_the_temperature(name: str) -> None:
    """Of a first step, before the temperature has a say in the weights."""
    x, y = torch.randn(6, 3), torch.randn(6, 1)
    model, found = nn.Linear(3, 1), []
    for temperature in (1.0, 0.05, 7.0):
        given: dict[str, Any] = {"num_data": 24, "temperature": temperature}
        learner = br.methods.METHODS[name](model, GaussianLikelihood(), **given)
        state = learner.init()
        # The same spread: a first belief may be as wide as its temperature is high.
        belief = br.methods.METHODS[name](model, GaussianLikelihood(), num_data=24).init().posterior
        state, _ = _begun(learner, dataclasses.replace(state, posterior=belief), (x, y))
        found.append(state.likelihood)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])
    if name != "tagi":  # It counts the targets as they come.
        assert float(found[0]["a"].max()) == 6.0 + 0.5 * 24


def _begun(learner: Learner, state: State, batch: Batch) -> tuple[State, Info]:
    """A first step without a first look."""
    return learner.advance(state, learner.problem(state, batch))


def test_learned_noise_moves_towards_its_conjugate_answer() -> None:
    x, y = torch.randn(6, 3), torch.randn(6, 1)
    model = nn.Linear(3, 1)
    likelihood = GaussianLikelihood(averaging=0.25)
    learner = small_learner(model, likelihood=likelihood, rule=Spy(), temperature=2.0)
    state = learner.init()
    # Noise counts every datum once, whatever the temperature.
    squares = 24 / 6 * (model(x) - y).square().sum().detach()
    first, _ = learner.step(state, (x, y))
    torch.testing.assert_close(first.likelihood["a"], torch.tensor(6.0 + 0.5 * 24))
    torch.testing.assert_close(first.likelihood["b"], (6.0 + 0.5 * squares).reshape(1))
    torch.testing.assert_close(learner.step(first, (x, y))[0].likelihood, first.likelihood)
