"""Are posteriors at their defaults calibrated? Nets with weights from the prior make the data.

If a posterior is calibrated on average, its 90 % intervals hold nine in ten of all new targets,
and of the values of the function itself, inside of the data's range and outside.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor, nn

import bayesrule as br
from bayesrule.learner import Learner
from bayesrule.methods import Need
from bayesrule.predicting.prediction import Prediction
from bayesrule.training.train import Run
from benchmarks.defaults.rows import Row, Rows
from benchmarks.defaults.variants import VARIANTS, Variant

TRAIN, TEST = 50, 100
LEVELS = (0.5, 0.9, 0.95)
RANGE = 2.0  # training inputs lie in [-RANGE, RANGE], those outside as far as OUTSIDE
OUTSIDE = 3.0
REFERENCE_STEPS = 5_000
APART = 1_000_003  # between the seeds of an ensemble's members
_NORMAL_90 = 1.6449
Figures = dict[str, float]


@dataclass(frozen=True)
class Plan:
    """What all rows of a result share; without `epochs` they are the default ones.

    Predictions are those of `members` nets together, which differ in their first weights.
    """

    sets: int = 200
    noise: float = 0.1
    epochs: int | None = None
    seed: int = 0
    members: int = 1


@dataclass(frozen=True)
class Simulated:
    """Training data, and test inputs with targets and the function's values there."""

    data: tuple[Tensor, Tensor]
    parts: dict[str, tuple[Tensor, Tensor, Tensor]]


def net() -> nn.Sequential:
    """The net 1-20-1 that makes the data and learns from them."""
    return nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))


@torch.no_grad()
def simulated(seed: int, noise: float) -> Simulated:
    """A data set of a net whose weights are drawn from N(0, 1)."""
    generator, truth = Generator().manual_seed(seed), net()
    for parameter in truth.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    x, inside, far, sign = (torch.rand(n, 1, generator=generator) for n in (TRAIN, *[TEST] * 3))
    outside = (RANGE + (OUTSIDE - RANGE) * far) * torch.where(sign < 0.5, -1.0, 1.0)
    places = {"inside": RANGE * (2.0 * inside - 1.0), "outside": outside}

    def targets(at: Tensor) -> Tensor:
        return truth(at) + noise * torch.randn(at.shape, generator=generator)

    x = RANGE * (2.0 * x - 1.0)
    data = x, targets(x)
    return Simulated(data, {name: (at, targets(at), truth(at)) for name, at in places.items()})


REFERENCE = "map-5000"
_UNFIT = {Need.LINEAR_MODEL, Need.SCALED_LAYERS}
ENTRIES = {
    **{name: one for name, one in VARIANTS.items() if _UNFIT.isdisjoint(one.needs)},
    REFERENCE: VARIANTS["map"],
}
"""The available entries; `map-5000` shows how close the mean can come."""


def coverage(names: Sequence[str], plan: Plan) -> Rows:
    """A row for each named entry."""
    work = partial(row, plan=plan)
    return Rows("coverage", asdict(plan), [{"method": name} for name in names], work)


def row(method: str, plan: Plan) -> Row:
    """Coverage, error and deviation of one entry over all data sets."""
    torch.set_num_threads(1)
    seeds = range(plan.seed, plan.seed + plan.sets)
    sets, begun = [simulated(seed, plan.noise) for seed in seeds], time.perf_counter()
    build = partial(_learner, ENTRIES[method], plan.noise)
    options = training(method, plan.epochs)
    data = [one.data for one in sets]
    members = [
        trained(build, data, [seed + k * APART for seed in seeds], **options)
        for k in range(plan.members)
    ]
    runs = [together(each) for each in zip(*members, strict=True)]
    seconds = time.perf_counter() - begun
    pairs = [(run, one) for run, one in zip(runs, sets, strict=True) if run is not None]
    each = [_by_part(run.predict, one) for run, one in pairs]
    epochs = [float(len(run.history)) for run, _ in pairs]
    means = {"epochs": sum(epochs) / max(len(epochs), 1), "seconds": seconds}
    return {**_means(each), "diverged": len(sets) - len(pairs), **means}


def trained(
    build: Callable[[Tensor, Tensor], Learner],
    data: Sequence[tuple[Tensor, Tensor]],
    seeds: list[int],
    **options: Any,
) -> list[Run | None]:
    """A run for each set; None if training ends in an error.

    They train together. A failure stops all, so the others are trained again, by halves.
    """
    try:
        return list(br.fit_many(build, data, seeds=seeds, progress=False, **options))
    except Exception:
        if len(data) == 1:
            return [None]
    middle = len(data) // 2
    parts = (slice(middle), slice(middle, None))
    return [run for p in parts for run in trained(build, data[p], seeds[p], **options)]


def together(members: Sequence[Run | None]) -> Run | None:
    """The ensemble of the trainings of one set; None if one of them failed."""
    runs = [run for run in members if run is not None]
    return Run.together(runs) if len(runs) == len(members) else None


def _learner(variant: Variant, noise: float, x: Tensor, y: Tensor) -> Learner:
    """The learner of a data set, from torch's own first weights."""
    return variant.learner(net(), br.GaussianLikelihood(noise=noise), len(y))


def training(method: str, epochs: int | None) -> dict[str, Any]:
    """The arguments of `fit_many`; none if it can follow its own defaults.

    >>> training("vogn", None), training("vogn", 7)
    ({}, {'epochs': 7})
    """
    if method == REFERENCE:
        batch = 32
        return {"epochs": REFERENCE_STEPS // math.ceil(TRAIN / batch), "batch_size": batch}
    return {} if epochs is None else {"epochs": epochs}


def _by_part(predict: Callable[[Tensor], Prediction], one: Simulated) -> dict[str, Figures]:
    return {part: figures(predict(x), y, f) for part, (x, y, f) in one.parts.items()}


def figures(prediction: Prediction, y: Tensor, f: Tensor) -> Figures:
    """The shares of targets and of the function in their intervals, error and deviation.

    >>> from types import SimpleNamespace
    >>> at = torch.zeros(1, 1)
    >>> belief = SimpleNamespace(mean=at, epistemic=at + 1, interval=lambda q: (at - q, at + q))
    >>> {k: round(v, 2) for k, v in figures(belief, at + 0.7, at + 1.6).items()}
    {'50': 0.0, '90': 1.0, '95': 1.0, 'f90': 1.0, 'rmse': 1.6, 'epistemic': 1.0}
    """
    found = {}
    for level in LEVELS:
        lower, upper = prediction.interval(level)
        found[f"{100 * level:.0f}"] = float(br.metrics.coverage(lower, upper, y))
    error, deviation = prediction.mean - f, prediction.epistemic.sqrt()
    return {
        **found,
        "f90": float((error.abs() <= _NORMAL_90 * deviation).double().mean()),
        "rmse": float(br.metrics.rmse(prediction.mean, f)),
        "epistemic": float(deviation.mean()),
    }


def _means(each: Sequence[dict[str, Figures]]) -> dict[str, Any]:
    """Means over data sets and their standard errors; the RMSE is that of all points together."""
    if not each:
        return {"failed": "training ended in an error on all data sets"}
    return {part: _summary([one[part] for one in each]) for part in each[0]}


def _summary(each: Sequence[Figures]) -> dict[str, Any]:
    columns = {name: torch.tensor([one[name] for one in each]).double() for name in each[0]}
    means = {name: float(values.mean()) for name, values in columns.items()}
    root, num = float(columns["rmse"].square().mean().sqrt()), len(each)
    error = float(columns["f90"].std() / math.sqrt(num)) if num > 1 else math.nan
    worst = float(columns["rmse"].max())
    return {**means, "rmse": root, "worst_rmse": worst, "f90_error": error}
