"""Benchmarks whose rows are computed one by one, saved as they come, and resumed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bayesrule.app.provenance import machine, versions
from bayesrule.app.workers import results
from benchmarks.kept_rows import kept_rows

Row = dict[str, Any]
_KILLED = "its process was killed, perhaps for lack of memory"


@dataclass(frozen=True)
class Rows:
    """A benchmark that is a list of rows.

    Each of the `items` names a row, and `work(**item)` gives the figures in it. An exception
    becomes `failed`, in words: a failing method is a result. `summary(rows)` summarises all
    rows, and `plan` holds what they share.
    """

    benchmark: str
    plan: dict[str, Any]
    items: Sequence[Row]
    work: Callable[..., Row]
    summary: Callable[[Sequence[Row]], dict[str, Any]] = lambda _: {}

    def key(self, row: Row) -> tuple[Any, ...]:
        """The key of a row."""
        return tuple(row[name] for name in self.items[0])

    def read(self, file: str | None) -> list[Row]:
        """The rows in an earlier result; failed ones are tried again."""
        if not file:
            return []
        known = kept_rows(Path(file), self.benchmark, self.plan, rows="results", key=self.key)
        return [row for row in known if "failed" not in row]

    def run(
        self,
        known: Sequence[Row] = (),
        *,
        jobs: int = 1,
        keep: Callable[[dict[str, Any]], None] = lambda _: None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> dict[str, Any]:
        """Computes the missing rows in `jobs` processes; `keep` gets every intermediate result."""
        found = {self.key(row): row for row in known}
        missing = [item for item in self.items if self.key(item) not in found]
        if found:
            progress(f"{len(found)} rows are there already")
        attempts = results(partial(_attempt, self.work), missing, jobs, _killed)
        for done, (number, figures) in enumerate(attempts, 1):
            row = {**missing[number], **figures}
            found[self.key(row)] = row
            progress(f"[{done}/{len(missing)}] {line(missing[number], figures)}")
            keep(self._document(found))
        return self._document(found)

    def _document(self, found: dict[tuple[Any, ...], Row]) -> dict[str, Any]:
        """The result as json: the rows in the order of the items, then all others."""
        order = [self.key(item) for item in self.items]
        rows = [found[key] for key in dict.fromkeys([*order, *found]) if key in found]
        return {
            "benchmark": self.benchmark,
            "plan": self.plan,
            "results": rows,
            **self.summary(rows),
            "versions": versions(),
            "machine": machine(),
        }


def _attempt(work: Callable[..., Row], item: Row) -> Row:
    try:
        return work(**item)
    except Exception as problem:
        return {"failed": f"{type(problem).__name__}: {problem}"}


def _killed(_: Row) -> Row:
    return {"failed": _KILLED}


def line(item: Row, figures: Row) -> str:
    """A row in words.

    >>> line({"set": "yacht", "method": "map"}, {"rmse": 0.51234, "seconds": 2.0})
    'yacht map: rmse 0.5123, seconds 2'
    """
    name = " ".join(map(str, item.values()))
    if "failed" in figures:
        return f"{name}: failed, {figures['failed']}"
    numbers = [f"{k} {v:.4g}" for k, v in figures.items() if isinstance(v, int | float)]
    return f"{name}: {', '.join(numbers)}"
