"""Bayesian linear regression: conjugate Bayes, one step of the learning rule with ρ = 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from bayesrule.families import Gaussian
from bayesrule.graphical import tables
from bayesrule.graphical._base import Report
from bayesrule.graphical._supervised import (
    Supervised,
    generator,
    need_positive,
    weights_line,
    with_intercept,
)
from bayesrule.likelihoods import GaussianLikelihood
from bayesrule.predicting.prediction import Prediction

_LARGE = 1e6
"""The largest ratio of prior to data precision; beyond it weights are 0 anyway."""


@dataclass(frozen=True)
class _Sums:
    """The sufficient statistics of rows, which add up over batches.

    `gram` is `Σ x xᵀ`, `moment` `Σ x y`, `square` `Σ y²` of rows less `shift`, which only reduces
    rounding; with an intercept, x ends with a 1.
    """

    gram: Tensor
    moment: Tensor
    square: Tensor
    count: int
    shift: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor, shift: Tensor, intercept: bool) -> _Sums:
        x, y = with_intercept(x - shift[:-1], intercept), y - shift[-1]
        return cls(x.T @ x, x.T @ y, y @ y, len(y), shift)

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(
            self.gram + other.gram,
            self.moment + other.moment,
            self.square + other.square,
            self.count + other.count,
            self.shift,
        )


@dataclass(frozen=True)
class _Axes:
    """The sums about the means, in the eigenbasis of the Gram matrix: weights are independent."""

    values: Tensor
    moment: Tensor
    square: Tensor
    count: float
    constant: float

    @classmethod
    def of(cls, sums: _Sums, intercept: bool) -> _Axes:
        gram, moment, square = sums.gram, sums.moment, sums.square
        if intercept:
            mean = gram[:-1, -1] / sums.count
            gram = gram[:-1, :-1] - sums.count * torch.outer(mean, mean)
            square = square - moment[-1].square() / sums.count
            moment = moment[:-1] - mean * moment[-1]
        values, vectors = torch.linalg.eigh(gram)
        fixed = int(intercept)
        constant = -0.5 * fixed * math.log(sums.count)
        return cls(values.clamp_min(0.0), vectors.T @ moment, square, sums.count - fixed, constant)

    def errors(self, weights: Tensor) -> Tensor:
        """`Σ (y − x w)²`."""
        fitted = 2.0 * self.moment @ weights - self.values @ weights.square()
        # For targets without noise the difference is only rounding.
        return (self.square - fitted).clamp_min(1e-14 * float(self.square) + 1e-20 * self.count)

    def evidence(self, alpha: float, beta: float) -> float:
        """`log p(y | α, β)`, MacKay (1992); Bishop (2006), eq. 3.86."""
        precision = alpha + beta * self.values
        weights = beta * self.moment / precision
        energy = beta * self.errors(weights) + alpha * weights.square().sum()
        scale = self.count * math.log(beta / (2.0 * math.pi)) + len(weights) * math.log(alpha)
        return float(0.5 * (scale - precision.log().sum() - energy)) + self.constant

    def improved(self, alpha: float, beta: float) -> tuple[float, float]:
        """`α = γ / |m|²`, `β = (N − γ) / Σ (y − x m)²`, γ the effective number of parameters."""
        precision = alpha + beta * self.values
        weights = beta * self.moment / precision
        gamma = float((beta * self.values / precision).sum())
        largest = _LARGE * beta * float(self.values.max())
        improved_alpha = min(gamma / float(weights.square().sum().clamp_min(1e-300)), largest)
        degrees = max(self.count - gamma, 1e-3)
        # Constant columns carry no information about their weights.
        return improved_alpha if gamma > 0.0 else alpha, degrees / float(self.errors(weights))


@dataclass(eq=False, repr=False, kw_only=True)
class LinearRegression(Supervised):
    """`y ~ N(x w + b, noise²)`, `w ~ N(0, 1 / prior_precision)`: the exact posterior in one step.

    Each row adds its message `β (x y, −½ x xᵀ)` to the natural parameters of the prior, so batches
    add up (`update`). The intercept b has a flat prior. If `noise` (a standard deviation) and
    `prior_precision` are not given, they maximise the evidence `log p(y)`, by the fixed point of
    MacKay (1992). Khan & Rue (2023), secs 1.3.3 and 5.1, eq. 54.

    >>> model = LinearRegression().fit([[0.0], [1.0], [2.0], [3.0]], [0.1, 0.9, 2.1, 2.9])
    >>> model.predict([[4.0]]).mean
    tensor([3.8917], dtype=torch.float64)
    """

    prior_precision: float | None = None
    noise: float | None = None
    intercept: bool = True
    passes: int = 1000
    tol: float = 1e-9

    def __post_init__(self) -> None:
        need_positive(self, prior_precision=self.prior_precision, noise=self.noise)

    def fit(self, x: Any, y: Any) -> Self:
        """Learns the posterior of the weights from a table x (n, d) and y (n,)."""
        rows, targets = self._rows(x, y, fitted=False)
        shift = torch.cat([rows, targets[:, None]], dim=1).mean(0)
        if not self.intercept:
            shift = torch.zeros_like(shift)
        return self._learn(_Sums.of(rows, targets, shift, self.intercept))

    def update(self, x: Any, y: Any) -> Self:
        """Adds rows to the posterior, as if all had been fitted together."""
        if self.report_ is None:
            return self.fit(x, y)
        rows, targets = self._rows(x, y, fitted=True)
        return self._learn(self._sums + _Sums.of(rows, targets, self._sums.shift, self.intercept))

    def _rows(self, x: Any, y: Any, *, fitted: bool) -> tuple[Tensor, Tensor]:
        rows = self._inputs(x, fitted=fitted)
        return rows, tables.vector(y, rows=len(rows)).double()

    def _learn(self, sums: _Sums) -> Self:
        axes = _Axes.of(sums, self.intercept)
        alpha, beta, report = self._hyperparameters(axes)
        self._sums, self.prior_precision_, self.noise_ = sums, alpha, beta**-0.5
        self.report_ = report
        return self

    def _hyperparameters(self, axes: _Axes) -> tuple[float, float, Report]:
        spread = float(axes.square) / max(axes.count, 1.0)
        alpha = self.prior_precision or 1.0
        beta = self.noise**-2 if self.noise else 1.0 / max(spread, 1e-20)
        trace = [axes.evidence(alpha, beta)]
        if self.prior_precision and self.noise:
            return alpha, beta, Report(tuple(trace), True, "exact: conjugate Bayes in one step")
        if axes.count < 1:
            raise ValueError(
                "LinearRegression: one row says nothing about the noise beside the intercept; give "
                "noise and prior_precision, or more rows."
            )
        for _ in range(self.passes):
            new, noise = axes.improved(alpha, beta)
            new = self.prior_precision or new
            noise = self.noise**-2 if self.noise else noise
            moved = max(abs(math.log(new / alpha)), abs(math.log(noise / beta)))
            alpha, beta = new, noise
            trace.append(axes.evidence(alpha, beta))
            if moved < self.tol:
                why = f"prior and noise moved by less than {self.tol:g}"
                return alpha, beta, Report(tuple(trace), True, why)
        why = f"prior and noise still move after {self.passes} passes"
        return alpha, beta, Report(tuple(trace), False, why)

    @property
    def belief_(self) -> Gaussian:
        """`q(w, b)`: the natural parameters of the prior plus the messages of all rows.

        The last entry is the intercept, for rows less the means of the first batch.
        """
        self._need_fit()
        beta, size = self.noise_**-2, len(self._sums.gram)
        prior = torch.full((size,), self.prior_precision_, dtype=torch.float64)
        if self.intercept:
            prior[-1] = 0.0
        precision = prior.diag() + beta * self._sums.gram
        return Gaussian((beta * self._sums.moment, -0.5 * precision))

    @property
    def weights_(self) -> Tensor:
        """The mean of the weights, (d,)."""
        return self.belief_.mean[: self.columns_]

    @property
    def intercept_(self) -> float:
        """The mean of the intercept."""
        if not self.intercept:
            return 0.0
        shift = self._sums.shift
        return float(self.belief_.mean[-1] + shift[-1] - shift[:-1] @ self.weights_)

    @property
    def columns_(self) -> int:
        self._need_fit()
        return len(self._sums.shift) - 1

    def predict(self, x: Any) -> Prediction:
        design, belief = self._design(x), self.belief_
        mean = design @ belief.mean + self._sums.shift[-1]
        variance = ((design @ belief.covariance) * design).sum(1)
        return Prediction.closed_form(GaussianLikelihood(self.noise_).marginal(mean, variance, {}))

    def sample(self, x: Any, num: int = 1, seed: int = 0) -> Tensor:
        """`num` draws of `x w + b` from the posterior, at rows x: (num, n), without noise."""
        design = self._design(x)
        return self.belief_.sample(num, generator(seed)) @ design.T + self._sums.shift[-1]

    def _design(self, x: Any) -> Tensor:
        rows = self._inputs(x, fitted=True) - self._sums.shift[:-1]
        return with_intercept(rows, self.intercept)

    def _learned(self) -> dict[str, Tensor]:
        self._need_fit()
        numbers = [self.prior_precision_, self.noise_, float(self._sums.count)]
        sums = {name: getattr(self._sums, name) for name in ("gram", "moment", "square", "shift")}
        return {**sums, "numbers": torch.tensor(numbers, dtype=torch.float64)}

    def _adopt(self, tensors: dict[str, Tensor]) -> None:
        numbers = tensors.pop("numbers").tolist()
        self.prior_precision_, self.noise_ = numbers[:2]
        self._sums = _Sums(**tensors, count=int(numbers[2]))

    def _summary_lines(self) -> list[str]:
        return [
            f"{self._sums.count} rows; prior_precision {self.prior_precision_:.4g}, "
            f"noise {self.noise_:.4g}",
            weights_line(self.weights_, self.intercept_),
        ]
