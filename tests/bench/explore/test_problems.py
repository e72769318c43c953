"""Bandit problems are those that were published: rewards, regrets, randomness by seed."""

from __future__ import annotations

import pytest
import torch
from data_places import real_data

from benchmarks.explore import problems

__all__ = ["real_data"]


@pytest.mark.parametrize("delta", [0.5, 0.9, 0.99])
def test_the_wheel_pays_by_radius_and_quadrant(delta: float) -> None:
    found = problems.make(f"wheel-{delta}", seed=1, rounds=20_000)
    x, y, constant = found.contexts.T
    outside = (x.square() + y.square()).sqrt() > delta
    assert (constant == 1).all()
    assert abs(float(outside.float().mean()) - (1 - delta**2)) < 0.015
    means = 50 * found.means
    torch.testing.assert_close(
        means[~outside], torch.tensor([1.2, 1, 1, 1, 1]).expand(int((~outside).sum()), 5)
    )
    best = means[outside].argmax(1)
    assert torch.equal(means[outside].amax(1), torch.full((len(best),), 50.0))
    quadrants = {
        (float(a > 0), float(b > 0), int(k))
        for a, b, k in zip(x[outside], y[outside], best, strict=True)
    }
    assert len(quadrants) == 4
    assert {k for *_, k in quadrants} == {1, 2, 3, 4}
    error = 50 * (found.rewards - found.means)
    assert abs(float(error.std()) - 0.01) < 1e-3


def test_chance_has_the_regret_of_random_actions() -> None:
    found = problems.make("wheel-0.5", seed=0, rounds=20_000)
    actions = torch.randint(5, (20_000, 1), generator=torch.Generator().manual_seed(0))
    drawn = float(found.regrets.gather(1, actions).sum())
    assert abs(drawn / found.regret_by_chance - 1) < 0.03


def test_problems_follow_from_their_seed() -> None:
    one, again, other = (problems.make("wheel-0.9", seed=s, rounds=50) for s in (1, 1, 2))
    assert torch.equal(one.rewards, again.rewards)
    assert not torch.equal(one.contexts, other.contexts)


@pytest.mark.data
@pytest.mark.usefixtures("real_data")
@pytest.mark.parametrize(("name", "actions"), [("mushroom", 2), ("statlog", 7), ("adult", 14)])
def test_data_sets_are_bandits(name: str, actions: int) -> None:
    found = problems.make(name, seed=3)
    assert found.means.shape == found.rewards.shape == (2000, actions)
    assert found.contexts.isfinite().all()
    assert (found.regrets.amin(1) == 0).all()
    if name == "mushroom":
        assert sorted(set((35 * found.rewards[:, 1]).round().tolist())) == [-35, 5]
        assert sorted(set((35 * found.means[:, 1]).round().tolist())) == [-15, 5]
    else:
        assert torch.equal(found.means.sum(1), torch.ones(2000))
