"""Logs of a training as it goes: a csv file, or events for TensorBoard."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from bayesrule.tensors import distributed
from bayesrule.training.checkpoint import Epoch, write_atomically
from bayesrule.types import Info, State

COLUMNS = ("step", "epoch", "loss", "kl", "elbo", "epoch_loss", "validation", "seconds")
"""The columns of a row: `loss`, `kl` and `elbo` of a step, in nats for the whole data set, as in
`Info`; at the end of an epoch also its mean loss per example, its validation score and its time."""

Figures = Mapping[str, float]


@runtime_checkable
class Log(Protocol):
    """Gets figures at the end of each epoch and, unless `every` is None, every so many steps."""

    every: int | None

    def begin(self, step: int) -> None:
        """Training begins, or resumes, after `step`: drops what was written of later steps."""

    def write(self, step: int, figures: Figures) -> None:
        """Writes the figures of a step, by the names of `COLUMNS`."""

    def end(self) -> None:
        """Training is over."""


@dataclass
class CsvLog:
    """A csv file with a line for each epoch, and one for every `every` steps.

    A resumed training appends to its file and replaces the lines of steps that it takes again; a
    new one starts the file anew. Files that hold something else are refused.
    """

    path: str | os.PathLike[str]
    every: int | None = None

    def __post_init__(self) -> None:
        self._rows(Path(self.path))

    def begin(self, step: int) -> None:
        file = Path(self.path)
        kept = [row for row in self._rows(file) if int(row[0]) <= step]
        write_atomically(file, _lines([COLUMNS, *kept]).encode())

    def write(self, step: int, figures: Figures) -> None:
        row = [step, *(figures.get(name, "") for name in COLUMNS[1:])]
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            file.write(_lines([row]))

    def end(self) -> None:
        pass

    def _rows(self, file: Path) -> list[list[str]]:
        """The complete lines of the file, if there is one; the last one may have been cut off."""
        text = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        if not text:
            return []
        head, *rows = csv.reader(text.splitlines())
        if tuple(head) != COLUMNS:
            raise ValueError(
                f"{file} is there and no log of a training: its first line is not "
                f"{','.join(COLUMNS)}. Name another file."
            )
        return [row for row in rows if len(row) == len(COLUMNS) and row[0].isdecimal()]


@dataclass
class TensorBoardLog:
    """Events in a folder for `tensorboard --logdir`."""

    folder: str | os.PathLike[str]
    every: int | None = None
    _writer: Any = field(default=None, init=False, repr=False)

    def begin(self, step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as problem:
            raise ImportError(
                "A log for TensorBoard needs tensorboard: pip install 'bayesrule[tensorboard]'. "
                "A csv file needs nothing: log='metrics.csv'."
            ) from problem
        self.end()
        self._writer = SummaryWriter(os.fspath(self.folder), purge_step=step + 1)

    def write(self, step: int, figures: Figures) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def end(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


@dataclass
class Logs:
    """All logs of one training; the first rank alone writes."""

    logs: Sequence[Log] = ()
    _info: Info | None = field(default=None, init=False)

    @classmethod
    def of(cls, log: Any) -> Logs:
        """From a path, a log, or several of them; None gives no logs."""
        several = log if isinstance(log, list | tuple) else [] if log is None else [log]
        return cls([_as_log(each) for each in several] if distributed.is_main() else [])

    def begin(self, step: int) -> None:
        """Training begins, or resumes, after `step`."""
        self._info = None
        for log in self.logs:
            log.begin(step)

    def step(self, state: State, info: Info, epoch: int, last: bool) -> None:
        """Writes the figures of a step where due; those of the last one go with its epoch."""
        self._info = info
        due = [log for log in self.logs if log.every and state.step % log.every == 0 and not last]
        for log in due:
            log.write(state.step, {"epoch": epoch, **_step_figures(info)})

    def epoch(self, figures: Epoch) -> None:
        """Writes the figures of an epoch, with those of its last step."""
        row = {"epoch_loss" if k == "loss" else k: float(v) for k, v in figures.items()}
        row["epoch"], step = int(figures["epoch"]), int(row.pop("step"))
        for log in self.logs:
            last = {} if self._info is None else _step_figures(self._info)
            log.write(step, {**last, **row})

    def end(self) -> None:
        """Training is over."""
        for log in self.logs:
            log.end()


def _step_figures(info: Info) -> dict[str, float]:
    return {name: float(getattr(info, name)) for name in ("loss", "kl", "elbo")}


def _as_log(log: Any) -> Log:
    if isinstance(log, Log):
        return log
    if not isinstance(log, str | os.PathLike):
        raise TypeError(
            "log is a csv file, a folder for TensorBoard, CsvLog(file, every=100), or several of "
            f"them, got {log!r}."
        )
    return CsvLog(log) if Path(log).suffix == ".csv" else TensorBoardLog(log)


def _lines(rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
