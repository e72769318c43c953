"""Rankings of methods, from rows by set, part (seed or split) and method."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.defaults.rows import Row
from benchmarks.regression.ranks import places

REFERENCE = "map"
MARGIN = 0.05  # in nats: more than a constant differs from another one by its noise
Scores = dict[int, float]


def standings(rows: Sequence[Row]) -> dict[str, Any]:
    """Means by set and method, and each method compared with `REFERENCE` over all sets."""
    sets, methods = (list(dict.fromkeys(row[name] for row in rows)) for name in ("set", "method"))
    means = {
        name: {method: _means(own) for method in methods if (own := _of(rows, name, method))}
        for name in sets
    }
    ranks = [places({m: _worth(one) for m, one in means[name].items()}) for name in sets]
    return {
        "sets": means,
        "methods": {method: _over_sets(rows, method, sets, ranks) for method in methods},
    }


def _of(rows: Sequence[Row], name: str, method: str) -> list[Row]:
    return [row for row in rows if (row["set"], row["method"]) == (name, method)]


def _means(rows: Sequence[Row]) -> dict[str, Any]:
    """Means over the parts that did not fail."""
    good = [row for row in rows if "failed" not in row]
    found: dict[str, Any] = {"parts": len(rows), "failed": len(rows) - len(good)}
    for name in ("log_likelihood", "rmse", "accuracy", "seconds"):
        values = [row[name] for row in good if name in row]
        found |= {name: statistics.mean(values)} if values else {}
    return found


def _worth(one: dict[str, Any]) -> float:
    """The value by which a method is ranked on a set; last if it failed."""
    return -math.inf if one["failed"] else float(one["log_likelihood"])


def _over_sets(
    rows: Sequence[Row], method: str, sets: Sequence[str], ranks: Sequence[dict[str, float]]
) -> dict[str, Any]:
    own = [row for row in rows if row["method"] == method]
    good = [row for row in own if "failed" not in row]
    gains = [_gains(rows, name, method) for name in sets]
    compared = [gain for gain in gains if gain]
    return {
        "sets": len({row["set"] for row in own}),
        "compared": len(compared),
        "as_good": sum(statistics.mean(gain) >= 0.0 for gain in compared),
        "as_good_within_error": sum(within_error(gain) for gain in compared),
        "failed": len(own) - len(good),
        "worse_than_constant": sum(_worse(row) for row in good),
        "mean_rank": statistics.mean(place[method] for place in ranks if method in place),
        "seconds": statistics.mean([row["seconds"] for row in good] or [math.nan]),
    }


def _worse(row: Row) -> bool:
    """Whether a prediction that ignores the inputs would have been better."""
    return bool(row["log_likelihood"] < row["constant"] - MARGIN)


def _gains(rows: Sequence[Row], name: str, method: str) -> list[float]:
    """The log-likelihood above the reference's, part by part; a part that failed loses all."""
    own, other = (_by_part(_of(rows, name, one)) for one in (method, REFERENCE))
    both = [part for part in own if part in other and math.isfinite(other[part])]
    return [own[part] - other[part] for part in both]


def _by_part(rows: Sequence[Row]) -> Scores:
    return {row["part"]: row.get("log_likelihood", -math.inf) for row in rows}


def within_error(gains: Sequence[float]) -> bool:
    """Whether the mean of paired differences is at most one standard error below zero.

    >>> within_error([-1.0, 0.9, -0.2]), within_error([-1.0, -1.1]), within_error([0.0])
    (True, False, True)
    """
    mean = statistics.mean(gains)
    if len(gains) < 2 or not math.isfinite(mean):
        return mean >= 0.0
    return mean + statistics.stdev(gains) / math.sqrt(len(gains)) >= 0.0
