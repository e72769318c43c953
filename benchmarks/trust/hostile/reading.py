"""Odd tables, read, encoded and checked; some are trained on and predicted."""

from __future__ import annotations

import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayesrule.app.data import DataError, Encoder, Table, read_table
from benchmarks.trust.hostile import judge, tables, training
from benchmarks.trust.hostile.judge import Encoded, Wrong
from benchmarks.trust.hostile.tables import Sheet

MOST_TOLD = 200


@dataclass
class Findings:
    """The outcomes of all cases: counts by kind and outcome, and each fault in words."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    faults: list[dict[str, Any]] = field(default_factory=list)

    def add(self, kind: str, outcome: str, number: int = 1) -> None:
        """Counts an outcome."""
        self.counts.setdefault(kind, Counter())[outcome] += number

    def case(self, kind: str, number: int, work: Callable[[], str]) -> None:
        """Runs one case; any exception other than a `DataError` is a fault."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                outcome = work()
        except DataError as refusal:
            outcome = "refused"
            if not _is_text(str(refusal)):
                outcome = self._told(kind, number, "wrong", "the message cannot be printed")
        except Wrong as fault:
            outcome = self._told(kind, number, "wrong", str(fault))
        except Exception as fault:
            what = f"{type(fault).__name__}: {fault}"
            outcome = self._told(kind, number, "traceback", what)
        self.add(kind, outcome)

    def _told(self, kind: str, number: int, outcome: str, what: str) -> str:
        if len(self.faults) < MOST_TOLD:
            one_line = " ".join(what.split())[:300]
            self.faults.append({"kind": kind, "number": number, "fault": outcome, "what": one_line})
        return outcome


def _is_text(message: str) -> bool:
    """Whether a message can be printed: file names and cells may hold halves of characters."""
    return message == message.encode(errors="replace").decode()


def tried(number: int, seed: int, findings: Findings, place: Path) -> None:
    """Draws table `number`, checks how it is read, and now and then trains on it."""
    chance = random.Random(f"{seed} {number}")
    sheet = tables.draw(chance)
    path = sheet.write(place / f"whole.{sheet.ending}")
    if chance.random() < 0.12:
        path.write_bytes(tables.damaged(path.read_bytes(), chance))
        findings.case(f"damaged {path.suffix[1:]}", number, lambda: _any_table(path, chance))
        return
    case = Case(sheet, path, chance)
    findings.case(sheet.format, number, case.run)
    if random.Random(f"{seed} {number} training").random() < (0.3 if case.encoded else 0.1):
        _trained(case, number, findings)


def _trained(case: Case, number: int, findings: Findings) -> None:
    """Trains on a table that could be read, on the columns that can be learned from."""
    sheet, folder = case.sheet, case.path.parent / "run"
    target = case.chance.choice(sheet.known_as)
    if (encoded := case.encoded) is not None:
        target = encoded.encoder.target
        used = (encoded.encoder.target, *encoded.features)
        order = [i for i, name in enumerate(sheet.known_as) if name in used]
        sheet = sheet.some(range(len(sheet.columns[0])), order)
    path = sheet.write(case.path.with_name(f"train.{sheet.ending}"))
    run = training.Case(sheet, path, target, folder, case.chance)
    findings.case("trained on", number, run.run)
    findings.add("trained on", "cells read back", run.cells)
    shutil.rmtree(folder, ignore_errors=True)


def _any_table(path: Path, chance: random.Random) -> str:
    """A damaged file may still be a table, of unknown content."""
    table = read_table(path)
    encoded = _encoded(table, list(table.columns), chance)
    encoded.encoder.tensors(table)
    judge.kept(encoded.encoder, table)
    return "read"


@dataclass
class Case:
    """One table in a file; `encoded` holds what can be learned from."""

    sheet: Sheet
    path: Path
    chance: random.Random
    encoded: Encoded | None = None

    def run(self) -> str:
        """Reads, encodes and checks the table; returns the outcome."""
        try:
            return self._judged()
        except DataError as refusal:
            judge.require(not self.sheet.plain, f"a plain table is refused: {refusal}")
            raise

    def _judged(self) -> str:
        """Checks the whole table, and some of its rows in a file of their own."""
        table = read_table(self.path)
        encoded = _encoded(table, self.sheet.known_as, self.chance)
        judge.reading(self.sheet, table, encoded)
        judge.kept(encoded.encoder, table)
        self._alone(table, encoded.encoder)
        self.encoded = encoded
        return "read"

    def _alone(self, table: Table, encoder: Encoder) -> None:
        chance, names = self.chance, self.sheet.names
        rows = sorted(chance.sample(range(len(table)), chance.randint(1, min(4, len(table)))))
        order = list(range(len(names)))
        if all(name.strip() for name in names):  # those without a name are named by their place
            chance.shuffle(order)
        some = self.sheet.some(rows, order)
        path = some.write(self.path.with_name(f"some.{some.ending}"))
        try:
            judge.alone(encoder, table, read_table(path), rows)
        except DataError as refusal:
            if "Unnamed: 0" not in str(refusal):  # a nameless column that counts rows is left out
                raise Wrong(f"rows are refused in a file of their own: {refusal}") from refusal


def _encoded(table: Table, names: list[str], chance: random.Random) -> Encoded:
    """An encoder for a target that can be learned, with the features that are accepted."""
    missing = chance.choice(("error", "impute", "impute"))
    task = chance.choice((None, None, "regression", "classification"))
    named = [name for name in names if chance.random() < 0.1]
    options: dict[str, Any] = {"task": task, "missing": missing}
    refusal = DataError("nothing could be encoded")
    for target in chance.sample(names, min(len(names), 6)):
        taken = []
        for name in (name for name in names if name != target):
            own = {"features": [name], "categories": [name] if name in named else [], **options}
            try:
                Encoder.fit(table, target, **own)
                taken.append(name)
            except DataError as problem:
                refusal = problem
                taken += [name] if "left out" in str(problem) else []
        if taken:
            categories = [name for name in taken if name in named]
            found = Encoder.fit(table, target, features=taken, categories=categories, **options)
            return Encoded(found, taken, categories)
    raise refusal
