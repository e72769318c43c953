"""Laplace against the generalised Gauss-Newton matrix computed by brute force."""

from typing import Any

import pytest
import torch
from curvature.brute_force import flat, ggn, problem_of
from learning import equal_trees, small_batch, small_model
from torch import Tensor, nn

import bayesrule as br
from bayesrule import CategoricalLikelihood, Dense, Diagonal
from bayesrule.curvature import Problem
from bayesrule.matrices import DenseMatrix, Isotropic, Structure
from bayesrule.posteriors import Gaussian, Product
from bayesrule.types import Params, State

PRIOR, NUM_DATA = 0.6, 24


pytestmark = pytest.mark.usefixtures("double_precision")


def _brute_ggn(model: nn.Module, mean: Params, x: Tensor) -> Tensor:
    """`Σ Jᵀ (diag p − p pᵀ) J` at the given weights, (P, P)."""
    model.load_state_dict(mean)
    problem = problem_of(model, x, torch.zeros(len(x), dtype=torch.long), CategoricalLikelihood())
    p = _probs(problem)
    return ggn(problem, torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1))


def _probs(problem: Problem) -> Tensor:
    return problem.forward(problem.network.params()).softmax(-1)


def _trained(model: nn.Module, **options: Any) -> tuple[br.Learner, State]:
    given = {"num_data": NUM_DATA, "prior_precision": PRIOR, "temperature": 1.0} | options
    learner = br.laplace(model, CategoricalLikelihood(), **given)
    state = learner.init()
    for _ in range(5):
        state, _ = learner.step(state, small_batch())
    return learner, state


def _precision(state: State) -> br.matrices.Matrix:
    assert isinstance(state.posterior, Gaussian | Product)
    return state.posterior.precision


@pytest.mark.parametrize("structure", [Isotropic(), Diagonal(), Dense()], ids=repr)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_final_precision_is_the_ggn_at_the_mean(
    structure: Structure, temperature: float
) -> None:
    model = small_model()
    learner, state = _trained(model, structure=structure, temperature=temperature)
    x, y = small_batch(NUM_DATA)
    done = learner.finish(state, [(x[:10], y[:10]), (x[10:], y[10:])])
    want = _brute_ggn(model, state.posterior.mean, x) / temperature + PRIOR * torch.eye(31)
    got = _precision(done)
    kept = structure.project(want, state.posterior.mean)
    torch.testing.assert_close(flat(got.diagonal()), flat(kept.diagonal()))
    if isinstance(got, DenseMatrix):
        torch.testing.assert_close(got.values, want, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(done.posterior.mean, state.posterior.mean, rtol=0.0, atol=0.0)


@pytest.mark.parametrize(
    "options", [{"last_layer": True}, {"last_layer": True, "structure": Diagonal()}], ids=repr
)
def test_the_last_layer_has_its_part_of_the_ggn(options: dict[str, Any]) -> None:
    model = small_model()
    learner, state = _trained(model, **options)
    x, y = small_batch(NUM_DATA)
    got = _precision(learner.finish(state, [(x, y)]))
    whole = _brute_ggn(model, state.posterior.mean, x)
    want = whole[-15:, -15:] + PRIOR * torch.eye(15)
    assert tuple(got.diagonal()) == ("2.weight", "2.bias")
    last = got.only(("2.weight", "2.bias"))
    torch.testing.assert_close(flat(got.diagonal()), want.diagonal())
    assert isinstance(last, DenseMatrix) == ("structure" not in options)
    if isinstance(last, DenseMatrix):
        torch.testing.assert_close(last.values, want, rtol=1e-10, atol=1e-10)
    variance = learner.finish(state, [(x, y)]).posterior.variance()
    assert variance["0.weight"].abs().max() == 0.0
    assert variance["2.weight"].min() > 0.0


def test_few_weights_have_a_full_covariance_and_of_many_the_last_layer() -> None:
    few, many = (
        br.laplace(net, CategoricalLikelihood(), num_data=NUM_DATA)
        for net in (small_model(), nn.Sequential(nn.Linear(3, 300), nn.Tanh(), nn.Linear(300, 3)))
    )
    assert isinstance(_precision(few.init()), DenseMatrix)
    assert tuple(_precision(many.init()).diagonal()) == ("2.weight", "2.bias")
    assert few.empirical_prior
    given = br.laplace(small_model(), CategoricalLikelihood(), num_data=9, prior_precision=1.0)
    assert not given.empirical_prior


def test_part_of_the_data_stands_for_all_of_it() -> None:
    model = small_model()
    learner, state = _trained(model, structure=Diagonal())
    x, y = small_batch(8)
    got = _precision(learner.finish(state, [(x, y)]))
    want = 3.0 * _brute_ggn(model, state.posterior.mean, x).diagonal() + PRIOR
    torch.testing.assert_close(flat(got.diagonal()), want)


def test_the_curvature_may_be_chosen() -> None:
    model = small_model()
    learner, state = _trained(model, structure=Diagonal(), curvature=br.PerExample())
    x, y = small_batch(NUM_DATA)
    got = _precision(learner.finish(state, [(x, y)]))
    model.load_state_dict(state.posterior.mean)
    squares = torch.zeros(31)
    for i in range(NUM_DATA):
        loss = nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        rows = torch.autograd.grad(loss, list(model.parameters()))
        squares += torch.cat([row.flatten() for row in rows]).square()
    torch.testing.assert_close(flat(got.diagonal()), squares + PRIOR)


def test_the_mean_before_the_end_is_the_map_of_adam() -> None:
    torch.manual_seed(1)
    model = small_model()
    options: dict[str, Any] = {"num_data": NUM_DATA, "prior_precision": PRIOR}
    one = br.laplace(model, CategoricalLikelihood(), **options)
    two = br.map(model, CategoricalLikelihood(), **options)
    first, second = one.init(), two.init()
    for _ in range(3):
        batch = small_batch()
        first, second = one.step(first, batch)[0], two.step(second, batch)[0]
    assert equal_trees(first.posterior.mean, second.posterior.mean)


def test_batch_norm_is_looked_at_in_evaluation_mode() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))
    learner, state = _trained(model, structure=Diagonal())
    x, y = small_batch(NUM_DATA)
    done = learner.finish(state, [(x[:1], y[:1]), (x[1:], y[1:])])
    assert equal_trees(done.buffers, state.buffers)
    model.load_state_dict({**state.posterior.mean, **state.buffers})
    got = flat(_precision(done).diagonal())
    whole = _brute_ggn(model, {**state.posterior.mean, **state.buffers}, x)
    torch.testing.assert_close(got, whole.diagonal() + PRIOR)


def test_finish_needs_data_and_leaves_other_methods_alone() -> None:
    learner, state = _trained(small_model())
    with pytest.raises(ValueError, match="no batches to take the curvature of"):
        learner.finish(state, [])
    other = br.vogn(small_model(), CategoricalLikelihood(), num_data=NUM_DATA)
    start = other.init()
    assert other.finish(start, [small_batch()]) is start


def test_online_laplace_averages_the_ggn_on_the_way() -> None:
    model = small_model()
    learner = br.laplace(
        model,
        CategoricalLikelihood(),
        num_data=NUM_DATA,
        prior_precision=PRIOR,
        temperature=1.0,
        online=True,
        structure=Dense(),
        learning_rate=0.2,
    )
    state = learner.init()
    average = NUM_DATA * torch.eye(31)
    for _ in range(4):
        x, y = small_batch(6)
        gap = 4.0 * _brute_ggn(model, state.posterior.mean, x) - average
        average = average + 0.01 * gap
        loss = 4.0 * nn.functional.cross_entropy(model(x), y, reduction="sum")
        slope = torch.cat(
            [g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]
        )
        mean = flat(state.posterior.mean)
        precision = average + PRIOR * torch.eye(31)
        want = mean - 0.2 * torch.linalg.solve(precision, slope + PRIOR * mean)
        state, _ = learner.step(state, (x, y))
        got = _precision(state)
        assert isinstance(got, DenseMatrix)
        torch.testing.assert_close(got.values, precision, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(flat(state.posterior.mean), want, rtol=1e-10, atol=1e-10)
    assert learner.finish(state, []) is state


def test_online_laplace_moves_every_layer() -> None:
    model = small_model()
    learner, state = _trained(model, online=True)
    for name, value in model.named_parameters():
        assert not torch.equal(state.posterior.mean[name], value), name
    with pytest.raises(ValueError, match=r"leave all others where they start; use last_layer=Fa"):
        br.laplace(model, CategoricalLikelihood(), num_data=NUM_DATA, online=True, last_layer=True)
    assert learner.final_curvature is None
