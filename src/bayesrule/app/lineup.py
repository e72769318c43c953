"""Which methods and baselines take part in a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bayesrule.app import baselines
from bayesrule.app.data import Encoder
from bayesrule.methods import METHODS, Need, find, record


@dataclass(frozen=True)
class Lineup:
    """Names of the methods and the baselines; `notes` say in sentences which are left out."""

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
    """Chooses the named `methods`, or else all that fit the task, and the baselines.

    Without names and without `every`, one method represents its close relatives.
    """
    task = encoder.task.kind
    chosen = applicable(methods, task)
    if methods is None and not every:
        chosen = [name for name in chosen if record(name).represented_by not in chosen]
    left_out = [] if methods is not None else [n for n in applicable(None, task) if n not in chosen]
    if not with_baselines:
        return Lineup(chosen, [], tuple(_left_out_note(left_out)))
    obstacles = baselines.obstacles(task, train_rows, encoder.num_outputs)
    present = [name for name in baselines.names(task) if name not in obstacles]
    missing = (f"The baseline {name} is left out: {why}." for name, why in obstacles.items())
    return Lineup(chosen, present, (*_left_out_note(left_out), *missing))


def _left_out_note(names: Sequence[str]) -> Iterator[str]:
    if names:
        relatives = {record(name).represented_by for name in names}
        groups = [(r, [n for n in names if record(n).represented_by == r]) for r in relatives]
        parts = [f"{', '.join(members)} (see {relative})" for relative, members in sorted(groups)]
        yield f"Left out, as near relatives of others: {'; '.join(parts)}. --all runs every method."


def applicable(methods: Sequence[str] | None, task: str) -> list[str]:
    """The names of the given methods, checked against the task; None means all that fit it."""
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
