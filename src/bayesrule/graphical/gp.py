"""Gaussian processes: exact regression, and other likelihoods by conjugate-computation VI."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from bayesrule.families import Natural
from bayesrule.graphical import _sites
from bayesrule.graphical._averaged import averaged, best_constant
from bayesrule.graphical._base import Report
from bayesrule.graphical._climbing import climbed, show
from bayesrule.graphical._process import Process
from bayesrule.graphical._process import evidence as evidence_of
from bayesrule.graphical._supervised import (
    Supervised,
    generator,
    need_positive,
    need_rate,
)
from bayesrule.graphical.kernels import RBF, Kernel
from bayesrule.likelihoods import GaussianLikelihood, Likelihood
from bayesrule.moments.quadrature import with_slopes
from bayesrule.predicting.prediction import Prediction
from bayesrule.tensors.unfit import whole_number
from bayesrule.training.progress import Progress

_COARSE = 1e-4
"""The tolerance of the sites' fixed point during the search for hyperparameters."""


@dataclass(eq=False, repr=False, kw_only=True)
class GP(Supervised):
    """`y ~ p(y | f(x))` with a Gaussian process f: a belief about functions.

    Without a likelihood, y is f with Gaussian `noise` (a standard deviation): exact regression, one
    step with ρ = 1. With one, such as `br.BernoulliLikelihood()` or `br.PoissonLikelihood()`, a
    Gaussian site stands in for each row's factor. The learning rule moves the sites, and each pass
    is a regression on them: conjugate-computation VI, Khan & Lin (2017), Khan & Rue (2023), eq. 60.

    - `kernel`: by default an `RBF` with a length for each column. Its parameters and the noise
      maximise the evidence (or its bound), starting from the given values; `learn=False` keeps the
      kernel as it is.
    - `mean`: of the process; by default the constant that explains y best.
    - `starts`: how many starts the search for parameters has; all but the first are random.

    >>> x = torch.linspace(0.0, 6.0, 20)[:, None]
    >>> model = GP(noise=0.1).fit(x, x[:, 0].sin())
    >>> model.predict([[1.5]]).interval(0.9)[0] < math.sin(1.5)
    tensor([True])
    """

    kernel: Kernel | None = None
    likelihood: Likelihood | None = None
    noise: float | None = None
    mean: float | None = None
    learn: bool = True
    starts: int = 1
    seed: int = 0
    rate: float = 1.0
    passes: int = 200
    tol: float = 1e-6

    def __post_init__(self) -> None:
        need_positive(self, noise=self.noise)
        need_rate(self, self.rate, self.passes)
        whole_number("starts", self.starts)
        if self.kernel is not None and not isinstance(self.kernel, Kernel):
            raise TypeError(f"GP: kernel is a Kernel, such as RBF(); got {self.kernel!r}.")
        if self.likelihood is not None:
            _check_likelihood(self.likelihood, self.noise)

    def fit(self, x: Any, y: Any, *, progress: bool | None = None) -> Self:
        """Learns the posterior over functions from a table x (n, d) and targets y (n,)."""
        rows = self._inputs(x, fitted=False)
        targets = self._targets(y, len(rows))
        of_targets = self._likelihood(1.0)
        targets = of_targets.check(targets, targets)
        if len(rows) < 2 and self.likelihood is None and (self.learn or self.noise is None):
            raise ValueError(
                "GP: one row says nothing about noise and kernel; give both and learn=False, or "
                "more rows."
            )
        self._x = rows
        self.mean_ = best_constant(of_targets, targets) if self.mean is None else self.mean
        first = self._first(rows, targets)
        with Progress(None, 0, "Gaussian process", progress) as bar:
            task = _Fit(self, rows, targets, partial(show, bar))
            best = max((task.run(start) for start in self._starts(first)), key=_last)
        self.kernel_, self.noise_, self._sites, self.report_ = best
        self._solve()
        return self

    def _first(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The first start of the search for parameters."""
        spread = float(y.std(correction=0).clamp_min(1e-6)) if self.likelihood is None else 1.0
        kernel = self.kernel
        if kernel is None:
            width = x.std(0, correction=0) * math.sqrt(x.shape[1])
            lengths = torch.where(width > 0, width, 1.0)
            kernel = RBF(variance=spread**2, length=lengths.tolist())
        noise = torch.tensor(self.noise or 0.3 * spread, dtype=torch.float64)
        return {**kernel.parameters, **({} if self.likelihood else {"noise": noise})}

    def _starts(self, first: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        draw = generator(self.seed)
        random = [
            {k: v * torch.randn(v.shape, generator=draw).double().exp() for k, v in first.items()}
            for _ in range(self.starts - 1)
        ]
        return [first, *random]

    def _likelihood(self, noise: float) -> Likelihood:
        return self.likelihood or GaussianLikelihood(noise)

    def _solve(self) -> None:
        covariance = self.kernel_.covariance(self._x, self._x)
        self._process = Process.of(covariance, self.mean_, self._sites, self.kernel_)

    @property
    def sites_(self) -> Natural:
        """The natural parameters `(λ̃₁, λ̃₂)` that stand in for each row's factor, (n,) both."""
        self._need_fit()
        return self._sites

    @property
    def columns_(self) -> int:
        self._need_fit()
        return self._x.shape[1]

    def predict(self, x: Any) -> Prediction:
        rows = self._inputs(x, fitted=True)
        between, prior = self.kernel_.covariance(self._x, rows), self.kernel_.diagonal(rows)
        mean, variance = self._process.at(between, prior)
        return averaged(self._likelihood(self.noise_), mean, variance.clamp_min(1e-300))

    def sample(self, x: Any, num: int = 1, seed: int = 0) -> Tensor:
        """`num` functions f drawn from the posterior, at m rows x: (num, m)."""
        rows = self._inputs(x, fitted=True)
        between, prior = self.kernel_.covariance(self._x, rows), self.kernel_.covariance(rows, rows)
        mean, covariance = self._process.at(between, prior)
        values, vectors = torch.linalg.eigh(covariance)
        white = torch.randn(num, len(rows), generator=generator(seed), dtype=torch.float64)
        return mean + (white * values.clamp_min(0.0).sqrt()) @ vectors.T

    def _learned(self) -> dict[str, Tensor]:
        self._need_fit()
        numbers = torch.tensor([self.mean_, self.noise_], dtype=torch.float64)
        named = {f"kernel/{name}": value for name, value in self.kernel_.parameters.items()}
        first, second = self._sites
        return {"x": self._x, "first": first, "second": second, "numbers": numbers, **named}

    def _adopt(self, tensors: dict[str, Tensor]) -> None:
        named = {k.removeprefix("kernel/"): v for k, v in tensors.items() if "/" in k}
        self.kernel_ = (self.kernel or RBF()).replaced(named)
        self._x, self._sites = tensors["x"], (tensors["first"], tensors["second"])
        self.mean_, self.noise_ = tensors["numbers"].tolist()
        self._solve()

    def _summary_lines(self) -> list[str]:
        words = [f"{len(self._x)} rows; {self.kernel_!r}"]
        if self.likelihood is None:
            words.append(f"noise {self.noise_:.4g}, mean {self.mean_:.4g}")
        return words


_Fitted = tuple[Kernel, float, Natural, Report]


@dataclass(frozen=True)
class _Fit:
    """One fit to rows x and targets y; `tell` reports each value of the objective."""

    model: GP
    x: Tensor
    y: Tensor
    tell: Callable[[float], None]

    def run(self, start: dict[str, Tensor]) -> _Fitted:
        """Kernel, noise, sites and report from one start."""
        return self._fit_exactly(start) if self.model.likelihood is None else self._fit_sites(start)

    def _kernel(self, parameters: dict[str, Tensor]) -> Kernel:
        of_kernel = {name: value for name, value in parameters.items() if name != "noise"}
        return (self.model.kernel or RBF()).replaced(of_kernel)

    def _fit_exactly(self, start: dict[str, Tensor]) -> _Fitted:
        def evidence(parameters: dict[str, Tensor]) -> Tensor:
            kernel, noise = self._kernel(parameters), parameters["noise"]
            covariance = kernel.covariance(self.x, self.x)
            with torch.no_grad():
                sites = self._gaussian_sites(noise)
                process = Process.of(covariance, self.model.mean_, sites, kernel)
                slope, value = process.slope(), evidence_of(process, self.y)
            in_noise = with_slopes(value, (noise.square(), slope.trace()))
            return in_noise + with_slopes(torch.zeros_like(slope), (covariance, slope)).sum()

        learned = set(start) if self.model.learn else set()
        learned = learned - {"noise"} if self.model.noise else learned | {"noise"}
        best = climbed(evidence, start, learned, passes=self.model.passes, tell=self.tell)
        noise = best.parameters["noise"]
        report = Report(best.trace, best.converged, best.why)
        return self._kernel(best.parameters), float(noise), self._gaussian_sites(noise), report

    @torch.no_grad()
    def _gaussian_sites(self, noise: Tensor) -> Natural:
        """The sites of Gaussian targets, `λ̃ = (τ y, −τ/2)`, which do not depend on the belief."""
        precision = noise**-2 * torch.ones_like(self.y)
        return precision * self.y, -0.5 * precision

    def _fit_sites(self, start: dict[str, Tensor]) -> _Fitted:
        sites = [_sites.nothing(self.y)]

        def bound(parameters: dict[str, Tensor]) -> Tensor:
            kernel = self._kernel(parameters)
            covariance = kernel.covariance(self.x, self.x)
            settled = self._settle(kernel, covariance.detach(), sites[-1], _COARSE)
            # The next evaluation starts from the fixed point of this one.
            sites[-1] = settled.sites
            process = Process.of(covariance.detach(), self.model.mean_, settled.sites, kernel)
            slope = process.slope()
            pairs = with_slopes(torch.zeros_like(slope), (covariance, slope))
            return settled.look.elbo + pairs.sum()

        learned = set(start) if self.model.learn else set()
        best = climbed(bound, start, learned, passes=self.model.passes, tell=self.tell)
        kernel = self._kernel(best.parameters)
        covariance = kernel.covariance(self.x, self.x)
        first = sites[-1] if learned else _sites.nothing(self.y)
        last = self._settle(kernel, covariance, first, self.model.tol)
        trace = (*best.trace, *last.trace[1:]) if learned else tuple(last.trace)
        done = last.converged and best.converged
        why = best.why if last.converged and learned else last.why
        return kernel, 0.0, last.sites, Report(trace, done, why)

    def _settle(
        self, kernel: Kernel, covariance: Tensor, sites: Natural, tolerance: float
    ) -> _sites.Settled:
        def solve(now: Natural) -> _sites.Marginals:
            return Process.of(covariance, self.model.mean_, now, kernel).marginals()

        return _sites.settle(
            solve, self.model._likelihood(1.0), self.y, sites, passes=self.model.passes,
            tolerance=tolerance, rate=self.model.rate,
        )  # fmt: skip


def _check_likelihood(likelihood: Likelihood, noise: float | None) -> None:
    """Refuses likelihoods that need several functions or learn their noise."""
    name = type(likelihood).__name__
    if not isinstance(likelihood, Likelihood):
        raise TypeError(
            f"GP: likelihood is a Likelihood, such as br.PoissonLikelihood(); got {likelihood!r}."
        )
    if noise is not None:
        raise ValueError(f"noise belongs to regression; {name} has its own.")
    if likelihood.num_outputs(1) != 1 or likelihood.distribution_class.class_numbers:
        raise TypeError(
            f"GP has one function, and {name} needs several outputs for each target. Take "
            "br.BernoulliLikelihood() for each class against the rest."
        )
    if likelihood.learns:
        raise TypeError(
            f"{name} would learn its noise step by step; leave the likelihood out, and GP finds "
            "the noise of the largest evidence: GP(noise=None)."
        )


def _last(fitted: _Fitted) -> float:
    return fitted[3].objective[-1]
