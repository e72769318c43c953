"""Predictions of any likelihood, averaged over Gaussian outputs by quadrature."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Generator, Tensor
from torch.nn import functional

from bayesrule.graphical._grids import grid
from bayesrule.likelihoods import BinaryTargets, Likelihood, Marginal, TargetDistribution
from bayesrule.predicting.prediction import Prediction


def averaged(likelihood: Likelihood, mean: Tensor, variance: Tensor) -> Prediction:
    """`p(y) = E[p(y | f)]`, f ~ N(mean, variance), (n,) each."""
    if not likelihood.lacks("marginal") and not likelihood.probit_marginal:
        return Prediction.closed_form(likelihood.marginal(mean, variance, {}))
    points, weights = grid(variance)
    outputs = mean + variance.sqrt() * points[:, None]
    if likelihood.classification:
        return Prediction.closed_form(_of_answers(outputs, weights))
    return Prediction.closed_form(_of_numbers(likelihood.distribution(outputs, {}), weights))


def _of_answers(logits: Tensor, weights: Tensor) -> Marginal:
    """Of a yes-or-no target: the mean probability determines the distribution of y."""
    no, yes = (weights @ functional.logsigmoid(sign * logits).exp() for sign in (-1.0, 1.0))
    spread = weights @ (logits.sigmoid() - yes).square()
    mean_entropy = weights @ _entropy(functional.logsigmoid(-logits), functional.logsigmoid(logits))
    information = (_entropy(no.log(), yes.log()) - mean_entropy).clamp_min(0.0)
    return Marginal(
        BinaryTargets(yes.log() - no.log()), yes, spread, yes * no - spread, information
    )


def _entropy(log_no: Tensor, log_yes: Tensor) -> Tensor:
    return -(log_no.exp() * log_no + log_yes.exp() * log_yes)


def _of_numbers(inner: TargetDistribution, weights: Tensor) -> Marginal:
    kind = AveragedCounts if inner.whole_numbers else AveragedTargets
    mixture = kind(inner, weights)
    spread = weights @ (inner.mean - mixture.mean).square()
    return Marginal(mixture, mixture.mean, spread, weights @ inner.variance)


@dataclass(frozen=True, eq=False)
class AveragedTargets(TargetDistribution):
    """`p(y) = Σ_k w_k p_k(y)`: components (..., K, n), and their weights (K,)."""

    inner: TargetDistribution
    weights: Tensor

    @property
    def mean(self) -> Tensor:
        return self._mixed(self.inner.mean)

    @property
    def variance(self) -> Tensor:
        away = (self.inner.mean - self.mean.unsqueeze(-2)).square()
        return self._mixed(self.inner.variance + away)

    def log_prob(self, y: Tensor) -> Tensor:
        return (self.inner.log_prob(y.unsqueeze(-2)) + self.weights.log()[:, None]).logsumexp(-2)

    def cdf(self, y: Tensor) -> Tensor:
        return self._mixed(self.inner.cdf(y.unsqueeze(-2)))

    def sample(self, generator: Generator) -> Tensor:
        drawn = self.inner.sample(generator)
        last = drawn.shape[-1]
        rows = drawn.numel() // (len(self.weights) * last)
        chosen = torch.multinomial(self.weights, rows * last, True, generator=generator)
        index = chosen.reshape(*drawn.shape[:-2], 1, last)
        return drawn.gather(-2, index).squeeze(-2)

    def __getitem__(self, index: Any) -> Self:
        # A new first axis, or components chosen along it; the weights are those of all of them.
        return type(self)(self.inner[index], self.weights)

    def _mixed(self, values: Tensor) -> Tensor:
        return torch.einsum("...kn,k->...n", values, self.weights)


class AveragedCounts(AveragedTargets):
    """The same for counts, whose quantiles are whole numbers."""

    whole_numbers: ClassVar[bool] = True


def best_constant(likelihood: Likelihood, y: Tensor) -> float:
    """The one output c with the largest `Σ log p(y | c)`, by Newton's method.

    It would be infinite if all answers were equal or all counts 0, so outputs that are logits or
    logarithms have the prior N(0, 10²). Steps that lower the sum are halved.
    """
    precision = 0.0 if likelihood.distribution_class.gaussian else 0.01

    def total(c: Tensor) -> Tensor:
        log_joint = likelihood.log_prob(c.expand_as(y), y, {}).sum() - 0.5 * precision * c.square()
        return torch.where(log_joint.isnan(), -math.inf, log_joint)

    c = y.new_zeros(())
    for _ in range(20):
        slope, curve, value = _derivatives(total, c)
        if abs(slope) < 1e-10 * (len(y) + abs(value)) or curve >= 0.0:
            break
        step = -slope / curve
        while float(total(c + step)) < value and abs(step) > 1e-9:
            step *= 0.5
        c = c + step
    return float(c)


def _derivatives(function: Callable[[Tensor], Tensor], at: Tensor) -> tuple[float, float, float]:
    """Slope, curvature and value of a function of one number."""
    with torch.enable_grad():
        x = at.clone().requires_grad_()
        value = function(x)
        (slope,) = torch.autograd.grad(value, x, create_graph=True)
        (curve,) = torch.autograd.grad(slope, x)
    return float(slope.detach()), float(curve), float(value.detach())
