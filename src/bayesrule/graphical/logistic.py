"""Bayesian logistic regression: a Gaussian posterior, by non-conjugate message passing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from bayesrule.families import Gaussian, Natural
from bayesrule.graphical import _sites
from bayesrule.graphical._averaged import averaged
from bayesrule.graphical._base import Report
from bayesrule.graphical._supervised import (
    Supervised,
    generator,
    need_positive,
    need_rate,
    weights_line,
    with_intercept,
)
from bayesrule.likelihoods import BernoulliLikelihood, Likelihood
from bayesrule.predicting.prediction import Prediction
from bayesrule.training.progress import Progress


@dataclass(frozen=True)
class _Root:
    """The fixed point of EM in one number `at`, by the secant method.

    EM alone converges linearly, and its rate may be near 1.
    """

    at: float
    former: tuple[float, float] | None = None
    settled: bool = False

    def next(self, image: float) -> _Root:
        gap = image - self.at
        step = gap
        if self.former is not None and self.at != self.former[0]:
            slope = (gap - self.former[1]) / (self.at - self.former[0])
            step = -gap / slope if slope < 0.0 else gap
        return _Root(self.at + max(-2.0, min(2.0, step)), (self.at, gap), abs(gap) < 1e-7)


@dataclass(eq=False, repr=False, kw_only=True)
class LogisticRegression(Supervised):
    """`y ~ Bernoulli(sigmoid(x w + b))`, with the Gaussian q(w, b) that maximises the ELBO.

    Each row sends the message `λ̃ = ∇_μ E_q[log p(y | x w + b)]`, with expectations by quadrature.
    The belief moves to `λ₀ + Σ λ̃` with ρ = 1 (non-conjugate message passing), or with less if that
    would lower the bound. If `prior_precision` is not given, it maximises the bound too;
    `b ~ N(0, 1 / intercept_precision)`. Khan & Rue (2023), eqs 58 and 60.

    >>> model = LogisticRegression().fit([[-2.0], [-1.0], [0.5], [1.0], [2.0]], [0, 0, 1, 0, 1])
    >>> model.predict([[-1.0], [1.0]]).labels
    tensor([0, 1])
    """

    prior_precision: float | None = None
    intercept: bool = True
    intercept_precision: float = 0.01
    rate: float = 1.0
    passes: int = 500
    tol: float = 1e-7

    likelihood: ClassVar[Likelihood] = BernoulliLikelihood()

    def __post_init__(self) -> None:
        need_positive(
            self,
            prior_precision=self.prior_precision,
            intercept_precision=self.intercept_precision,
        )
        need_rate(self, self.rate, self.passes)

    def fit(self, x: Any, y: Any, *, progress: bool | None = None) -> Self:
        """Learns from a table x (n, d) and answers y (n,) that are 0 or 1."""
        rows = self._inputs(x, fitted=False)
        design, targets = with_intercept(rows, self.intercept), self._targets(y, len(rows))
        self.likelihood.check(targets, targets)
        search, sites = _Root(math.log(self.prior_precision or 1.0)), _sites.nothing(targets)
        trace: list[float] = []
        with Progress(None, 0, "logistic regression", progress) as bar:
            while True:
                alpha = math.exp(search.at)
                settled = self._settled(design, targets, alpha, sites, self.passes - len(trace))
                trace += settled.trace if not trace else settled.trace[1:]
                bar.advance(len(settled.trace))
                bar.note(elbo=trace[-1])
                sites, belief = settled.sites, self._belief(design, alpha, settled.sites)
                search = search.next(math.log(self._improved(belief)))
                if search.settled or len(trace) > self.passes:
                    break
        self.belief_, self.prior_precision_ = belief, alpha
        done = settled.converged and search.settled
        why = settled.why if done else f"stopped after {self.passes} passes"
        self.report_ = Report(tuple(trace), done, why)
        return self

    def _settled(
        self, design: Tensor, y: Tensor, alpha: float, sites: Natural, passes: int
    ) -> _sites.Settled:
        prior = self._prior(design.shape[1], alpha)

        def solve(now: Natural) -> _sites.Marginals:
            q = self._belief(design, alpha, now)
            variance = ((design @ q.covariance) * design).sum(1)
            return _sites.Marginals(design @ q.mean, variance, q.kl(prior))

        most = max(passes, 1)
        return _sites.settle(
            solve, self.likelihood, y, sites, passes=most, tolerance=self.tol, rate=self.rate
        )

    def _prior(self, size: int, alpha: float) -> Gaussian:
        """The prior `λ₀` of weights and intercept."""
        precision = torch.full((size,), alpha, dtype=torch.float64)
        if self.intercept:
            precision[-1] = self.intercept_precision
        return Gaussian((torch.zeros_like(precision), -0.5 * precision.diag()))

    def _belief(self, design: Tensor, alpha: float, sites: Natural) -> Gaussian:
        """`λ = λ₀ + Σ_i (λ̃₁ x, λ̃₂ x xᵀ)`."""
        first, second = self._prior(design.shape[1], alpha).natural
        return Gaussian((first + design.T @ sites[0], second + (design.T * sites[1]) @ design))

    def _improved(self, belief: Gaussian) -> float:
        """`α = d / E[wᵀ w]`: the prior precision that maximises the bound at this belief, by EM."""
        if self.prior_precision is not None:
            return self.prior_precision
        size = len(belief.mean) - int(self.intercept)
        squares = belief.mean.square() + belief.covariance.diagonal()
        return size / float(squares[:size].sum())

    @property
    def weights_(self) -> Tensor:
        """The mean of the weights, (d,)."""
        self._need_fit()
        return self.belief_.mean[: self.columns_]

    @property
    def intercept_(self) -> float:
        """The mean of the intercept."""
        self._need_fit()
        return float(self.belief_.mean[-1]) if self.intercept else 0.0

    @property
    def columns_(self) -> int:
        self._need_fit()
        return len(self.belief_.natural[0]) - int(self.intercept)

    def predict(self, x: Any) -> Prediction:
        design = with_intercept(self._inputs(x, fitted=True), self.intercept)
        variance = ((design @ self.belief_.covariance) * design).sum(1)
        return averaged(self.likelihood, design @ self.belief_.mean, variance)

    def sample(self, x: Any, num: int = 1, seed: int = 0) -> Tensor:
        """`num` draws of p(y = 1 | x) from the posterior, at rows x, (num, n)."""
        design = with_intercept(self._inputs(x, fitted=True), self.intercept)
        return (self.belief_.sample(num, generator(seed)) @ design.T).sigmoid()

    def _learned(self) -> dict[str, Tensor]:
        self._need_fit()
        first, second = self.belief_.natural
        alpha = torch.tensor(self.prior_precision_, dtype=torch.float64)
        return {"first": first, "second": second, "prior_precision": alpha}

    def _adopt(self, tensors: dict[str, Tensor]) -> None:
        self.belief_ = Gaussian((tensors["first"], tensors["second"]))
        self.prior_precision_ = float(tensors["prior_precision"])

    def _summary_lines(self) -> list[str]:
        return [
            f"prior_precision {self.prior_precision_:.4g}",
            weights_line(self.weights_, self.intercept_),
        ]
