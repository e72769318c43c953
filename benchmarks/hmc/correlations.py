"""Predictive variances of methods compared with those of NUTS, by trial."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bayesrule.app.provenance import machine, versions
from bayesrule.app.recipe import refuse_unknown
from bayesrule.expectations import AtMean
from bayesrule.likelihoods import GaussianLikelihood
from bayesrule.methods import find
from bayesrule.training.checkpoint import CheckpointError
from bayesrule.training.models import mlp
from bayesrule.training.train import TrainingError
from benchmarks.hmc.reference import HIDDEN, PUBLISHED, TRAIN, Plan, correlation, variances
from benchmarks.kept_rows import kept_rows

EPOCHS = 3000
_EVERY_STEP = {
    "stats_every": 1,
    "inverse_every": 1,
    "draws": 10,
    "learning_rate": 0.05,
    "rate": 0.01,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "noisy_kfac": _EVERY_STEP,
    "noisy_tridiagonal": _EVERY_STEP,
    "noisy_full": _EVERY_STEP,
    "mean_field": {"learning_rate": 0.01},
}
"""Options by method, with the first learning rate; other methods have their own defaults."""
NAME = "hmc-correlations"
_FAILURES = (TrainingError, FloatingPointError, torch.linalg.LinAlgError)
Trial = dict[str, Any]
Place = tuple[str, str, int]


def trials(
    method: str, truths: Sequence[Trial], plan: Plan, epochs: int, options: Mapping[str, Any]
) -> list[Trial]:
    """The correlations of a method's variances with those of references on one set.

    They depend only on the arguments, so sets can be spread over processes.
    """
    begun, (name, *others) = time.perf_counter(), dict.fromkeys(one["set"] for one in truths)
    assert not others
    places = [{"method": method, "set": name, "trial": one["trial"]} for one in truths]
    try:
        numbers = [one["trial"] for one in truths]
        found = variances(method, name, numbers, plan, epochs, options)
    except _FAILURES as problem:
        return [{**place, "failed": f"{type(problem).__name__}: {problem}"} for place in places]
    seconds = (time.perf_counter() - begun) / len(truths)
    return [
        {
            **place,
            "correlation": correlation(own, torch.tensor(one["variance"], dtype=own.dtype)),
            "seconds": seconds,
            "options": dict(options),
        }
        for place, own, one in zip(places, found, truths, strict=True)
    ]


def check(methods: Sequence[str], options: Mapping[str, Mapping[str, Any]] = OPTIONS) -> None:
    """Refuses unknown methods and options, and methods without a variance."""
    for method in methods:
        make = find(method)
        own = options.get(make.__name__, {})
        refuse_unknown(make, own)
        learner = make(mlp(2, 1, HIDDEN), GaussianLikelihood(), num_data=TRAIN, **own)
        if isinstance(learner.predictive, AtMean):
            raise ValueError(f"{method} has no predictive variance; choose another method.")


def run(
    methods: Sequence[str],
    references: Sequence[Trial],
    plan: Plan,
    *,
    epochs: int = EPOCHS,
    options: Mapping[str, Mapping[str, Any]] = OPTIONS,
    known: Sequence[Trial] = (),
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """All trials that are not `known` yet; `keep` gets the whole result after each set."""
    names = list(dict.fromkeys(find(method).__name__ for method in methods))
    check(names, options)
    found = {_key(one): one for one in known if "failed" not in one}
    wanted = {(name, one["set"], one["trial"]): one for one in references for name in names}
    _same_options(found, wanted, options)
    missing = [place for place in wanted if place not in found]
    if there := len(wanted) - len(missing):
        progress(f"{there} of {len(wanted)} trials are there already")
    for (name, _), group in _together(missing).items():
        truths = [wanted[place] for place in group]
        own = trials(name, truths, plan, epochs, options.get(name, {}))
        found |= dict(zip(group, own, strict=True))
        there += len(group)
        progress(f"[{there}/{len(wanted)}] {_line(own)}")
        keep(document(plan, epochs, list(found.values())))
    return document(plan, epochs, list(found.values()))


def _key(one: Trial) -> Place:
    return one["method"], one["set"], one["trial"]


def _together(places: Sequence[Place]) -> dict[tuple[str, str], list[Place]]:
    """The trials by method and set."""
    groups: dict[tuple[str, str], list[Place]] = {}
    for place in places:
        groups.setdefault(place[:2], []).append(place)
    return groups


def _same_options(
    found: Mapping[Any, Trial], wanted: Mapping[Any, Trial], options: Mapping[str, Any]
) -> None:
    for place, one in found.items():
        mine = dict(options.get(place[0], {}))
        if place in wanted and one["options"] != mine:
            raise CheckpointError(
                f"There are trials of {place[0]} with {one['options']} already, these are to have "
                f"{mine}. Choose another file with --out."
            )


def _line(own: Sequence[Trial]) -> str:
    """The result of a set of trials, in words."""
    first, failed = own[0], [one for one in own if "failed" in one]
    what = f"{first['method']} on {first['set']}, {len(own)} trial{'s'[: len(own) > 1]}"
    if failed:
        return f"{what}: {len(failed)} failed, {failed[0]['failed']}"
    mean = statistics.mean(one["correlation"] for one in own)
    return f"{what}: correlation {mean:.3f}, {sum(one['seconds'] for one in own):.0f} s"


def document(plan: Plan, epochs: int, trials: Sequence[Trial]) -> dict[str, Any]:
    """The result as json."""
    return {
        "benchmark": NAME,
        "plan": {**plan.facts(), "epochs": epochs},
        "results": summary(trials),
        "trials": list(trials),
        "versions": versions(),
        "machine": machine(),
    }


def summary(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """The mean correlation and its standard error, by method and set."""
    groups: dict[tuple[str, str], list[Trial]] = {}
    for one in trials:
        groups.setdefault((one["method"], one["set"]), []).append(one)
    return [_result(*place, group) for place, group in groups.items()]


def _result(method: str, name: str, group: Sequence[Trial]) -> dict[str, Any]:
    values = [one["correlation"] for one in group if "failed" not in one]
    several = len(values) > 1
    return {
        "method": method,
        "set": name,
        "trials": len(values),
        "failed": len(group) - len(values),
        "correlation": statistics.mean(values) if values else math.nan,
        "error": statistics.stdev(values) / len(values) ** 0.5 if several else math.nan,
        "published": list(PUBLISHED.get(name, ())),
    }


def read(file: Path, plan: Plan, epochs: int) -> list[Trial]:
    """The trials in an earlier result; none if there is no file."""
    facts = {**plan.facts(), "epochs": epochs}
    known = kept_rows(file, NAME, facts, rows="trials", key=_key)
    # The correlation with a constant is not a number, which json calls null.
    return [
        {**one, "correlation": math.nan} if one.get("correlation", 0.0) is None else one
        for one in known
    ]
