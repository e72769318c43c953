"""Methods on the nine UCI regression sets, for the noisy natural gradient paper's tables."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesrule.app.provenance import machine, versions
from bayesrule.expectations import Draws
from bayesrule.training.checkpoint import CheckpointError
from bayesrule.training.many import fit_many
from bayesrule.training.train import Run, TrainingError
from benchmarks.data.uci import uci_set
from benchmarks.kept_rows import kept_rows
from benchmarks.regression import uci
from benchmarks.regression.ranks import summary
from benchmarks.regression.settings import Entry, Setting, Tagi, entries
from benchmarks.regression.tasks import PUBLISHED

TEST_DRAWS = 100
_FAILURES = (TrainingError, FloatingPointError, ValueError, torch.linalg.LinAlgError)


@dataclass(frozen=True)
class Plan:
    """What all rows of a result share.

    `splits` is the number of splits, by default all of the protocol; `epochs` replaces that of
    every setting.
    """

    splits: int | None = None
    epochs: int | None = None
    seed: int = 0


def run(
    methods: Sequence[str | Entry],
    sets: Sequence[str],
    *,
    two_layers: bool = False,
    plan: Plan | None = None,
    known: Sequence[dict[str, Any]] = (),
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
    progress: Callable[[str], None] = lambda _: None,
    bar: bool | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """All rows that are not `known` yet; `keep` gets the whole result after each.

    `methods` are names of `regression_settings.SETTINGS`, "tagi", or settings of your own.
    """
    plan = plan or Plan()
    chosen = [e for one in methods for e in ([one] if isinstance(one, Entry) else entries([one]))]
    names = list(dict.fromkeys(uci_set(one).name for one in sets))
    check(chosen, names, two_layers=two_layers, plan=plan, known=known)
    found = {key(one): one for one in known if "failed" not in one}
    wanted = [(name, entry) for name in names for entry in chosen]
    missing = [
        (name, entry) for name, entry in wanted if (entry.name, name, two_layers) not in found
    ]
    if done := len(wanted) - len(missing):
        progress(f"{done} of {len(wanted)} rows are there already")
    for name, group in _by_set(missing):
        data = uci.load(name, plan.splits)
        for entry in group:
            row = _row(entry, data, name, two_layers=two_layers, plan=plan, bar=bar, device=device)
            found[key(row)] = row
            done += 1
            progress(f"[{done}/{len(wanted)}] {line(row)}")
            keep(document(plan, _in_order(found.values(), names)))
    return document(plan, _in_order(found.values(), names))


def _in_order(rows: Iterable[dict[str, Any]], names: list[str]) -> list[dict[str, Any]]:
    """The rows set by set, those of other sets last."""
    return sorted(rows, key=lambda row: [*names, row["set"]].index(row["set"]))


def _by_set(missing: Iterable[tuple[str, Entry]]) -> list[tuple[str, list[Entry]]]:
    groups: dict[str, list[Entry]] = {}
    for name, entry in missing:
        groups.setdefault(name, []).append(entry)
    return list(groups.items())


def check(
    chosen: Sequence[Entry],
    names: Sequence[str],
    *,
    two_layers: bool,
    plan: Plan,
    known: Sequence[dict[str, Any]] = (),
) -> None:
    """Refuses what cannot be trained, and known rows of other settings, before training."""
    rows = {key(one): one for one in known}
    for name in names:
        task = uci_set(name)
        size = round(0.9 * task.rows)
        for entry in chosen:
            if isinstance(entry, Tagi):
                _check_tagi(entry, two_layers, plan)
                continue
            entry.learner(task.name, task.features, size, two_layers=two_layers, epochs=plan.epochs)
            row = rows.get((entry.name, task.name, two_layers), {})
            mine = json.loads(json.dumps(entry.facts(two_layers)))
            if row.get("options", mine) != mine:
                raise CheckpointError(
                    f"There is a row of {entry.name} on {name} with {row['options']} already, this "
                    f"one is to have {mine}. Choose another file with --out."
                )


def _check_tagi(entry: Tagi, two_layers: bool, plan: Plan) -> None:
    uci.check([], [entry.setting])
    if two_layers or plan.epochs is not None:
        what = "--two-layers" if two_layers else "--epochs"
        raise ValueError(
            f"tagi has one hidden layer and its own number of epochs here: leave out {what}, or "
            "tagi from --methods."
        )


def splits(data: uci.Splits) -> list[tuple[Tensor, Tensor]]:
    """The training parts (n, d) and (n, 1), without padding."""
    seen = ~data.y.squeeze(2).isnan()
    return [(x[own], y[own]) for x, y, own in zip(data.x, data.y, seen, strict=True)]


def train(
    setting: Setting,
    data: uci.Splits,
    name: str,
    *,
    two_layers: bool = False,
    plan: Plan | None = None,
    bar: bool | None = False,
    device: str = "cpu",
) -> list[Run]:
    """One net for each split, all at once if the method can."""
    plan, parts = plan or Plan(), splits(data)
    seeds = range(plan.seed * 1000, plan.seed * 1000 + len(parts))
    given: dict[str, Any] = {"two_layers": two_layers, "epochs": plan.epochs, "device": device}
    learners = [
        setting.learner(name, x.shape[1], len(y), seed=seed, **given)
        for (x, y), seed in zip(parts, seeds, strict=True)
    ]
    epochs, batch = setting.size(name, data.x.shape[1], plan.epochs)
    return fit_many(
        learners, parts, epochs=epochs, batch_size=batch, seeds=list(seeds), progress=bar
    )


def _row(
    entry: Entry, data: uci.Splits, name: str, *, two_layers: bool, plan: Plan, **how: Any
) -> dict[str, Any]:
    """One row of the table, trained by `train`; if that fails, the error."""
    place = {"entry": entry.name, "set": name, "two_layers": two_layers}
    try:
        if isinstance(entry, Tagi):
            found = uci.row(data, name, entry.setting, plan.seed)
        else:
            found = _scored(entry, data, name, two_layers=two_layers, plan=plan, **how)
    except _FAILURES as problem:
        return {**place, "failed": f"{type(problem).__name__}: {problem}"}
    return {**place, **found, "versions": versions(), "machine": machine()}


def _scored(
    setting: Setting, data: uci.Splits, name: str, *, two_layers: bool, plan: Plan, **how: Any
) -> dict[str, Any]:
    begun = time.perf_counter()
    runs = train(setting, data, name, two_layers=two_layers, plan=plan, **how)
    seconds = time.perf_counter() - begun
    pairs = zip(runs, data.x_test, strict=True)
    found = [one.predict(x, Draws(TEST_DRAWS), seed=plan.seed) for one, x in pairs]
    epochs, batch = setting.size(name, data.x.shape[1], plan.epochs)
    published = PUBLISHED[two_layers][name]
    return {
        "epochs": epochs,
        "batch_size": batch,
        "test_draws": TEST_DRAWS,
        **uci.scores(data, found),
        "published": {
            who: {what: list(pair) for what, pair in each.items()}
            for who, each in published.items()
        },
        "seconds": seconds,
        "device": how["device"],
        "options": setting.facts(two_layers),
    }


def key(row: dict[str, Any]) -> tuple[str, str, bool]:
    """Entry, set, and whether there are two hidden layers; older rows are TAGI's."""
    entry = row["entry"] if "entry" in row else f"tagi-{row['setting']}"
    return entry, row["set"], row.get("two_layers", False)


def document(plan: Plan, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The result as json."""
    found = {"benchmark": "uci", "plan": asdict(plan), "results": list(rows)}
    tagis = {one["setting"] for one in rows if "setting" in one}
    if tagis:
        settings = [name for name in uci.SETTINGS if name in tagis]
        found |= {
            "net": f"{uci.HIDDEN} ReLU units, batches of {uci.BATCH}",
            "settings": {name: uci.SETTINGS[name].title for name in settings},
            "counts": {name: uci.counts(rows, name) for name in settings},
        }
    return {**found, **summary(rows), "versions": versions(), "machine": machine()}


def read(file: Path, plan: Plan) -> list[dict[str, Any]]:
    """The rows in an earlier result; none if there is no file."""
    known = kept_rows(file, "uci", asdict(plan), rows="results", key=key)
    return [_numbers(one) for one in known]


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    """The row with NaN in place of json's null."""
    scores: dict[str, Any] = {
        name: {k: math.nan if v is None else v for k, v in row[name].items()}
        for name in ("rmse", "log_likelihood")
        if name in row
    }
    return {**row, **scores}


def line(row: dict[str, Any]) -> str:
    """A row in words."""
    name = f"{row['entry']} on {row['set']}{', two layers' if row['two_layers'] else ''}"
    if "failed" in row:
        return f"{name}: failed, {row['failed']}"
    return (
        f"{name}: RMSE {row['rmse']['mean']:.4g}, log-likelihood "
        f"{row['log_likelihood']['mean']:.4g}, {row['seconds']:.0f} s"
    )
