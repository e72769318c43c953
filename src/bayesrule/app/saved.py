"""A trained table model on disk: recipe, encoder and state in one folder, without pickle."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from bayesrule.app.data import DataError, Encoder, Table
from bayesrule.app.recipe import Recipe
from bayesrule.predicting.predict import How
from bayesrule.predicting.prediction import Prediction
from bayesrule.training.checkpoint import CheckpointError, facts, write_atomically
from bayesrule.training.train import Run, load_run

FORMAT = 1


@dataclass(frozen=True)
class SavedModel:
    """What is needed to predict from tables: how to read them, and the trained run."""

    encoder: Encoder
    run: Run

    def predict(self, table: Table, how: How | None = None, *, seed: int = 0) -> Prediction:
        """The prediction for a table's rows, in the target's own units."""
        x = self.encoder.transform(table)
        return self.encoder.original(self.run.predict(x, how, seed=seed))


def fingerprint(*tensors: Tensor) -> str:
    """A short hash of the shapes and values, to recognise the same data."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def claim_folder(
    folder: Path,
    recipe: Recipe,
    encoder: Encoder,
    num_data: int,
    data: str,
    *,
    start_over: bool = False,
) -> int:
    """Prepares a folder for a run and returns how many epochs of the same run it already holds.

    `model.json` describes the recipe, the encoder and the data, and is written before training. A
    folder with another run is refused before anything in it is changed; with `start_over` the old
    run is deleted once the new `model.json` is on the disk. `data` is the fingerprint of the
    training data.
    """
    document = {
        "format": FORMAT,
        "recipe": json.loads(recipe.to_json()),
        "encoder": json.loads(encoder.to_json()),
        "num_data": num_data,
        "data": data,
    }
    if not start_over and _run_files(folder):
        _refuse_another(folder, document)
        return _epochs_done(folder)
    staged = folder / "model.json.next"
    write_atomically(staged, json.dumps(document, indent=2).encode())
    # Old weights next to a new model.json would be read as weights of the new model.
    for old in (*_run_files(folder), folder / "run.json"):
        old.unlink(missing_ok=True)
    os.replace(staged, folder / "model.json")
    return 0


def _run_files(folder: Path) -> list[Path]:
    """The files of weights that a run writes; other files in the folder are left alone."""
    names = ("checkpoint", "best-*", "final")
    return [file for name in names for file in folder.glob(f"{name}.safetensors")]


def _refuse_another(folder: Path, document: dict[str, Any]) -> None:
    """Raises where the run in a folder is not the one that `document` describes."""
    advice = "Use another folder, or resume=False to start over; nothing was changed."
    if not (folder / "model.json").is_file():
        raise CheckpointError(f"{folder} holds weights of a run without a model.json. {advice}")
    saved = _document(folder)
    for name, wanted in document["recipe"].items():
        there = saved["recipe"].get(name)
        if there != wanted:
            raise CheckpointError(
                f"{folder} holds a run with {name} {there}, this one has {name} {wanted}. {advice}"
            )
    if any(saved.get(name) != document[name] for name in ("encoder", "num_data", "data")):
        raise CheckpointError(
            f"{folder} holds a run on other data, or on another target or other columns. {advice}"
        )


def _epochs_done(folder: Path) -> int:
    file = folder / "checkpoint.safetensors"
    return len(facts(file).get("history", ())) if file.is_file() else 0


def read_model(folder: Path) -> SavedModel:
    """A trained model from its folder."""
    document = _document(folder)
    try:
        recipe = Recipe.from_json(json.dumps(document["recipe"]))
        encoder = Encoder.from_json(json.dumps(document["encoder"]))
        num_data = int(document["num_data"])
        learner = recipe.learner(len(encoder.feature_names), encoder.num_outputs, num_data)
    except (KeyError, TypeError, ValueError) as problem:
        raise _damaged(folder / "model.json", problem) from problem
    if not (folder / "final.safetensors").is_file():
        raise CheckpointError(
            f"{folder} holds no finished run. If training was interrupted, the same fit command "
            "continues where it stopped."
        )
    return SavedModel(encoder, load_run(learner, folder))


def _document(folder: Path) -> dict[str, Any]:
    file = folder / "model.json"
    if not file.is_file():
        raise DataError(
            f"{folder} is not the folder of a trained model: there is no model.json in it. "
            "Make one with: bayesrule fit DATA --target COLUMN --out FOLDER"
        )
    try:
        document = json.loads(file.read_text())
        version = document["format"]
        if not isinstance(document["recipe"], dict):
            raise TypeError("its recipe is not a table of names and values")
    except (ValueError, TypeError, KeyError) as problem:
        raise _damaged(file, problem) from problem
    if version != FORMAT:
        raise CheckpointError(
            f"{file} has format {version}, and this version of bayesrule reads format {FORMAT}. "
            "Use the version that wrote it, or fit again."
        )
    return document


def _damaged(file: Path, problem: Exception) -> CheckpointError:
    what = f"{problem} is missing" if isinstance(problem, KeyError) else str(problem)
    return CheckpointError(
        f"{file} is damaged: {what}. Nothing was changed; restore it from a copy, or fit again."
    )
