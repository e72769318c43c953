"""The folder of a run: checkpoints that a killed training goes on from."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesrule.tensors import distributed
from bayesrule.training import checkpoint
from bayesrule.types import State

Epoch = dict[str, float]
"""Figures of one epoch: epoch, step, loss (per example), validation, seconds."""


@dataclass(frozen=True)
class Best:
    """The best epoch so far by the validation score, larger is better."""

    score: float
    epoch: int
    state: State


class Folder:
    """A run's folder: `checkpoint`, `best-EPOCH` and `final`, each ending in `.safetensors`."""

    def __init__(self, out: str | os.PathLike[str], facts: dict[str, Any], seconds: float) -> None:
        self.path, self._facts, self._seconds = Path(out), facts, seconds
        self._written = time.monotonic()
        self._best_written: int | None = None

    def read(
        self, template: State, other_form: checkpoint.OtherForm | None = None
    ) -> tuple[State | None, list[Epoch], Best | None]:
        """The last checkpoint, if there is one."""
        file = self.path / "checkpoint.safetensors"
        if not file.exists():
            return None, [], None
        self._check(checkpoint.facts(file), file)
        state, facts = checkpoint.load(file, template, other_form)
        best = None
        if facts["best"] is not None:
            score, epoch = facts["best"]["score"], facts["best"]["epoch"]
            best = Best(score, epoch, checkpoint.load(self._best(epoch), template, other_form)[0])
            self._best_written = epoch
        return state, facts["history"], best

    def _check(self, facts: dict[str, Any], file: Path) -> None:
        for name, mine in self._facts.items():
            if facts.get(name) != mine:
                raise checkpoint.CheckpointError(
                    f"{file} belongs to a run with {name}={facts.get(name)}, this one has "
                    f"{name}={mine}. Use another folder, or resume=False to start over."
                )

    def write(self, state: State, history: list[Epoch], best: Best | None, *, final: bool) -> None:
        """Writes a checkpoint, at most every few seconds; the last one always."""
        if not distributed.is_main() or not (
            final or time.monotonic() - self._written >= self._seconds
        ):
            return
        kept = None if best is None else {"score": best.score, "epoch": best.epoch}
        if best is not None and best.epoch != self._best_written:
            checkpoint.save(self._best(best.epoch), best.state)
        checkpoint.save(
            self.path / "checkpoint.safetensors", state, **self._facts, history=history, best=kept
        )
        # Only now does no checkpoint need the best state of before.
        if best is not None and best.epoch != self._best_written:
            for old in set(self.path.glob("best-*.safetensors")) - {self._best(best.epoch)}:
                old.unlink(missing_ok=True)
            self._best_written = best.epoch
        self._written = time.monotonic()

    def _best(self, epoch: int) -> Path:
        return self.path / f"best-{epoch}.safetensors"

    def tidy(self, *, everything: bool) -> None:
        """Removes what a killed run left half written, or all that a run before this one wrote."""
        if not distributed.is_main():
            return
        names = ("checkpoint", "best-*", "final") if everything else ()
        # The checkpoint goes first: no file that is left must seem to be a run.
        for pattern in (*(f"{name}.safetensors" for name in names), ".*.safetensors.*.part"):
            for old in self.path.glob(pattern):
                old.unlink(missing_ok=True)

    def write_final(self, state: State, history: list[Epoch], best_epoch: int | None) -> None:
        """Writes the state that training ended with."""
        if distributed.is_main():
            file = self.path / "final.safetensors"
            checkpoint.save(file, state, **self._facts, history=history, best_epoch=best_epoch)
