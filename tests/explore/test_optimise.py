"""Inputs at which a trained network predicts the best output."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.training.models import mlp

BEST = torch.tensor([0.3, -0.4])


@cache
def bowl() -> tuple[br.Learner, br.types.State]:
    """A trained `y = |x − best|²` on [−1, 1]²."""
    x = 2.0 * torch.rand(400, 2, generator=torch.Generator().manual_seed(0)) - 1.0
    y = (x - BEST).square().sum(1, keepdim=True)
    learner = br.tagi(mlp(2, 1, hidden=(50,)), br.GaussianLikelihood(noise=0.05), num_data=400)
    return learner, br.fit(learner, (x, y), epochs=20, batch_size=16, progress=False).state


def starts(num: int = 5) -> Tensor:
    return 2.0 * torch.rand(num, 2, generator=torch.Generator().manual_seed(1)) - 1.0


def test_the_least_output_is_found_from_anywhere() -> None:
    learner, state = bowl()
    found = br.explore.optimise_inputs(learner, state, starts(), variance=0.05, bounds=(-1.0, 1.0))
    assert float((found.x - BEST).abs().max()) < 0.2
    prediction = br.predict(learner, state, found.x)
    torch.testing.assert_close(found.mean, prediction.mean[:, 0])
    torch.testing.assert_close(found.std, prediction.epistemic[:, 0].sqrt())


def test_scores_only_get_better_and_the_path_ends_at_the_best() -> None:
    learner, state = bowl()
    found = br.explore.optimise_inputs(learner, state, starts(), variance=0.05, steps=12)
    assert found.path.shape == (13, 5, 2)
    assert found.values.shape == (13, 5)
    assert bool((found.values.diff(dim=0) <= 0).all())
    torch.testing.assert_close(found.path[-1], found.x)
    torch.testing.assert_close(found.path[0], starts())
    torch.testing.assert_close(found.values[-1], found.mean)


def test_the_largest_output_lies_in_a_corner() -> None:
    learner, state = bowl()
    found = br.explore.optimise_inputs(
        learner, state, starts(20), variance=0.05, bounds=(-1.0, 1.0), maximise=True
    )
    assert bool((found.values.diff(dim=0) >= 0).all())
    best = found.x[found.mean.argmax()]
    torch.testing.assert_close(best, torch.tensor([-1.0, 1.0]), rtol=0.0, atol=0.02)


def test_exploration_prefers_what_is_not_known() -> None:
    learner, state = bowl()
    sure = br.explore.optimise_inputs(learner, state, starts(20), variance=0.05)
    bold = br.explore.optimise_inputs(learner, state, starts(20), variance=0.05, exploration=300.0)
    assert float(bold.std.mean()) > 1.3 * float(sure.std.mean())
    torch.testing.assert_close(bold.values[-1], bold.mean - 300.0 * bold.std)


def test_bounds_move_the_start_too() -> None:
    learner, state = bowl()
    found = br.explore.optimise_inputs(
        learner, state, torch.full((1, 2), 5.0), variance=0.05, bounds=(-0.5, 0.5)
    )
    assert float(found.path.abs().max()) <= 0.5


def test_the_start_may_be_uncertain_itself() -> None:
    learner, state = bowl()
    plain = br.explore.optimise_inputs(learner, state, starts(), variance=0.05)
    given = br.explore.optimise_inputs(learner, state, br.moments.uncertain(starts(), 0.05))
    torch.testing.assert_close(given.x, plain.x)


def test_what_has_no_best_is_refused() -> None:
    two = br.tagi(nn.Linear(2, 2), br.GaussianLikelihood(), num_data=1)
    with pytest.raises(ValueError, match="one real-valued output"):
        br.explore.optimise_inputs(two, two.init(), starts(), variance=1.0)
    classes = br.tagi(nn.Linear(2, 1), br.BernoulliLikelihood(), num_data=1)
    with pytest.raises(ValueError, match="BernoulliLikelihood"):
        br.explore.optimise_inputs(classes, classes.init(), starts(), variance=1.0)
    learner, state = bowl()
    with pytest.raises(ValueError, match="no variance"):
        br.explore.optimise_inputs(learner, state, starts())
