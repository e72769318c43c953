"""A picture of how long passes take with more data."""

from __future__ import annotations

from typing import Any

from benchmarks.pictures.panels import Line, Panel, panel, sheet

_SHOWN = {
    "mixture": ("EM of a mixture, ten components", "rows", "scikit-learn"),
    "topics": ("Variational Bayes of 20 topics", "reviews", "scikit-learn"),
    "states": ("EM of an HMM, four states, with gaps", "steps", "hmmlearn, no gaps"),
}


def of_graphical(result: dict[str, Any]) -> dict[str, str]:
    """Pictures by file name: seconds of a pass against the size of the data."""
    return {"growth.svg": sheet([_panel(result["results"], name) for name in _SHOWN])}


def _panel(results: list[dict[str, Any]], model: str) -> Panel:
    title, what, others = _SHOWN[model]
    rows = [one for one in results if one["model"] == model]
    lines = [_line("bayesrule", rows, "seconds")]
    beside = [one for one in rows if "their_seconds" in one]
    lines += [_line(others, beside, "their_seconds")] if beside else []
    return panel(title, lines, f"thousands of {what}", "seconds a pass")


def _line(name: str, rows: list[dict[str, Any]], seconds: str) -> Line:
    # Lines start at the origin: no data take no time.
    sizes = [0.0, *(one["size"] / 1000.0 for one in rows)]
    return Line(name, sizes, [0.0, *(one[seconds] for one in rows)])
