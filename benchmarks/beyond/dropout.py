"""Dropout as a belief beside the same net without it, on splits of a UCI set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import bayesrule as br
from bayesrule.app.provenance import machine, versions
from bayesrule.training.models import mlp
from benchmarks.data.uci import uci

HIDDEN, EPOCHS, BATCH = (50, 50), 400, 32
LEVELS = torch.arange(1, 20, dtype=torch.float64) / 20.0
METHODS = ("map", "dropout")


def run(
    name: str, splits: int, drop: float, progress: Callable[[str], None] = print
) -> dict[str, Any]:
    """Both methods on all splits."""
    rows = []
    for split in range(splits):
        for method in METHODS:
            rows.append(_one(name, split, method, drop))
            shown = {k: round(v, 3) for k, v in rows[-1].items() if isinstance(v, float)}
            progress(f"split {split}, {method}: {shown}")
    return {
        "task": "dropout",
        "set": name,
        "splits": splits,
        "drop": drop,
        "hidden": HIDDEN,
        "epochs": EPOCHS,
        "results": rows,
        "means": {one: _means([row for row in rows if row["method"] == one]) for one in METHODS},
        "versions": versions(),
        "machine": machine(),
    }


def better(result: dict[str, Any]) -> bool:
    """Whether dropout has the better log-likelihood and the better calibration on average."""
    plain, dropped = (result["means"][one] for one in METHODS)
    nearer = dropped["calibration_error"] < plain["calibration_error"]
    return bool(nearer and dropped["log_likelihood"] > plain["log_likelihood"])


def _means(rows: list[dict[str, Any]]) -> dict[str, float]:
    names = [name for name, value in rows[0].items() if isinstance(value, float)]
    return {name: sum(row[name] for row in rows) / len(rows) for name in names}


def _one(name: str, split: int, method: str, drop: float) -> dict[str, Any]:
    data = uci(name, split)
    scale = [_scale(torch.as_tensor(one)) for one in (data.x_train, data.y_train[:, None])]
    x, y = (_scaled(one, by) for one, by in zip((data.x_train, data.y_train), scale, strict=True))
    inputs, targets = (
        _scaled(one, by) for one, by in zip((data.x_test, data.y_test), scale, strict=True)
    )
    model = mlp(x.shape[1], 1, hidden=HIDDEN, seed=split)
    options = {"drop": drop} if method == "dropout" else {}
    learner = getattr(br, method)(model, br.GaussianLikelihood(), num_data=len(x), **options)
    found = br.fit(learner, (x, y), epochs=EPOCHS, batch_size=BATCH, seed=split, progress=False)
    p = found.predict(inputs)
    return {
        "method": method,
        "split": split,
        "log_likelihood": float(p.log_prob(targets).mean() - scale[1][1].log().sum()),
        "rmse": float((p.mean - targets).square().mean().sqrt() * scale[1][1]),
        "calibration_error": _calibration_error(p, targets),
    }


def _scale(values: Tensor) -> tuple[Tensor, Tensor]:
    return values.mean(0), values.std(0).clamp_min(1e-12)


def _scaled(values: Any, by: tuple[Tensor, Tensor]) -> Tensor:
    rows = torch.as_tensor(values)
    rows = rows if rows.ndim == 2 else rows[:, None]
    return ((rows - by[0]) / by[1]).float()


def _calibration_error(p: Any, y: Tensor) -> float:
    """The mean distance of how often targets lie within intervals from how often they should."""
    gaps = []
    for level in LEVELS.tolist():
        low, high = p.interval(level)
        gaps.append(abs(float(((y >= low) & (y <= high)).double().mean()) - level))
    return sum(gaps) / len(gaps)
