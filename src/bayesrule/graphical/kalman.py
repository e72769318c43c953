"""Linear-Gaussian state-space models: Kalman filter, smoother, forecasts and EM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from bayesrule.graphical import _chain_em, tables
from bayesrule.graphical._base import Model, Report
from bayesrule.graphical._climbing import climbed, show
from bayesrule.graphical._filtering import Array, Chain, Filtered, Smoothed, filtered, smoothed
from bayesrule.graphical._series_parts import Level, Part, chain_of, groups_of, variance_of
from bayesrule.graphical._supervised import need_rate
from bayesrule.likelihoods import Likelihood, Marginal, NormalTargets
from bayesrule.moments.quadrature import with_slopes
from bayesrule.predicting.prediction import Prediction
from bayesrule.tensors.unfit import whole_number
from bayesrule.training.progress import Progress

Numbers = Any
"""A number, an array, or nested lists of numbers; kept as tuples."""
_LEAST = 1e-8
"""The least variance of noise that EM learns, in units of the series' own."""
_FIELDS = tuple(Chain.__dataclass_fields__)


@dataclass(eq=False, repr=False, kw_only=True)
class Kalman(Model):
    """`z_t = A z_{t−1} + N(0, Q)`, `y_t = d + C z_t + N(0, R)`: exact beliefs along a series.

    Each step is conjugate Bayes, ρ = 1; Khan & Rue (2023), sec. 5.1. Missing values are NaN.

    - `parts`: what the series is the sum of, such as `(Trend(), Season(period=12))`; by default a
      `Level()`. Their variances and the noise maximise the evidence.
    - Or else a chain of `states` D: of `transition` A (D, D), `process` Q (D, D), `observation` C
      (P, D), `noise` R (P, P), `first_mean` and `first_covariance`, EM learns those that are not
      given; Shumway & Stoffer (1982).

    >>> y = [1.0, 1.2, float("nan"), 1.1, 0.9, 1.0]
    >>> Kalman(transition=1.0, observation=1.0, process=0.1, noise=0.1).fit(y).predict(2).mean
    tensor([0.9911, 0.9911], dtype=torch.float64)
    """

    parts: tuple[Part, ...] = ()
    states: int | None = None
    transition: Numbers = None
    process: Numbers = None
    observation: Numbers = None
    noise: Numbers = None
    offset: Numbers = None
    first_mean: Numbers = None
    first_covariance: Numbers = None
    passes: int = 500
    tol: float = 1e-7
    seed: int = 0

    def __post_init__(self) -> None:
        need_rate(self, 1.0, self.passes)
        if self.states is not None:
            whole_number("states", self.states)
        self.parts = tuple(self.parts)
        for part in self.parts:
            if not isinstance(part, Part):
                raise TypeError(f"Kalman: parts are such as Level() and Trend(); got {part!r}.")
        given = {name: getattr(self, name) for name in _FIELDS if getattr(self, name) is not None}
        if self.parts and (given or self.states):
            raise ValueError(
                f"Kalman: give parts or a chain, not both; got parts and {', '.join(given)}."
            )
        for name, value in given.items():
            setattr(self, name, _tuples(name, value))

    @property
    def _structured(self) -> bool:
        """Whether the series is a sum of parts."""
        return self.states is None and all(getattr(self, name) is None for name in _FIELDS)

    def fit(self, y: Any, *, progress: bool | None = None) -> Self:
        """Learns from a series (T,), or from several side by side (T, P)."""
        self._flat, series = _series(y)
        if np.isnan(series).all(0).any():
            raise ValueError("y has a column without any value.")
        with Progress(None, 0, "Kalman", progress) as bar:
            climb = self._variances if self._structured else self._em
            chain, report = climb(series, partial(show, bar))
        self._know(chain, series, report)
        return self

    def update(self, y: Any) -> Self:
        """Conditions on more steps of the series; the fitted parameters stay."""
        report = self._need_fit()
        series = np.concatenate([self._y, _series(y, self._y.shape[1])[1]])
        self._know(self.chain_, series, report)
        return self

    def _know(self, chain: Chain, series: Array, report: Report) -> None:
        self.chain_, self._y, self.report_ = chain, series, report
        self.filtered_: Filtered = filtered(chain, series)
        self.smoothed_: Smoothed = smoothed(chain, self.filtered_)

    def _variances(self, y: Array, tell: Callable[[float], None]) -> tuple[Chain, Report]:
        """Maximises the evidence over variances; the smoother gives its slope (Fisher's identity).

        EM has the same maximum but would crawl where a variance is nearly 0.
        """
        parts = self.parts or (Level(),)
        chain, groups = chain_of(parts, y), torch.as_tensor(groups_of(parts, y.shape[1]))
        first = torch.as_tensor(chain.process.diagonal().copy())
        start = {
            "process": torch.zeros(int(groups.max()) + 1).double().index_copy(0, groups, first),
            "noise": torch.as_tensor(chain.noise.diagonal().copy()),
        }

        def evidence(parameters: dict[str, Tensor]) -> Tensor:
            return _evidence(chain, y, parameters["process"][groups], parameters["noise"])

        best = climbed(evidence, start, set(start), passes=self.passes, tell=tell, far=1e8)
        last = best.parameters
        report = Report(best.trace, best.converged, best.why)
        return _with_variances(chain, last["process"][groups], last["noise"]), report

    def _em(self, y: Array, tell: Callable[[float], None]) -> tuple[Chain, Report]:
        chain, learn = self._first(y)
        floor = _LEAST * variance_of(y)
        trace: list[float] = []
        for _ in range(self.passes):
            forward = filtered(chain, y)
            trace.append(float(forward.log_probs.sum()))
            tell(trace[-1])
            if not learn:
                return chain, Report(tuple(trace), True, "exact: all parameters are given")
            if len(trace) > 1 and trace[-1] - trace[-2] < self.tol * len(y):
                why = f"a pass of EM gained less than {self.tol:g} a step"
                return chain, Report(tuple(trace), True, why)
            chain = _chain_em.maximised(chain, smoothed(chain, forward), y, learn, False)
            if "noise" in learn:
                chain = replace(chain, noise=_chain_em.lifted(chain.noise, floor))
        why = f"EM still gains after {self.passes} passes"
        return chain, Report((*trace, float(filtered(chain, y).log_probs.sum())), False, why)

    def _first(self, y: Array) -> tuple[Chain, list[str]]:
        """The chain to start from, and which of its parameters EM learns."""
        given = {name: np.asarray(getattr(self, name), dtype=np.float64) for name in _FIELDS
                 if getattr(self, name) is not None}  # fmt: skip
        states = self.states or _size(given)
        learn = [name for name in _chain_em.PARTS if name not in given]
        guess = _chain_em.start(y, states, self.seed) if learn else _chain_em.blank(y, states)
        shaped = {name: _shaped(name, v, getattr(guess, name)) for name, v in given.items()}
        for name in ("process", "noise", "first_covariance"):
            if name in shaped:
                _check_covariance(name, shaped[name], strict=name == "noise")
        return replace(guess, **shaped), learn

    @property
    def log_evidence(self) -> float:
        """`log p(y)` of all steps so far."""
        self._need_fit()
        return float(self.filtered_.log_probs.sum())

    def predict(self, steps: int = 1) -> Prediction:
        """The forecast of the next `steps` targets, (steps,) or (steps, P)."""
        self._need_fit()
        whole_number("steps", steps)
        chain, means, covariances = self.chain_, [], []
        mean, cover = self.filtered_.means[-1], self.filtered_.covariances[-1]
        for _ in range(steps):
            mean = chain.transition @ mean
            cover = chain.transition @ cover @ chain.transition.T + chain.process
            means.append(mean)
            covariances.append(cover)
        return self._prediction(np.array(means), np.array(covariances))

    def smooth(self) -> Prediction:
        """Each step's target given all observed ones, (T,) or (T, P): fills gaps."""
        self._need_fit()
        return self._prediction(self.smoothed_.means, self.smoothed_.covariances)

    def score(self, y: Any) -> float:
        """The mean of `log p(y_t | all before)` over steps y that follow the fitted ones."""
        self._need_fit()
        more = _series(y, self._y.shape[1])[1]
        forward = filtered(self.chain_, np.concatenate([self._y, more]))
        seen = (~np.isnan(more)).any(1)
        return float(forward.log_probs[len(self._y) :][seen].mean())

    def sample(self, num: int = 1, seed: int = 0) -> Tensor:
        """`num` draws of the series without noise, given all targets, (num, T) or (num, T, P)."""
        self._need_fit()
        rng, chain, forward = np.random.default_rng(seed), self.chain_, self.filtered_
        back, steps = self.smoothed_.back, len(self._y)
        drawn = np.empty((num, steps, chain.states))
        drawn[:, -1] = forward.means[-1] + _noise(forward.covariances[-1], num, rng)
        for t in range(steps - 2, -1, -1):
            kept = np.eye(chain.states) - back[t] @ chain.transition
            cover = kept @ forward.covariances[t] @ kept.T + back[t] @ chain.process @ back[t].T
            away = drawn[:, t + 1] - forward.predicted_means[t + 1]
            drawn[:, t] = forward.means[t] + away @ back[t].T + _noise(cover, num, rng)
        outputs = torch.as_tensor(drawn @ chain.observation.T + chain.offset)
        return outputs[..., 0] if self._flat else outputs

    def _prediction(self, means: Array, covariances: Array) -> Prediction:
        chain = self.chain_
        mean = means @ chain.observation.T + chain.offset
        spread = np.einsum("pi,tij,pj->tp", chain.observation, covariances, chain.observation)
        noise = np.broadcast_to(chain.noise.diagonal(), mean.shape).copy()
        parts = [torch.as_tensor(part) for part in (mean, spread, noise)]
        centre, epistemic, aleatoric = (part[:, 0] if self._flat else part for part in parts)
        targets = NormalTargets(centre, (epistemic + aleatoric).sqrt())
        return Prediction.closed_form(Marginal(targets, centre, epistemic, aleatoric))

    def _learned(self) -> dict[str, Tensor]:
        self._need_fit()
        held = {name: torch.as_tensor(getattr(self.chain_, name)) for name in _FIELDS}
        return {**held, "y": torch.as_tensor(self._y), "flat": torch.tensor(float(self._flat))}

    def _adopt(self, tensors: dict[str, Tensor]) -> None:
        self._flat, series = bool(tensors["flat"]), tensors["y"].numpy()
        chain = Chain(**{name: tensors[name].numpy() for name in _FIELDS})
        self._know(chain, series, self._need_fit())

    def _summary_lines(self) -> list[str]:
        missing = int(np.isnan(self._y).sum())
        noise = ", ".join(f"{v:.4g}" for v in self.chain_.noise.diagonal()[:4])
        moved = ", ".join(f"{v:.3g}" for v in self.chain_.process.diagonal()[:8])
        return [
            f"{len(self._y)} steps of {self._y.shape[1]} series, {missing} values missing; "
            f"{self.chain_.states} states",
            f"variances of the states' moves [{moved}], of the noise [{noise}]",
        ]


def _evidence(chain: Chain, y: Array, process: Tensor, noise: Tensor) -> Tensor:
    """`log p(y)`, with the slopes `½ N (E[e²] / v² − 1 / v)` in the variances v of errors e."""
    now = _with_variances(chain, process, noise)
    forward = filtered(now, y)
    better = _chain_em.maximised(now, smoothed(now, forward), y, ("process", "noise"), True)
    value = torch.tensor(forward.log_probs.sum())
    counts = len(y) - 1.0, float((~np.isnan(y)).any(1).sum())
    for old, new, count in zip(
        (process, noise), (better.process, better.noise), counts, strict=True
    ):
        v = old.detach()
        slope = 0.5 * count * (torch.as_tensor(new.diagonal().copy()) / v - 1.0) / v
        value = value + with_slopes(torch.zeros_like(v), (old, slope)).sum()
    return value


def _with_variances(chain: Chain, process: Tensor, noise: Tensor) -> Chain:
    held = [np.diag(v.detach().numpy()) for v in (process, noise)]
    return replace(chain, process=held[0], noise=held[1])


def _series(y: Any, columns: int | None = None) -> tuple[bool, Array]:
    """A series as (T, P) in float64, and whether it came as (T,)."""
    flat = np.ndim(y) == 1 if not isinstance(y, Tensor) else y.ndim == 1
    if flat:
        y = y[:, None] if isinstance(y, Tensor) else np.asarray(y, dtype=np.float64)[:, None]
    table = tables.matrix(y, "y", rows=2 if columns is None else 1, columns=columns, missing=True)
    return flat, table.double().cpu().numpy()


def _tuples(name: str, value: Any) -> Any:
    """Numbers as nested tuples, which a file can hold."""
    if isinstance(value, Likelihood):
        raise TypeError(
            f"Kalman: {name} is a number or a matrix. {type(value).__name__} is not conjugate to "
            "Gaussian states, which is needed for an exact answer; over time as an input, "
            "GP(likelihood=...) lets a Gaussian site stand in for it."
        )
    array = np.asarray(value, dtype=np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"Kalman: {name} must be finite; got {array.tolist()}.")
    return _nested(array.tolist())


def _nested(value: Any) -> Any:
    return tuple(_nested(item) for item in value) if isinstance(value, list) else value


def _size(given: dict[str, Array]) -> int:
    """The number of states, from the shape of the given matrices."""
    for name, axis in (("transition", 0), ("process", 0), ("observation", 1)):
        if name in given:
            return given[name].shape[axis] if given[name].ndim > axis else 1
    return len(np.atleast_1d(next(iter(given.values()))))


def _shaped(name: str, value: Array, like: Array) -> Array:
    """A parameter in its shape; a number stands for a multiple of the identity, or all entries."""
    if value.ndim == 0:
        square = like.ndim == 2 and like.shape[0] == like.shape[1]
        return float(value) * (np.eye(len(like)) if square else np.ones(like.shape))
    if value.shape != like.shape:
        raise ValueError(f"Kalman: {name} has the shape {value.shape}; it should be {like.shape}.")
    return value


def _check_covariance(name: str, value: Array, *, strict: bool) -> None:
    lowest = float(np.linalg.eigvalsh(value).min())
    fine = lowest > 0.0 if strict else lowest >= -1e-12 * float(np.abs(value).max())
    if not (fine and np.allclose(value, value.T)):
        kind = "positive definite" if strict else "positive semi-definite"
        raise ValueError(f"Kalman: {name} must be symmetric and {kind}; got {value.tolist()}.")


def _noise(covariance: Array, num: int, rng: np.random.Generator) -> Array:
    values, vectors = np.linalg.eigh(covariance)
    white = rng.normal(size=(num, len(covariance)))
    return np.asarray((white * np.sqrt(values.clip(0.0))) @ vectors.T)
