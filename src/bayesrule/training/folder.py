"""A run's folder: checkpoints from which a killed training resumes, and the finished run."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesrule.tensors import distributed
from bayesrule.training import checkpoint
from bayesrule.training.checkpoint import CheckpointError, Epoch, OtherForm, Place
from bayesrule.training.files import Files
from bayesrule.types import State

CHECKPOINT, FINAL = "checkpoint.safetensors", "final.safetensors"
Facts = dict[str, Any]

_ANOTHER_FOLDER = "Use another folder, or resume=False to start over."
_SAME_LEARNER = "Build the learner as it was when it was trained."
# The facts that say what a posterior means; all others say how it was trained.
_MEANING = ("parts", "likelihood", "prior_precision", "temperature", "net")
# Facts that are hashes, and a hint for where they differ.
_HASHES = {
    "training inputs": "",
    "training targets": "",
    "training data": "",
    "validation data": "",
    "first weights": " A net that is made after torch.manual_seed has the same first weights.",
}


@dataclass(frozen=True)
class Best:
    """The best epoch so far by the validation score, larger is better."""

    score: float
    epoch: int
    state: State


@dataclass(frozen=True)
class Reached:
    """How far a run has come: whole epochs, and batches of the next one with their summed loss.

    `slower` counts how often it diverged and reduced its learning rate; in the middle of an epoch
    `good` is the state at the beginning of that epoch.
    """

    state: State
    history: list[Epoch]
    best: Best | None = None
    batches: int = 0
    total: float = 0.0
    slower: int = 0
    good: State | None = None


class Folder:
    """A run's folder: `checkpoint`, `best-EPOCH` and `final`, each ending in `.safetensors`.

    Beside a checkpoint in the middle of an epoch lies `begin-EPOCH`, the state before that epoch.
    A run resumes only where its `facts` are the same.
    """

    def __init__(self, out: Place, facts: Facts, seconds: float) -> None:
        self.path, self.files = Path(out), Files(out)
        self._facts, self._seconds = facts, seconds
        self._written = time.monotonic()
        self._best_written: int | None = None
        self.files.refuse_foreign()

    def read(self, template: State, other_form: OtherForm | None = None) -> Reached | None:
        """The last checkpoint, if there is one."""
        file = self.path / CHECKPOINT
        if CHECKPOINT not in self.files:
            return None
        written = checkpoint.facts(file)
        self.files.check(CHECKPOINT)
        _refuse_another(file, written, self._facts, _ANOTHER_FOLDER)
        state, _ = checkpoint.load(file, template, other_form)
        history = _history(file, written)
        best = _numbers(file, written, "best", ("score", "epoch"))
        within = _numbers(file, written, "within", ("total", "batches")) or (0.0, 0)
        slower = written.get("slower", 0)
        if not (type(slower) is int and 0 <= slower < 100):
            raise checkpoint.damaged(file, f"its 'slower' is {str(slower)[:60]!r}")
        kept, good, begin = None, None, _begin(len(history) + 1)
        if best is not None:
            kept = Best(*best, self._read_state(_best(best[1]), template, other_form))
            self._best_written = best[1]
        if within[1] and begin in self.files:
            good = self._read_state(begin, template, other_form)
        return Reached(state, history, kept, within[1], within[0], slower, good)

    def _read_state(self, name: str, template: State, other_form: OtherForm | None) -> State:
        state, _ = checkpoint.load(self.path / name, template, other_form)
        self.files.check(name)
        return state

    def is_due(self) -> bool:
        """Whether it is time for the next checkpoint."""
        return time.monotonic() - self._written >= self._seconds

    def write(self, now: Reached) -> None:
        """Writes a checkpoint."""
        if not distributed.is_main():
            return
        best, kept, needed = now.best, None, {CHECKPOINT, FINAL}
        if best is not None:
            kept = {"score": best.score, "epoch": best.epoch}
            needed.add(_best(best.epoch))
            if best.epoch != self._best_written:
                self.files.write(_best(best.epoch), checkpoint.payload(best.state))
                self._best_written = best.epoch
        if now.good is not None:
            begin = _begin(len(now.history) + 1)
            needed.add(begin)
            self.files.write(begin, checkpoint.payload(now.good))
        within = {"batches": now.batches, "total": now.total}
        reached = {"history": now.history, "best": kept, "within": within, "slower": now.slower}
        self.files.write(CHECKPOINT, checkpoint.payload(now.state, **self._facts, **reached))
        # Only now does no checkpoint need the earlier states.
        if old := [name for name in self.files.weights() if name not in needed]:
            self.files.remove(*old)
        self._written = time.monotonic()

    def tidy(self, *, everything: bool) -> None:
        """Removes files that a killed run left half written, or everything of an earlier run."""
        if not distributed.is_main():
            return
        self.files.tidy()
        if everything:
            # The checkpoint goes first, so that what is left never looks like a run.
            self.files.remove(*sorted(self.files.weights(), key=lambda name: name != CHECKPOINT))

    def write_final(self, state: State, history: list[Epoch], best_epoch: int | None) -> None:
        """Writes the state at the end of training."""
        if distributed.is_main():
            facts = {**self._facts, "history": history, "best_epoch": best_epoch}
            self.files.write(FINAL, checkpoint.payload(state, **facts))


def read_final(
    out: Place, template: State, other_form: OtherForm | None, facts: Facts
) -> tuple[State, list[Epoch], int | None]:
    """The state, history and best epoch of a finished run; `facts` are those of its learner."""
    files = Files(out)
    file = files.folder / FINAL
    state, written = _finished(files, FINAL, template, other_form, facts)
    best = written.get("best_epoch")
    if not (best is None or type(best) is int):
        raise checkpoint.damaged(file, f"its best epoch is {best!r}")
    return state, _history(file, written), best


def read_members(
    out: Place, template: State, other_form: OtherForm | None, facts: Facts
) -> tuple[State, ...]:
    """The states of an ensemble's members after the first, as many as were written."""
    files, states = Files(out), list[State]()
    while (name := _member(len(states) + 2)) in files:
        states.append(_finished(files, name, template, other_form, facts)[0])
    return tuple(states)


def _finished(
    files: Files, name: str, template: State, other_form: OtherForm | None, facts: Facts
) -> tuple[State, Facts]:
    """The state in a file of a finished run, and the facts written there."""
    file = files.folder / name
    written = checkpoint.facts(file)
    files.check(name)
    _refuse_another(file, written, _meaning(facts), _SAME_LEARNER)
    return checkpoint.load(file, template, other_form)[0], written


def write_members(out: Place, states: Sequence[State], facts: Facts) -> None:
    """Writes the states of an ensemble's members after the first, in reverse order.

    Reading stops at the first missing number, so it finds the whole ensemble or none of it.
    """
    files = Files(out)
    for number, state in reversed([*enumerate(states, 2)]):
        files.write(_member(number), checkpoint.payload(state, **_meaning(facts)))


def _meaning(facts: Facts) -> Facts:
    """The facts that say what a posterior means."""
    meaning = {name: facts[name] for name in _MEANING}
    options = {name: facts["options"][name] for name in ("posterior", "likelihood")}
    return {**meaning, "options": options}


def _member(number: int) -> str:
    return f"member-{number}.safetensors"


def _best(epoch: int) -> str:
    return f"best-{epoch}.safetensors"


def _begin(epoch: int) -> str:
    return f"begin-{epoch}.safetensors"


def _history(file: Path, written: Facts) -> list[Epoch]:
    """The figures of all epochs in a file."""
    history = written.get("history", [])
    if not isinstance(history, list):
        raise checkpoint.damaged(file, f"its history is {str(history)[:60]!r}")
    for epoch, figures in enumerate(history, 1):
        if not (_is_figures(figures) and figures["epoch"] == epoch):
            raise checkpoint.damaged(file, f"its history of epochs has {str(figures)[:60]!r}")
    return history


def _is_figures(value: Any) -> bool:
    """Whether a value is the figures of an epoch."""
    if not (isinstance(value, dict) and {"epoch", "step", "loss"} <= value.keys()):
        return False
    return all(map(_is_number, value.values()))


def _numbers(
    file: Path, written: Facts, name: str, names: tuple[str, str]
) -> tuple[float, int] | None:
    """The two named numbers of a fact, the second a count; None where a file has none."""
    fact: Any = written.get(name)
    if fact is None:
        return None
    number, count = (fact.get(key) if isinstance(fact, dict) else None for key in names)
    if number is None or not (_is_number(number) and type(count) is int and 0 <= count < 2**62):
        raise checkpoint.damaged(file, f"its {name!r} is {str(fact)[:60]!r}")
    return float(number), count


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def _refuse_another(file: Path, written: Facts, mine: Facts, way_out: str) -> None:
    """Raises if the facts of a file are those of another run."""
    for name, there, here in _differences(written, mine):
        if name in _HASHES:
            raise CheckpointError(
                f"{file} belongs to a run with other {name}. {way_out}{_HASHES[name]}"
            )
        raise CheckpointError(
            f"{file} belongs to a run with {name}={str(there)[:200]}, this one has "
            f"{name}={str(here)[:200]}. {way_out}"
        )


def _differences(there: Any, here: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The facts on both sides that differ; another version may write more of them, or fewer."""
    if isinstance(there, dict) and isinstance(here, dict):
        if name == "net" and there.keys() != here.keys():
            yield "modules", sorted(there), sorted(here)
        for key in here:
            full = f"{name}.{key}" if name not in ("", "options") else str(key)
            if key in there:
                yield from _differences(there[key], here[key], full)
    elif json.dumps(there) != json.dumps(here):
        yield name, there, here
