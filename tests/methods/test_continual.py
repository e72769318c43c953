"""Continual learning: the posterior of earlier data is the prior of later ones, by every method."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.methods import METHODS, option_names, record
from bayesrule.types import State

Batch = tuple[Tensor, Tensor]
TRUTH = torch.tensor([1.0, -1.0])
STEPS = 300
# Optimisers whose precision is no belief about the data, so their belief cannot hold anything back.
WITHOUT_BELIEF = {"rmsprop", "adam", "map", "sgd", "ste"}


def part(first: bool) -> Batch:
    """Data that tell of the first weight alone, or of the second alone."""
    generator = torch.Generator().manual_seed(int(first))
    x = torch.randn(100, 2, generator=generator) * torch.tensor([first, not first])
    return x, (x @ TRUTH).unsqueeze(1) + 0.2 * torch.randn(100, 1, generator=generator)


def trained(name: str, batch: Batch, state: State | None = None) -> tuple[br.Learner, State]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(-0.05 * TRUTH)
    options: dict[str, Any] = {} if state is None else {"prior": state.posterior}
    # Where no data come from, a belief goes to its prior as fast as it learns.
    taken = option_names(METHODS[name])
    options |= {k: v for k, v in {"learning_rate": 0.1, "kl_clip": 1.0}.items() if k in taken}
    learner = METHODS[name](model, br.GaussianLikelihood(noise=0.2), num_data=100, **options)
    now = learner.init(seed=1)
    for _ in range(STEPS):
        now, _ = learner.step(now, batch, donate=True)
    return learner, learner.finish(now, [batch])


def weights(state: State) -> Tensor:
    return state.posterior.mean["weight"][0]


@pytest.mark.parametrize("name", METHODS)
def test_what_was_learned_first_is_not_forgotten(name: str) -> None:
    _, earlier = trained(name, part(True))
    assert float(weights(earlier)[0]) > 0.5
    learner, both = trained(name, part(False), earlier)
    _, forgotten = trained(name, part(False))
    assert float(weights(both)[1]) < -0.5
    if name in WITHOUT_BELIEF:
        assert record(name).limits.startswith("predicts with the")
        return
    assert bool(torch.isfinite(both.posterior.kl(learner.prior)))
    assert float(weights(both)[0]) > 0.5 > float(weights(forgotten)[0])
