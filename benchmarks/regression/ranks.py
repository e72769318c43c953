"""Rows of the UCI table compared with each other and with published ones."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.regression.tasks import PUBLISHED
from benchmarks.regression.uci import tally

Row = dict[str, Any]
BASELINE = "mean_field"


def of_entry(rows: Sequence[Row], entry: str, two_layers: bool = False) -> dict[str, Row]:
    """The finished rows of an entry by set."""
    return {
        one["set"]: one
        for one in rows
        if (one.get("entry"), one.get("two_layers")) == (entry, two_layers) and "failed" not in one
    }


def wins(rows: Sequence[Row], first: str, second: str, two_layers: bool = False) -> dict[str, int]:
    """On how many common sets the first has the better mean."""
    one, two = (of_entry(rows, entry, two_layers) for entry in (first, second))
    pairs = [(one[name], two[name]) for name in one if name in two]
    return tally(
        [a["rmse"]["mean"] < b["rmse"]["mean"] for a, b in pairs],
        [a["log_likelihood"]["mean"] > b["log_likelihood"]["mean"] for a, b in pairs],
    )


def ranks(rows: Sequence[Row], entry: str, two_layers: bool = False) -> dict[str, float]:
    """Mean rank in log-likelihood (1 is best) of an entry and of published methods, over its sets.

    Ties share a rank: two at the top have 1.5 each. Published methods that lack a set are left out.
    """
    own = of_entry(rows, entry, two_layers)
    figures = [
        {entry: row["log_likelihood"]["mean"]}
        | {who: each["log_likelihood"][0] for who, each in PUBLISHED[two_layers][name].items()}
        for name, row in own.items()
    ]
    by_set = [places(one) for one in figures]
    names = [who for who in (by_set[0] if by_set else ()) if all(who in one for one in by_set)]
    return {who: statistics.mean(one[who] for one in by_set) for who in names}


def places(values: Mapping[str, float]) -> dict[str, float]:
    """The rank of each value, the largest first; NaN comes last."""
    known = {who: -math.inf if v != v else v for who, v in values.items()}
    return {
        who: 0.5
        + sum(v > own for v in known.values())
        + 0.5 * sum(v == own for v in known.values())
        for who, own in known.items()
    }


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Every entry relative to mean-field, and its mean rank among published methods."""
    pairs = dict.fromkeys((one["entry"], one["two_layers"]) for one in rows if "options" in one)
    over = [
        {"entry": entry, "over": BASELINE, "two_layers": deep, **wins(rows, entry, BASELINE, deep)}
        for entry, deep in pairs
        if entry != BASELINE
    ]
    means = [
        {
            "entry": entry,
            "two_layers": deep,
            "sets": len(of_entry(rows, entry, deep)),
            "ranks": ranks(rows, entry, deep),
        }
        for entry, deep in pairs
    ]
    return {"wins": [one for one in over if one["sets"]], "ranks": means}
