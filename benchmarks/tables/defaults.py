"""The tables of docs/defaults.md: how good every method is at its defaults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from bayesrule.app.commands.text import figure
from benchmarks.tables.calls import Result, calls

_LEVELS = ("50", "90", "95")
_WITHIN = "as_good_within_error"


def tables(result: Result) -> str:
    """Mean test log-likelihoods by method and set, and each method against map."""
    sets, methods = result["sets"], result["methods"]
    head = ["method", *sets, "at least as good as map", "within one error", "failed", "mean rank"]
    rows = []
    for method, one in sorted(methods.items(), key=lambda pair: pair[1]["mean_rank"]):
        scores = [_score(sets[name].get(method)) for name in sets]
        counts = [f"{one[name]} of {one['compared']}" for name in ("as_good", _WITHIN)]
        rows.append([method, *scores, *counts, str(one["failed"]), f"{one['mean_rank']:.1f}"])
    return written(head, rows, result)


def _score(one: dict[str, Any] | None) -> str:
    return "–" if one is None or "log_likelihood" not in one else f"{one['log_likelihood']:.2f}"


def coverage(result: Result) -> str:
    """The shares of intervals that hold the truth, in percent."""
    head = ["method", "epochs", "inside 50/90/95", "f90", "RMSE / deviation"]
    head += ["outside 50/90/95", "f90", "RMSE / deviation", "diverged"]
    rows = [
        [
            row["method"],
            f"{row['epochs']:.0f}" if "epochs" in row else "–",
            *(cell for part in ("inside", "outside") for cell in _covered(row[part])),
            str(row.get("diverged", 0)),
        ]
        for row in result["results"]
        if "failed" not in row
    ]
    return written(head, rows, result)


def _covered(part: dict[str, float]) -> list[str]:
    return [
        "/".join(f"{100 * part[level]:.0f}" for level in _LEVELS),
        f"{100 * part['f90']:.0f}",
        f"{figure(part['rmse'])} / {figure(part['epistemic'])}",
    ]


_IMAGE_SCORES = {
    "nll": "NLL",
    "ece": "ECE",
    "accuracy": "accuracy",
    "auroc_entropy": "AUROC by entropy",
    "auroc_information": "AUROC by information",
    "seconds": "seconds",
}


def resnet(result: Result) -> str:
    """A user's own net on images: means over seeds by number of images and method."""
    head = ["images", "method", "seeds", *_IMAGE_SCORES.values()]
    found: dict[tuple[int, str], list[Result]] = {}
    for row in result["results"]:
        found.setdefault((row["size"], row["method"]), []).append(row)
    rows = [
        [f"{size:,}", method, str(len(own)), *(_mean(own, name) for name in _IMAGE_SCORES)]
        for (size, method), own in found.items()
    ]
    return written(head, rows, result)


def _mean(rows: Sequence[Result], name: str) -> str:
    return figure(fmean(row[name] for row in rows)) if name in rows[0] else "–"


def written(head: Sequence[str], rows: Sequence[Sequence[str]], result: Result) -> str:
    """A table, and the command that made its result."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join([*(f"| {' | '.join(cells)} |" for cells in lines), "", calls([result])])


PAGE: dict[str, tuple[list[str], Callable[..., str]]] = {
    "families": (["families.json"], tables),
    "coverage": (["coverage.json"], coverage),
    "uci-defaults": (["uci_defaults.json"], tables),
    "resnet": (["resnet.json"], resnet),
}
"""The tables between the page's markers, and the files they are made from."""
