"""Who takes part in a comparison: methods that are worth their time, and baselines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bayesrule.app import baselines
from bayesrule.app.data import Encoder
from bayesrule.methods import METHODS, Need, find, record


@dataclass(frozen=True)
class Lineup:
    """The names of the methods and of the baselines; `notes` say in sentences who is left out."""

    methods: list[str]
    baselines: list[str]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.methods) + len(self.baselines)


def lineup(
    encoder: Encoder,
    train_rows: int,
    methods: Sequence[str] | None = None,
    *,
    every: bool = False,
    with_baselines: bool = True,
) -> Lineup:
    """The methods that are named; or with `every` all that fit; or those worth their time.

    Of close relatives the one that represents the others is worth its time.
    """
    task = encoder.task.kind
    chosen = applicable(methods, task)
    if methods is None and not every:
        chosen = [name for name in chosen if record(name).represented_by not in chosen]
    away = [] if methods is not None else [n for n in applicable(None, task) if n not in chosen]
    if not with_baselines:
        return Lineup(chosen, [], tuple(_absent(away)))
    obstacles = baselines.obstacles(task, train_rows, encoder.num_outputs)
    present = [name for name in baselines.names(task) if name not in obstacles]
    missing = (f"The baseline {name} is left out: {why}." for name, why in obstacles.items())
    return Lineup(chosen, present, (*_absent(away), *missing))


def _absent(names: Sequence[str]) -> Iterator[str]:
    if names:
        relatives = {record(name).represented_by for name in names}
        of_each = [(r, [n for n in names if record(n).represented_by == r]) for r in relatives]
        parts = [f"{', '.join(some)} (see {relative})" for relative, some in sorted(of_each)]
        yield f"Left out, as near relatives of others: {'; '.join(parts)}. --all runs every method."


def applicable(methods: Sequence[str] | None, task: str) -> list[str]:
    """The names of the methods; where none are named, of all that fit the task."""
    unfit = {Need.REAL_TARGETS} if task == "classification" else set()
    if methods is None:
        # The nets for tables have no layers that would bring binary weights to scale.
        unfit |= {Need.SCALED_LAYERS}
        return [name for name in METHODS if unfit.isdisjoint(record(name).needs)]
    chosen = [find(name).__name__ for name in methods]
    for name in chosen:
        if not unfit.isdisjoint(record(name).needs):
            raise ValueError(f"{name} is for regression; {record(name).limits}.")
    return list(dict.fromkeys(chosen))
