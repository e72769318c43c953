"""Odd tables from file to predictions by the command line, which are then read back."""

from __future__ import annotations

import csv
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bayesrule.app.data import read_table
from bayesrule.app.saved import SavedModel, read_model
from bayesrule.expectations import Draws
from bayesrule.methods import METHODS
from bayesrule.predicting.prediction import Prediction
from benchmarks.trust.hostile.calls import Said, call
from benchmarks.trust.hostile.judge import require
from benchmarks.trust.hostile.tables import Sheet

_DRAWS = 3
# Reasons for which new rows may be refused although the model was trained on some of them.
_FAIR = ("The predicted", "too large to scale", "nothing to draw from", "cannot be carried along")


@dataclass
class Case:
    """One table to train on; `cells` counts the cells that were read back."""

    sheet: Sheet
    path: Path
    target: str
    folder: Path
    chance: random.Random
    cells: int = 0

    def run(self) -> str:
        """Trains and predicts; returns the outcome of the training."""
        said = call(self._fit_words())
        if said.code == 2:
            require(not self.folder.exists(), f"refused after the work: {said.err}")
        if said.code == 0:
            self._predict()
        if self.chance.random() < 0.05:
            self._compare()
        return said.outcome

    def _compare(self) -> None:
        words = ["compare", str(self.path), f"--target={self.target}", "--missing=impute"]
        words += ["--methods=map,vogn", "--splits=1", "--jobs=1", "--epochs=1", "--no-baselines"]
        call([*words, f"--out={self.folder / 'comparison'}"])

    def _fit_words(self) -> list[str]:
        chance = self.chance
        words = ["fit", str(self.path), f"--target={self.target}"]
        words += ["--out", str(self.folder), "--missing", "impute", "--method"]
        words += [chance.choice(list(METHODS)), "--epochs", "2"]
        more = ("--test-fraction=0", "--test-fraction=0.5", "--patience=1", "--heteroscedastic",
                "--json", "--hidden=none", "--hidden=3,3", "--task=classification")  # fmt: skip
        return words + chance.sample(more, chance.choice((0, 0, 0, 1, 2)))

    def _predict(self) -> None:
        out = self.folder / "new.csv"
        names = self.sheet.known_as
        place = self.chance.randrange(len(names))
        carried = [place] if names[place] else []
        words = ["predict", str(self.folder), str(self.path), "--out", str(out), "--draws"]
        words += [str(_DRAWS), "--unseen=ignore", *(f"--id={names[i]}" for i in carried)]
        said = call(words)
        if said.code == 0:
            self._read_back(out, carried)
        else:
            require(_may_be_refused(said), f"what was learned from is refused: {said.err}")

    def _read_back(self, out: Path, carried: list[int]) -> None:
        with out.open(encoding="utf-8", newline="") as stream:
            names, *rows = csv.reader(stream)
        model = read_model(self.folder)
        lenient = SavedModel(replace(model.encoder, unseen="ignore"), model.run)
        prediction = lenient.predict(read_table(self.path), Draws(_DRAWS))
        expected = _figures(prediction, lenient)
        if carried:
            ids = self.sheet.written(carried[0])
            expected = {self.sheet.known_as[carried[0]]: ids, **expected}
        require([undone(name) for name in names] == list(expected), f"the columns are {names}")
        require(len(rows) == len(self.sheet.columns[0]), f"{len(rows)} predictions")
        for name, texts, values in zip(names, zip(*rows, strict=True), expected.values(),
                                       strict=True):  # fmt: skip
            same = all(map(_says, texts, values))
            require(same, f"'{name}' reads back as {texts[:3]}, not {values[:3]}")
            self.cells += len(texts)


def _figures(prediction: Prediction, model: SavedModel) -> dict[str, list[Any]]:
    """The columns that predictions have, from the tensors."""
    encoder = model.encoder
    if encoder.task.classification:
        probs = prediction.probs
        return {
            f"predicted_{encoder.target}": [encoder.classes[i] for i in probs.argmax(1).tolist()],
            **{f"p({c})": probs[:, i].tolist() for i, c in enumerate(encoder.classes)},
            "entropy": prediction.entropy.tolist(),
            "mutual_information": prediction.mutual_information.tolist(),
        }
    low, high = prediction.interval(0.9)
    parts = {
        "mean": prediction.mean, "std": prediction.std,
        "epistemic_std": prediction.epistemic.sqrt(), "aleatoric_std": prediction.aleatoric.sqrt(),
        "lower_0.9": low, "upper_0.9": high,
    }  # fmt: skip
    return {name: part.flatten().tolist() for name, part in parts.items()}


def _says(text: str, value: Any) -> bool:
    """Whether a cell of the predictions has the value that was written."""
    if isinstance(value, float):
        return float(text) == value
    return undone(text) == ("" if value is None else str(value))


def undone(text: str) -> str:
    """A cell without the apostrophe that keeps a spreadsheet from running it.

    >>> undone("'=1+1"), undone("''=1+1"), undone("-5"), undone("'x")
    ('=1+1', "'=1+1", '-5', "'x")
    """
    bare = text.lstrip("'")
    formula = bare.startswith(("=", "+", "-", "@", "\t", "\r")) and not _is_number(bare)
    return text[1:] if text != bare and formula else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _may_be_refused(said: Said) -> bool:
    return any(reason in said.err for reason in _FAIR)
