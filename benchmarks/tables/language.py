"""The table of docs/transformers.md: methods on a small transformer."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean
from typing import Any

from bayesrule.app.commands.text import figure
from benchmarks.tables.calls import Result
from benchmarks.tables.defaults import written

_SCORES = {
    "nll": "NLL",
    "ece": "ECE",
    "accuracy": "accuracy",
    "auroc": "AUROC",
    "seconds": "seconds",
}


def transformer(result: Result) -> str:
    """Means over seeds of each stage and method."""
    keys = dict.fromkeys((row["stage"], row["method"]) for row in result["results"])
    head = ["stage", "method", *_SCORES.values(), "weights learned", "seeds"]
    return written(head, [_row(result, *key) for key in keys], result)


def _row(result: Result, stage: str, method: str) -> list[str]:
    own = [row for row in result["results"] if (row["stage"], row["method"]) == (stage, method)]
    done: list[dict[str, Any]] = [row for row in own if "failed" not in row]
    if not done:
        return [stage, method, *["–"] * (len(_SCORES) + 1), "failed"]
    means = [figure(mean(row[name] for row in done)) for name in _SCORES]
    return [stage, method, *means, f"{done[0]['weights']:,}", str(len(done))]


PAGE: dict[str, tuple[list[str], Callable[..., str]]] = {
    "transformer": (["transformer.json"], transformer),
}
"""The table between the page's markers, and the file it is made from."""
