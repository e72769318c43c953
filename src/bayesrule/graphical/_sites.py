"""Conjugate-computation variational inference: each factor stands in for a Gaussian one.

A datum's factor `p(y_i | f_i)` becomes a site `exp(λ̃₁ f + λ̃₂ f²)`, whose natural parameters are the
natural gradient of `E_q[log p(y_i | f_i)]`; what is left is a conjugate model. Khan & Lin (2017);
Khan & Rue (2023), eqs 58 and 60. At ρ = 1 this is non-conjugate variational message passing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.families import Natural
from bayesrule.graphical._grids import grid
from bayesrule.likelihoods import Likelihood

SMALLEST_STEP = 1e-4
_CLOSE = 1e-3


@dataclass(frozen=True)
class Marginals:
    """A belief q seen from the data: `f_i ~ N(mean, variance)`, (n,) each, and `KL(q ‖ prior)`."""

    mean: Tensor
    variance: Tensor
    divergence: Tensor


Solve = Callable[[Natural], Marginals]
"""The conjugate computation: from sites to the belief that they and the prior make."""


@dataclass(frozen=True)
class Look:
    """A belief, the evidence's lower bound there, and the sites that the rule moves towards."""

    belief: Marginals
    elbo: float
    messages: Natural


@dataclass(frozen=True)
class Settled:
    """Where the sites came to rest, the bound pass by pass, and why that was the end."""

    sites: Natural
    look: Look
    trace: list[float]
    converged: bool
    why: str


def messages(likelihood: Likelihood, q: Marginals, y: Tensor) -> tuple[Tensor, Natural]:
    """`Σ E[log p(y | f)]`, and `λ̃ = (α − 2 v m, v)` with `α = E[∇ log p]`, `v = ½ E[∇² log p]`.

    A bound and its slope that disagree keep a fit from settling, so the expectations are exact but
    for rounding.
    """
    points, weights = grid(q.variance)
    with torch.enable_grad():
        f = (q.mean + q.variance.sqrt() * points[:, None]).detach().requires_grad_()
        logs = likelihood.log_prob(f.reshape(-1), y.expand_as(f).reshape(-1), {}).reshape(f.shape)
        (first,) = torch.autograd.grad(logs.sum(), f, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), f)
    alpha, v = weights @ first.detach(), 0.5 * (weights @ second)
    # Where a factor is not log-concave a site would have a negative precision.
    v = v.clamp_max(0.0)
    return (weights @ logs.detach()).sum(), (alpha - 2.0 * v * q.mean, v)


def nothing(y: Tensor) -> Natural:
    """Sites that say nothing: the belief is the prior."""
    return torch.zeros_like(y), torch.zeros_like(y)


@torch.no_grad()
def settle(
    solve: Solve, likelihood: Likelihood, y: Tensor, sites: Natural, *, passes: int,
    tolerance: float, rate: float = 1.0, report: Callable[[float], None] = lambda elbo: None,
) -> Settled:  # fmt: skip
    """Moves all sites, `λ̃ ← (1 − ρ) λ̃ + ρ λ̃(μ)`, until the belief stays where it is.

    A step that would lower the bound, as ρ = 1 may, is halved until it does not. Where means turn
    back, steps become shorter, and otherwise longer, up to `rate`.
    """
    now = _look(solve, likelihood, y, sites)
    trace, step, last = [now.elbo], rate, torch.zeros_like(y)
    for _ in range(passes):
        # The slack is the rounding of sums over the data.
        least = now.elbo - 1e-12 * (len(y) + abs(now.elbo))
        while True:
            moved = _between(sites, now.messages, step)
            then = _look(solve, likelihood, y, moved)
            if then.elbo >= least:
                break
            step *= 0.5
            if step < SMALLEST_STEP:
                left = _distance(now.belief, then.belief) / (2.0 * step)
                why = f"no step raises the bound, {left:.1g} standard deviations from a fixed point"
                return Settled(sites, now, trace, left < _CLOSE, why)
        distance = _distance(now.belief, then.belief) / step
        move = then.belief.mean - now.belief.mean
        back, last = float(move @ last) < 0.0, move
        sites, now = moved, then
        trace.append(now.elbo)
        report(now.elbo)
        if distance < tolerance:
            return Settled(sites, now, trace, True, f"beliefs moved by less than {tolerance:g}")
        step = 0.7 * step if back else min(rate, 1.4 * step)
    return Settled(sites, now, trace, False, f"stopped after {passes} passes")


def _look(solve: Solve, likelihood: Likelihood, y: Tensor, sites: Natural) -> Look:
    belief = solve(sites)
    fit, towards = messages(likelihood, belief, y)
    return Look(belief, float(fit - belief.divergence), towards)


def _between(old: Natural, new: Natural, step: float) -> Natural:
    return old[0].lerp(new[0], step), old[1].lerp(new[1], step)


def _distance(old: Marginals, new: Marginals) -> float:
    """The largest move of a marginal, in its own standard deviations."""
    shift = (new.mean - old.mean).abs() / old.variance.sqrt()
    widened = (new.variance / old.variance).log().abs()
    return float(torch.maximum(shift, widened).max())
