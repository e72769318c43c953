"""Black boxes minimised: known functions, held against random search."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br


def bowl(x: Tensor) -> float:
    """Least, 0, at (0.3, −0.4)."""
    return float((x - torch.tensor([0.3, -0.4])).square().sum())


def himmelblau(x: Tensor) -> float:
    """Four places of the least value 0, and hills of several hundred."""
    a, b = x.tolist()
    return (a**2 + b - 11) ** 2 + (a + b**2 - 7) ** 2


def at_random(function: object, bounds: list[tuple[float, float]], num: int, seed: int) -> float:
    low, high = torch.tensor(bounds).T
    draws = torch.rand(num, len(bounds), generator=torch.Generator().manual_seed(seed))
    return min(function(low + (high - low) * u) for u in draws)  # type: ignore[operator]


@pytest.mark.parametrize(("online", "evaluations"), [(False, 25), (True, 40)])
def test_a_bowl(online: bool, evaluations: int) -> None:
    bounds = [(-1.0, 1.0)] * 2
    found = br.explore.minimise(bowl, bounds, evaluations=evaluations, online=online)
    assert found.value < 0.005
    assert found.value < min(at_random(bowl, bounds, evaluations, seed) for seed in range(3))


def test_himmelblau_in_fifty_evaluations() -> None:
    bounds = [(-5.0, 5.0)] * 2
    found = br.explore.minimise(himmelblau, bounds)
    assert found.value < 0.5
    assert found.value < min(at_random(himmelblau, bounds, 50, seed) for seed in range(4))


def test_everything_that_was_asked_is_told() -> None:
    asked: list[Tensor] = []

    def spy(x: Tensor) -> float:
        asked.append(x.clone())
        return float(x.sum())

    found = br.explore.minimise(spy, [(0, 2), (-3, -1), (5, 6)], evaluations=8, first=5)
    torch.testing.assert_close(found.points, torch.stack(asked))
    torch.testing.assert_close(found.values, found.points.sum(1))
    low, high = torch.tensor([0.0, -3.0, 5.0]), torch.tensor([2.0, -1.0, 6.0])
    assert bool(((found.points >= low) & (found.points <= high)).all())
    torch.testing.assert_close(found.best, found.values.cummin(0).values)
    torch.testing.assert_close(found.x, found.points[found.values.argmin()])
    assert found.value == float(found.values.min())


def test_the_seed_tells_all() -> None:
    one, two, other = (
        br.explore.minimise(bowl, [(-1, 1)] * 2, evaluations=12, seed=seed) for seed in (1, 1, 2)
    )
    torch.testing.assert_close(one.points, two.points, rtol=0.0, atol=0.0)
    assert not torch.allclose(one.points, other.points)


def test_no_point_is_asked_twice() -> None:
    found = br.explore.minimise(lambda x: 0.0, [(-1, 1)], evaluations=15, first=5)
    gaps = torch.cdist(found.points, found.points) + torch.eye(15)
    assert float(gaps.min()) > 1e-3
    assert found.value == 0.0


def test_a_learner_of_ones_own() -> None:
    model = nn.Sequential(nn.Linear(2, 10), nn.Tanh(), nn.Linear(10, 1))
    learner = br.tagi(model, br.GaussianLikelihood(noise=0.1), num_data=12)
    found = br.explore.minimise(bowl, [(-1, 1)] * 2, evaluations=12, learner=learner)
    assert len(found.points) == 12


def test_what_cannot_be_minimised_is_refused() -> None:
    with pytest.raises(ValueError, match="pairs"):
        br.explore.minimise(bowl, [(1, -1), (0, 1)])
    with pytest.raises(ValueError, match="first"):
        br.explore.minimise(bowl, [(-1, 1)], evaluations=5)
    with pytest.raises(ValueError, match="one finite number"):
        br.explore.minimise(lambda x: math.nan, [(-1, 1)])
    with pytest.raises(ValueError, match="one finite number"):
        br.explore.minimise(lambda x: x, [(-1, 1)] * 2)  # type: ignore[arg-type, return-value]
