"""Noisy natural gradients: what happens in which step, how a run goes on, what is refused."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule import (
    Average,
    Dense,
    Diagonal,
    Draws,
    Fisher,
    GaussianFamily,
    Kronecker,
    Learner,
    LocalDraws,
    MeanFieldFamily,
    PerExample,
    Price,
)
from bayesrule.curvature import NoCurvature, SquaredGradient
from bayesrule.posteriors import RotatedFamily
from bayesrule.tensors import tree
from rules.noisy_equations import flat, matrices, noisy
from rules.test_noisy import BELIEFS, FIRST, close, learner_of


def _same(one: Any, two: Any) -> bool:
    """Whether all tensors and numbers of two nested objects are equal, bit for bit."""
    pairs = zip(tree.leaves(one), tree.leaves(two), strict=True)
    return all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for (_, a), (_, b) in pairs)


@pytest.mark.parametrize("belief", BELIEFS)
def test_between_refreshes_the_precision_is_the_old_one(
    belief: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = noisy(0.1, 0.5, stats_every=2, inverse_every=4)
    learner, _, _ = learner_of(BELIEFS[belief][0], rule)
    looked: list[int] = []
    plain = Fisher.local

    def watched(*given: Any) -> Any:
        looked.append(1)
        return plain(*given)

    monkeypatch.setattr(Fisher, "local", watched)
    state = learner.init()
    for step in range(9):
        looked.clear()
        after, _ = learner.step(state, (torch.randn(5, 2), torch.randn(5, 2)))
        assert len(looked) == (2 if step % 2 == 0 else 0), "two draws at every other step"
        precisions = [getattr(one.posterior, "precision", None) for one in (state, after)]
        assert (precisions[0] is precisions[1]) == (step % 4 != 0)
        assert _same(after.rule["curvature"], state.rule["curvature"]) == (step % 2 == 1)
        assert not torch.equal(after.posterior.mean["0.weight"], state.posterior.mean["0.weight"])
        state = after


@pytest.mark.parametrize("belief", BELIEFS)
def test_going_on_from_a_copy_is_going_on(belief: str) -> None:
    """Roots are not part of a state: those that are found anew are the same, bit for bit."""
    options: dict[str, Any] = {
        "momentum": Average(0.8),
        "damping": 0.1,
        "stats_every": 2,
        "inverse_every": 4,
    }
    learner, _, _ = learner_of(BELIEFS[belief][0], noisy(0.1, 0.5, **options))
    batches = [(torch.randn(5, 2), torch.randn(5, 2)) for _ in range(12)]
    state = learner.init(seed=2)
    for batch in batches[:6]:
        state, _ = learner.step(state, batch)
    saved = {k: v.clone() if isinstance(v, Tensor) else v for k, v in tree.leaves(state)}
    copy = tree.rebuild(learner.init(), lambda name, _: saved[name])
    before, given_up = (tree.map_tensors(state, torch.clone) for _ in range(2))
    for batch in batches[6:]:
        copy, _ = learner.step(copy, batch)
        given_up, _ = learner.step(given_up, batch, donate=True)
    now = state
    for batch in batches[6:]:
        now, _ = learner.step(now, batch)
    assert _same(copy, now)
    assert _same(given_up, now)
    assert _same(state, before)


def test_a_schedule_is_applied() -> None:
    rates = br.schedules.linear(0.4, 0.1, steps=3)
    learner, _, _ = learner_of(GaussianFamily(Dense(), FIRST), noisy(rates, rates))
    state = learner.init()
    for step in range(4):
        x, y = torch.randn(5, 2), torch.randn(5, 2)
        constant = dataclasses.replace(learner.rule, learning_rate=rates(step), rate=rates(step))
        reference, _, _ = learner_of(GaussianFamily(Dense(), FIRST), constant)
        want, _ = reference.step(state, (x, y))
        state, _ = learner.step(state, (x, y))
        close(flat(matrices(state.posterior.mean)), flat(matrices(want.posterior.mean)), 1e-14)


# --- refusals -------------------------------------------------------------------------------------

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("family", {"posterior": MeanFieldFamily()}, "need a Gaussian, got MeanFieldFamily"),
    (
        "expectation",
        {"expectation": LocalDraws()},
        r"looks at weights, but LocalDraws\(\) shows .* Draws\(\) with all",
    ),
    ("no curvature", {"curvature": NoCurvature()}, r"NoCurvature\(\) gives nothing to move"),
    ("negative", {"curvature": Price()}, r"Price\(\) may be negative; use Natural\(retr"),
    (
        "root of a matrix",
        {"rule": noisy(square_root=True), "posterior": GaussianFamily(Dense())},
        r"use Diagonal\(\), got Dense\(\)",
    ),
    (
        "squares in other bases",
        {"posterior": RotatedFamily(Kronecker()), "curvature": PerExample()},
        r"PerExample\(\) looks at the weights as they are, and Rotated.*use GaussianFamily\(\)",
    ),
]


@pytest.mark.parametrize(("name", "parts", "message"), REFUSED, ids=[r[0] for r in REFUSED])
def test_parts_that_do_not_fit_are_refused(name: str, parts: dict[str, Any], message: str) -> None:
    chosen: dict[str, Any] = {
        "posterior": GaussianFamily(Diagonal()),
        "expectation": Draws(1),
        "curvature": SquaredGradient(),
        "rule": noisy(),
        **parts,
    }
    with pytest.raises((TypeError, ValueError), match=message):
        Learner(nn.Linear(3, 1), br.GaussianLikelihood(noise=1.0), num_data=12, **chosen)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": -1.0}, "learning_rate must be a number that is not negative, got -1"),
        ({"rate": math.nan}, "rate must be a number that is not negative, got nan"),
        ({"stats_every": 0}, "stats_every is a number of steps, at least 1, got 0"),
        ({"inverse_every": 2.5}, "inverse_every is a number of steps, at least 1, got 2.5"),
        ({"damping": -0.1}, "(damping|epsilon) must not be negative"),
        ({"kl_clip": 0.0}, "kl_clip must be positive"),
        ({"damped_root": True}, "add square_root=True"),
    ],
)
def test_bad_numbers_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        noisy(**options)
