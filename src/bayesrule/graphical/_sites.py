"""Conjugate-computation variational inference: a Gaussian stands in for each row's likelihood.

A row's factor `p(y_i | f_i)` becomes a site `exp(λ̃₁ f + λ̃₂ f²)`, whose natural parameters are the
natural gradient of `E_q[log p(y_i | f_i)]`. With sites the model is conjugate. Khan & Lin (2017);
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
    """Marginals of a belief q at the rows, `f_i ~ N(mean, variance)`, (n,); `KL(q ‖ prior)`."""

    mean: Tensor
    variance: Tensor
    divergence: Tensor


Solve = Callable[[Natural], Marginals]
"""The conjugate computation: from sites to the posterior of prior and sites."""


@dataclass(frozen=True)
class Look:
    """A belief, its ELBO, and the sites that the rule moves towards from there."""

    belief: Marginals
    elbo: float
    messages: Natural


@dataclass(frozen=True)
class Settled:
    """The final sites, the ELBO after each pass, and why the search ended."""

    sites: Natural
    look: Look
    trace: list[float]
    converged: bool
    why: str


def messages(likelihood: Likelihood, q: Marginals, y: Tensor) -> tuple[Tensor, Natural]:
    """`Σ E[log p(y | f)]`, and `λ̃ = (α − 2 v m, v)` with `α = E[∇ log p]`, `v = ½ E[∇² log p]`.

    The expectations are exact up to rounding: a bound that disagreed with its slope would keep a
    fit from settling.
    """
    points, weights = grid(q.variance)
    with torch.enable_grad():
        f = (q.mean + q.variance.sqrt() * points[:, None]).detach().requires_grad_()
        logs = likelihood.log_prob(f.reshape(-1), y.expand_as(f).reshape(-1), {}).reshape(f.shape)
        (first,) = torch.autograd.grad(logs.sum(), f, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), f)
    alpha, v = weights @ first.detach(), 0.5 * (weights @ second)
    # If a factor is not log-concave, its site would have a negative precision.
    v = v.clamp_max(0.0)
    return (weights @ logs.detach()).sum(), (alpha - 2.0 * v * q.mean, v)


def nothing(y: Tensor) -> Natural:
    """Flat sites: the posterior is the prior."""
    return torch.zeros_like(y), torch.zeros_like(y)


@torch.no_grad()
def settle(
    solve: Solve, likelihood: Likelihood, y: Tensor, sites: Natural, *, passes: int,
    tolerance: float, rate: float = 1.0, report: Callable[[float], None] = lambda elbo: None,
) -> Settled:  # fmt: skip
    """Moves all sites, `λ̃ ← (1 − ρ) λ̃ + ρ λ̃(μ)`, until the belief no longer moves.

    A step that would lower the bound, as ρ = 1 may, is halved until it does not. Steps become
    shorter when the means turn back, and otherwise longer, up to `rate`.
    """
    now = _look(solve, likelihood, y, sites)
    trace, step, last = [now.elbo], rate, torch.zeros_like(y)
    for _ in range(passes):
        # The slack covers the rounding of sums over the data.
        least = now.elbo - 1e-12 * (len(y) + abs(now.elbo))
        while True:
            moved = _between(sites, now.messages, step)
            then = _look(solve, likelihood, y, moved)
            if then.elbo >= least:
                break
            step *= 0.5
            if step < SMALLEST_STEP:
                gap = _distance(now.belief, then.belief) / (2.0 * step)
                why = f"no step raises the bound, {gap:.1g} standard deviations from a fixed point"
                return Settled(sites, now, trace, gap < _CLOSE, why)
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
    """The largest change of a marginal: of its mean in deviations, or of its log variance."""
    shift = (new.mean - old.mean).abs() / old.variance.sqrt()
    widened = (new.variance / old.variance).log().abs()
    return float(torch.maximum(shift, widened).max())
