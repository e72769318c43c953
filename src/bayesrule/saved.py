"""A trained table model on disk: recipe, encoder and state in one folder, without pickle."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesrule.checkpoint import CheckpointError, write_atomically
from bayesrule.data import DataError, Encoder, Table
from bayesrule.predict import How
from bayesrule.prediction import Prediction
from bayesrule.recipe import Recipe
from bayesrule.train import Run, load_run


@dataclass(frozen=True)
class SavedModel:
    """What is needed to predict from tables: how to read them, and the trained run."""

    encoder: Encoder
    run: Run

    def predict(self, table: Table, how: How | None = None, *, seed: int = 0) -> Prediction:
        """The prediction for a table's rows, in the target's own units."""
        found = self.run.predict(self.encoder.transform(table), how, seed=seed)
        if self.encoder.task.classification:
            return found
        return found.rescaled(self.encoder.target_mean, self.encoder.target_std)


def num_outputs(encoder: Encoder) -> int:
    """How many outputs a network for this target needs."""
    return len(encoder.classes) if encoder.task.classification else 1


def write_model(folder: Path, recipe: Recipe, encoder: Encoder, num_data: int) -> None:
    """Writes what the state alone does not tell; before training, so that a run can be resumed."""
    document = {
        "format": 1,
        "recipe": json.loads(recipe.to_json()),
        "encoder": json.loads(encoder.to_json()),
        "num_data": num_data,
    }
    write_atomically(folder / "model.json", json.dumps(document, indent=2).encode())


def read_model(folder: Path) -> SavedModel:
    """A trained model from its folder."""
    document = _document(folder)
    try:
        recipe = Recipe.from_json(json.dumps(document["recipe"]))
        encoder = Encoder.from_json(json.dumps(document["encoder"]))
        num_data = int(document["num_data"])
    except (KeyError, TypeError, ValueError) as problem:
        raise CheckpointError(f"{folder / 'model.json'} is damaged: {problem}") from problem
    learner = recipe.learner(len(encoder.feature_names), num_outputs(encoder), num_data)
    if not (folder / "final.safetensors").is_file():
        raise CheckpointError(
            f"{folder} holds no finished run. If training was interrupted, the same fit command "
            "goes on where it stopped."
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
        return json.loads(file.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as problem:
        raise CheckpointError(f"{file} is damaged: {problem}") from problem
