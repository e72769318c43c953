"""Figures of a training as it goes: a csv file, or events for TensorBoard."""

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
"""What a row may hold: `loss`, `kl` and `elbo` of a step, in nats over all the data, as `Info` has
them; at the end of an epoch also the mean loss of an example over it, the validation score and how
long it took."""

Figures = Mapping[str, float]


@runtime_checkable
class Log(Protocol):
    """Where figures go; `every` is after how many steps, None at the ends of epochs alone."""

    every: int | None

    def begin(self, step: int) -> None:
        """Training goes on after a step: forgets what was written of later ones."""

    def write(self, step: int, figures: Figures) -> None:
        """Writes the figures of a step, by the names of `COLUMNS`."""

    def end(self) -> None:
        """Training is over."""


@dataclass
class CsvLog:
    """A csv file with a line for each epoch, and for every so many steps.

    A training that goes on adds to its file; lines of steps that are taken again are replaced. One
    that begins anew begins the file anew. Files that hold something else are refused.
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
        """The whole lines of a file that is there; the last one may have been cut off."""
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
    def of(cls, given: Any) -> Logs:
        """From a path, a log, or several of them."""
        several = given if isinstance(given, list | tuple) else [] if given is None else [given]
        return cls([_as_log(one) for one in several] if distributed.is_main() else [])

    def begin(self, step: int) -> None:
        """Training goes on after a step."""
        self._info = None
        for log in self.logs:
            log.begin(step)

    def step(self, state: State, info: Info, epoch: int, last: bool) -> None:
        """After a step; the last one of an epoch is in the epoch's own line."""
        self._info = info
        due = [log for log in self.logs if log.every and state.step % log.every == 0 and not last]
        for log in due:
            log.write(state.step, {"epoch": epoch, **_of(info)})

    def epoch(self, figures: Epoch) -> None:
        """At the end of an epoch, whose last step's info is still to be had."""
        names = {"epoch": "epoch", "loss": "epoch_loss"}
        found = {names.get(k, k): float(v) for k, v in figures.items() if k != "step"}
        found["epoch"] = int(figures["epoch"])
        for log in self.logs:
            last = {} if self._info is None else _of(self._info)
            log.write(int(figures["step"]), {**last, **found})

    def end(self) -> None:
        """Training is over."""
        for log in self.logs:
            log.end()


def _of(info: Info) -> dict[str, float]:
    return {name: float(getattr(info, name)) for name in ("loss", "kl", "elbo")}


def _as_log(given: Any) -> Log:
    if isinstance(given, Log):
        return given
    if not isinstance(given, str | os.PathLike):
        raise TypeError(
            "log is a csv file, a folder for TensorBoard, CsvLog(file, every=100), or several of "
            f"them, got {given!r}."
        )
    return CsvLog(given) if Path(given).suffix == ".csv" else TensorBoardLog(given)


def _lines(rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
