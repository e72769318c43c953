"""Corrected factors (EK-FAC): scales are averaged in bases that are kept for a while."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from curvature.brute_force import problem_of
from torch import Tensor, nn

import bayesrule as br
from bayesrule.curvature import Recording
from bayesrule.matrices import Kronecker
from bayesrule.matrices.kronecker import KroneckerMatrix
from bayesrule.matrices.kronecker_layer import CorrectedLayer
from bayesrule.posteriors import Point, Rotated
from bayesrule.types import Local, Params, State

RATE = 0.3


@pytest.fixture(autouse=True)
def _exact(double_precision: None) -> None:
    """Double precision and a fixed seed."""


def _learner(stats_every: int, inverse_every: int, **options: object) -> br.Learner:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    every = {"stats_every": stats_every, "inverse_every": inverse_every}
    chosen = {"rate": RATE, "num_data": 6, "temperature": 1.0, **every, **options}
    return br.noisy_ekfac(net, br.GaussianLikelihood(noise=0.5), **chosen)  # type: ignore[arg-type]


def _batch() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 3), torch.randn(6, 2)


def _belief(state: State) -> Rotated:
    assert isinstance(state.posterior, Rotated)
    return state.posterior


def _layers(state: State) -> dict[str, CorrectedLayer]:
    curvature = state.rule["curvature"]
    assert isinstance(curvature, KroneckerMatrix)
    return {k: v for k, v in curvature.layers.items() if isinstance(v, CorrectedLayer)}


@pytest.fixture
def decompositions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each call of torch.linalg.eigh."""
    found: list[int] = []
    eigh: Callable[[Tensor], Tensor] = torch.linalg.eigh

    def counted(matrix: Tensor) -> Tensor:
        found.append(len(matrix))
        return eigh(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", counted)
    return found


def test_an_average_that_has_not_moved_has_its_bases(decompositions: list[int]) -> None:
    learner = _learner(6, 2)
    state, _ = learner.step(learner.init(), _batch())
    before = len(decompositions)
    for _ in range(5):
        state, _ = learner.step(state, _batch())
    assert len(decompositions) == before


@pytest.mark.parametrize("draws", [1, 3])
def test_bases_are_found_when_the_belief_follows_and_not_in_between(
    decompositions: list[int], draws: int
) -> None:
    learner = _learner(1, 4, draws=draws)
    state, calls = learner.init(), []
    for _ in range(9):
        before = len(decompositions)
        state, _ = learner.step(state, _batch())
        calls.append(len(decompositions) - before)
    assert [count > 0 for count in calls] == [step % 4 == 0 for step in range(9)]


def _rows_at(learner: br.Learner, weights: Params, batch: tuple[Tensor, Tensor]) -> Params:
    """The rows of the exact Fisher at the given weights, {name: (V, n, *shape)}."""
    problem = problem_of(learner.model, *batch, learner.likelihood)
    recording = Recording(problem, Point(weights))
    vectors = problem.fisher_vectors(recording.outputs.detach())
    return recording.backward(vectors, gradient=False)[0].per_example()


def test_scales_are_averages_of_squares_in_the_kept_bases(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = _learner(1, 3, curvature=br.GGN())
    drawn, local = [], learner.local

    def noted(*args: Any, **options: Any) -> Local:
        found = local(*args, **options)
        assert found.average is not None
        drawn.append(found.average)
        return found

    monkeypatch.setattr(learner, "local", noted)
    state, _ = learner.step(learner.init(), _batch())
    for _ in range(2):
        batch, start = _batch(), state
        state, _ = learner.step(start, batch)
        rows = _rows_at(learner, _belief(start).precision.from_bases(drawn[-1]), batch)
        for name, before in _layers(start).items():
            after = _layers(state)[name]
            table = before.place.join(rows).flatten(end_dim=1)
            squares = (before.left.mT @ table @ before.right).square().sum(0)
            torch.testing.assert_close(after.left, before.left, rtol=0.0, atol=0.0)
            want = (1.0 - RATE) * before.scales + RATE * squares
            torch.testing.assert_close(after.scales, want, rtol=1e-9, atol=1e-10)


def _is_diagonal(basis: Tensor, factor: Tensor) -> bool:
    seen = basis.mT @ factor @ basis
    off = seen - torch.diag(seen.diagonal())
    return float(off.abs().max()) < 1e-9 * float(seen.abs().max())


@pytest.mark.parametrize("stats_every", [1, 3])
def test_the_belief_has_the_bases_of_the_averages_when_it_follows(stats_every: int) -> None:
    """With 3, the fifth step has no statistics of its own, but those of the fourth to follow."""
    learner = _learner(stats_every, 4)
    state, fresh = learner.init(), []
    for _ in range(5):
        state, _ = learner.step(state, _batch())
        layers = _layers(state).values()
        fresh.append(all(_is_diagonal(x.left, x.factors.output) for x in layers))
    first_departure = 1 if stats_every == 1 else 3
    assert fresh == [step < first_departure or step == 4 for step in range(5)]
    kept = _belief(state).precision.bases
    for name, layer in _layers(state).items():
        torch.testing.assert_close(kept[name].left, layer.left)


def test_new_bases_keep_the_trace() -> None:
    learner = _learner(1, 10)
    state = learner.init()
    for _ in range(3):
        state, _ = learner.step(state, _batch())
    for layer in _layers(state).values():
        new = layer.refreshed()
        torch.testing.assert_close(new.scales.sum(), layer.scales.sum())
        assert not torch.equal(new.left, layer.left)


def test_other_structures_have_no_bases_to_keep() -> None:
    learner = _learner(1, 10)
    precision = _belief(learner.init()).precision
    for structure in (Kronecker(), Kronecker(exact=True), br.Diagonal()):
        assert structure.in_bases_of(precision) is structure
    assert Kronecker(corrected=True).in_bases_of(precision).bases is precision  # type: ignore[attr-defined]
