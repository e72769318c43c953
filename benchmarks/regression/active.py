"""Active learning on UCI sets, compared with the noisy natural gradient paper."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesrule.app.data.errors import nearest
from bayesrule.app.provenance import machine, versions
from bayesrule.app.recipe import Recipe
from bayesrule.expectations import AtMean
from bayesrule.explore.acquisitions import BALD, EPIG, Criterion, LargestVariance, Random
from bayesrule.explore.active import active_learning
from bayesrule.methods import find
from bayesrule.tensors import seeds
from bayesrule.training.checkpoint import CheckpointError
from bayesrule.training.train import TrainingError
from benchmarks.data.uci import uci_arrays, uci_set

HIDDEN = (10,)
START, TEST, STEPS = 20, 100, 9

CRITERIA: dict[str, Criterion] = {
    "random": Random(),
    "variance": LargestVariance(),
    "bald": BALD(),
    "epig": EPIG(),
}

Figures = dict[str, tuple[float, float]]


def _row(*pairs: tuple[float, float]) -> dict[str, Figures]:
    names = ("NNG-MVG", "PBP", "HMC")
    halves = zip(names, pairs[0::2], pairs[1::2], strict=True)
    return {name: {"random": random, "variance": active} for name, random, active in halves}


PUBLISHED: dict[str, dict[str, Figures]] = {
    "boston": _row(
        (6.364, 0.287), (5.139, 0.033), (6.716, 0.500), (5.480, 0.175), (5.750, 0.222),
        (5.156, 0.150),
    ),
    "concrete": _row(
        (11.869, 0.187), (11.592, 0.117), (12.417, 0.392), (11.894, 0.254), (10.564, 0.198),
        (11.484, 0.191),
    ),
    "energy": _row(
        (3.419, 0.054), (3.035, 0.038), (3.743, 0.121), (3.399, 0.064), (3.264, 0.067),
        (3.118, 0.062),
    ),
    "kin8nm": _row(
        (0.247, 0.002), (0.236, 0.002), (0.259, 0.006), (0.254, 0.005), (0.226, 0.004),
        (0.223, 0.003),
    ),
    "naval": _row(
        (0.010, 0.000), (0.009, 0.000), (0.015, 0.000), (0.016, 0.000), (0.013, 0.000),
        (0.012, 0.000),
    ),
    "power": _row(
        (5.821, 0.056), (5.421, 0.028), (5.312, 0.108), (5.068, 0.082), (5.229, 0.097),
        (4.800, 0.074),
    ),
    "wine_red": _row(
        (0.773, 0.009), (0.841, 0.007), (0.945, 0.044), (0.809, 0.011), (0.740, 0.011),
        (0.749, 0.010),
    ),
    "yacht": _row(
        (7.142, 0.171), (6.245, 0.068), (5.388, 0.339), (4.508, 0.158), (4.644, 0.237),
        (3.211, 0.120),
    ),
}  # fmt: skip
"""Zhang et al. (2018), Table 2: average test RMSE and its standard error."""


@dataclass(frozen=True)
class Trial:
    """One run of active learning; trials of one number share the rows for all methods."""

    method: str
    set: str
    criterion: str
    trial: int


@dataclass(frozen=True)
class Plan:
    """What all trials share; results of different plans are never mixed."""

    epochs: int | None = None
    seed: int = 0
    hidden: tuple[int, ...] = HIDDEN
    start: int = START
    test: int = TEST
    steps: int = STEPS

    def facts(self) -> dict[str, Any]:
        """The plan as json."""
        return {**asdict(self), "hidden": list(self.hidden)}

    def recipe(self, trial: Trial) -> Recipe:
        """The training recipe, with the same epochs and batches for any number of labels."""
        seed = seeds.key(self.seed, trial.trial)
        recipe = Recipe(trial.method, hidden=self.hidden, epochs=self.epochs, seed=seed)
        return recipe.for_data(self.start + self.steps)


def check(methods: Sequence[str], sets: Sequence[str], criteria: Sequence[str]) -> None:
    """Refuses unknown names before anything is trained."""
    for name in sets:
        uci_set(name)
    for name in criteria:
        if name not in CRITERIA:
            raise ValueError(
                f"Unknown criterion {name!r}.{nearest(name, CRITERIA)} Criteria: "
                f"{', '.join(CRITERIA)}."
            )
    if not any(fits(method, name) for method in methods for name in criteria):
        raise ValueError(
            f"{', '.join(methods)} has no predictive variance to choose by; only the criterion "
            "random goes with it."
        )


def fits(method: str, criterion: str) -> bool:
    """Whether a criterion works with a method: point estimates have no uncertainty."""
    learner = Recipe(find(method).__name__, hidden=(2,)).learner(2, 1, 10)
    return criterion == "random" or not isinstance(learner.predictive, AtMean)


def trials(
    methods: Sequence[str], sets: Sequence[str], criteria: Sequence[str], num: int
) -> Iterator[Trial]:
    """All combinations that fit; first trials come first, so that a table is soon complete."""
    names = [uci_set(one).name for one in sets]
    pairs = [(find(m).__name__, c) for m in methods for c in criteria if fits(m, c)]
    for number in range(num):
        for name in names:
            for method, criterion in pairs:
                yield Trial(method, name, criterion, number)


def rows(num: int, plan: Plan, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """The first labelled rows, the test rows and the pool, all at random."""
    order = torch.randperm(num, generator=seeds.generator("cpu", plan.seed, number))
    first, test, rest = order.split([plan.start, plan.test, num - plan.start - plan.test])
    return first, test, rest


def run_trial(trial: Trial, plan: Plan) -> dict[str, Any]:
    """The test scores after each label, or the error if training fails."""
    x, y = (torch.from_numpy(part) for part in uci_arrays(trial.set))
    first, test, rest = rows(len(y), plan, trial.trial)
    pool = torch.cat([first, rest])
    recipe = plan.recipe(trial)
    begun = time.perf_counter()
    try:
        run = active_learning(
            lambda num: recipe.learner(x.shape[1], 1, num),
            pool=(x[pool], y[pool].unsqueeze(1)),
            test=(x[test], y[test].unsqueeze(1)),
            start=range(plan.start),
            criterion=CRITERIA[trial.criterion],
            steps=plan.steps,
            seed=recipe.seed,
            epochs=recipe.epochs,
            batch_size=recipe.batch_size,
        )
    except (ValueError, FloatingPointError, TrainingError, torch.linalg.LinAlgError) as problem:
        return {**asdict(trial), "error": f"{type(problem).__name__}: {problem}"}
    return {
        **asdict(trial),
        "rmse": run.rmse.tolist(),
        "log_likelihood": run.log_likelihood.tolist(),
        "chosen": pool[run.chosen].tolist(),
        "seconds": time.perf_counter() - begun,
    }


def run(
    methods: Sequence[str],
    sets: Sequence[str],
    criteria: Sequence[str],
    *,
    num: int = 40,
    plan: Plan | None = None,
    known: Sequence[dict[str, Any]] = (),
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """All trials that are not `known` yet; `keep` gets the whole result after each of them."""
    check(methods, sets, criteria)
    plan = plan or Plan()
    wanted = list(trials(methods, sets, criteria, num))
    for method in methods:
        if left := [name for name in criteria if not fits(method, name)]:
            progress(f"{method} has no predictive variance, so it goes without {', '.join(left)}")
    found = {_key(one): one for one in known if "error" not in one}
    missing = [trial for trial in wanted if trial not in found]
    if len(missing) < len(wanted):
        progress(f"{len(wanted) - len(missing)} of {len(wanted)} trials are there already")
    for done, trial in enumerate(missing, len(wanted) - len(missing) + 1):
        found[trial] = run_trial(trial, plan)
        progress(f"[{done}/{len(wanted)}] {_line(found[trial])}")
        keep(document(plan, list(found.values())))
    return document(plan, list(found.values()))


def document(plan: Plan, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The result as json."""
    return {
        "benchmark": "active",
        "plan": plan.facts(),
        "results": summary(found),
        "trials": list(found),
        "versions": versions(),
        "machine": machine(),
    }


def summary(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """By method, set and criterion: scores after the last label, and the RMSE of all fits."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for one in found:
        groups.setdefault((one["method"], one["set"], one["criterion"]), []).append(one)
    return [_result(*names, group) for names, group in sorted(groups.items())]


def _result(method: str, name: str, criterion: str, group: list[dict[str, Any]]) -> dict[str, Any]:
    good = [one for one in group if "error" not in one]
    return {
        "method": method,
        "set": name,
        "criterion": criterion,
        "trials": len(good),
        "failed": len(group) - len(good),
        "rmse": _mean([one["rmse"][-1] for one in good]),
        "average_rmse": _mean([statistics.mean(one["rmse"]) for one in good]),
        "log_likelihood": _mean([one["log_likelihood"][-1] for one in good]),
        "published": {
            who: list(figures[criterion])
            for who, figures in PUBLISHED.get(name, {}).items()
            if criterion in figures
        },
        "seconds": sum(one["seconds"] for one in good),
    }


def _mean(values: Sequence[float]) -> dict[str, float]:
    """The mean over trials and its standard error."""
    if not values:
        return {"mean": math.nan, "error": math.nan}
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.nan
    return {"mean": statistics.mean(values), "error": error}


def read(file: Path, plan: Plan) -> list[dict[str, Any]]:
    """The trials in an earlier result; none if there is no file."""
    if not file.exists():
        return []
    try:
        found = json.loads(file.read_text())
        facts, known = found["plan"], list(found["trials"])
        for one in known:
            _key(one)
    except (ValueError, KeyError, TypeError) as problem:
        raise CheckpointError(
            f"'{file}' holds no result of this benchmark, so it is left as it is. Choose another "
            "file with --out."
        ) from problem
    for name, mine in plan.facts().items():
        if facts.get(name) != mine:
            raise CheckpointError(
                f"'{file}' has trials with {name}={facts.get(name)}, these are to have "
                f"{name}={mine}. Choose another file with --out."
            )
    return known


def _key(one: dict[str, Any]) -> Trial:
    return Trial(one["method"], one["set"], one["criterion"], one["trial"])


def _line(one: dict[str, Any]) -> str:
    what = f"{one['method']} on {one['set']}, {one['criterion']}, trial {one['trial'] + 1}: "
    if "error" in one:
        return f"{what}failed, {one['error']}"
    first, last = one["rmse"][0], one["rmse"][-1]
    return f"{what}RMSE {first:.4g} to {last:.4g}, {one['seconds']:.1f} s"
