"""A trained table model on disk: recipe, encoder and state in one folder, without pickle."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from bayesrule.app.data import DataError, Encoder, Table
from bayesrule.app.recipe import Recipe
from bayesrule.predicting.exporting import Exported
from bayesrule.predicting.predict import How
from bayesrule.predicting.prediction import Prediction
from bayesrule.training.checkpoint import CheckpointError, facts
from bayesrule.training.files import NAME as LIST
from bayesrule.training.files import Files
from bayesrule.training.folder import CHECKPOINT, FINAL
from bayesrule.training.train import Run, load_run

FORMAT = 1
_FILES = ("model.json", "run.json", LIST, "*.safetensors", ".*")
_ADVICE = "Use another folder, or resume=False to start over; nothing was changed."

# Entries of a recipe that held-out rows decide, so that they follow from the data and the others.
_DERIVED = ("warm_start", "calibration")


@dataclass(frozen=True)
class SavedModel:
    """What is needed to predict from tables: how to read them, and the trained run."""

    encoder: Encoder
    run: Run

    def predict(self, table: Table, how: How | None = None, *, seed: int = 0) -> Prediction:
        """The prediction for a table's rows, in the target's own units."""
        x = self.encoder.transform(table)
        return self.encoder.original(self.run.predict(x, how, seed=seed))

    def exported(self, how: How | None = None, *, seed: int = 0) -> Exported:
        """The predictions from encoded features (n, d) as one module, in the target's own units."""
        encoder, example = self.encoder, torch.zeros(2, len(self.encoder.feature_names))
        model = self.run.exported(example, how, seed=seed)
        if encoder.task.classification:
            return model
        return model.rescaled(encoder.target_mean, encoder.target_std)

    def notes(self) -> dict[str, str]:
        """The notes in a file of the exported model."""
        encoder = self.encoder
        return {
            "target": encoder.target,
            "encoder": encoder.to_json(),
            "features": json.dumps(list(encoder.feature_names)),
            "classes": json.dumps(list(encoder.labels)),
        }


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
    asked: Recipe | None = None,
    start_over: bool = False,
) -> int:
    """Prepares a folder for a run and returns how many epochs of the same run it already holds.

    `model.json` describes the recipe, the encoder and the data, and is written before training. A
    folder with another run is refused before anything in it is changed; with `start_over` the old
    run is deleted once the new `model.json` is on the disk. `data` is the fingerprint of the
    training data; `asked` is the recipe before held-out rows chose what it left open.
    """
    document = {
        "format": FORMAT,
        "recipe": _as_json(recipe),
        "asked": _as_json(asked or recipe),
        **_described(encoder, num_data, data),
    }
    _refuse_name(folder)
    files = run_files(folder)
    for name in ("model.json", "run.json", None):
        files.refuse_foreign(name)
    if files.weights() and not start_over:
        _refuse_another(folder, document)
        return epochs_done(folder)
    # Old weights next to a new model.json would be read as weights of the new model.
    old = [*files.weights(), *(name for name in ("run.json",) if name in files)]
    files.write("model.json", json.dumps(document, indent=2).encode(), instead_of=old)
    return 0


def chosen_before(
    folder: Path, asked: Recipe, encoder: Encoder, num_data: int, data: str
) -> Recipe | None:
    """What an interrupted run on the same data chose for a recipe; None if there is none."""
    if not (folder / "model.json").is_file():
        return None
    document = _document(folder)
    if "model.json" in (files := Files(folder)):
        files.check("model.json")
    wanted = {"asked": _as_json(asked), **_described(encoder, num_data, data)}
    if any(document.get(name) != value for name, value in wanted.items()):
        return None
    recipe = Recipe.from_json(json.dumps(document["recipe"]))
    check_types(recipe)
    return recipe


def _as_json(recipe: Recipe) -> Any:
    return json.loads(recipe.to_json())


def _described(encoder: Encoder, num_data: int, data: str) -> dict[str, Any]:
    """What `model.json` says of the training data."""
    return {"encoder": json.loads(encoder.to_json()), "num_data": num_data, "data": data}


def refuse_another_method(folder: Path, recipe: Recipe) -> None:
    """Raises for a folder with a run of another method, before options are chosen for this one."""
    _refuse_name(folder)
    if run_files(folder).weights():
        _matching_document(folder, {"method": recipe.method})


def run_files(folder: Path) -> Files:
    """The files that a run wrote into a folder, also where a former version kept no list."""
    files = Files(folder)
    for name, word in (("model.json", "recipe"), ("run.json", "versions")):
        with contextlib.suppress(OSError, ValueError):
            if name not in files and word in json.loads((folder / name).read_text()):
                files.adopt(name)
    return files


def epochs_done(folder: Path) -> int:
    """The number of epochs in the last checkpoint of a folder, 0 where there is none."""
    checkpoint = folder / CHECKPOINT
    return len(facts(checkpoint).get("history", ())) if checkpoint.is_file() else 0


def belongs_to_a_run(file: Path) -> bool:
    """Whether a path is that of a run's file, in a folder that holds a run."""
    real = file.resolve()
    return (real.parent / "model.json").is_file() and any(map(real.match, _FILES))


def _refuse_name(folder: Path) -> None:
    """Raises for a name that is not UTF-8: safetensors could write weights, but never read them."""
    try:
        str(folder).encode()
    except UnicodeEncodeError as problem:
        raise CheckpointError(
            f"The name of the folder {folder} is not text in UTF-8. Use another name."
        ) from problem


def _refuse_another(folder: Path, document: dict[str, Any]) -> None:
    """Raises if the run in a folder is not the one that `document` describes."""
    saved = _matching_document(folder, document["recipe"])
    if any(saved.get(name) != document[name] for name in ("encoder", "num_data", "data")):
        raise CheckpointError(
            f"{folder} holds a run on other data, or on another target or other columns. {_ADVICE}"
        )


def _matching_document(folder: Path, recipe: dict[str, Any]) -> dict[str, Any]:
    """The document of the run in a folder; raises unless its recipe has these entries."""
    if not (folder / "model.json").is_file():
        raise CheckpointError(f"{folder} holds weights of a run without a model.json. {_ADVICE}")
    saved = _document(folder)
    for name, wanted in recipe.items():
        there = saved["recipe"].get(name)
        if name not in _DERIVED and there != wanted:
            raise CheckpointError(
                f"{folder} holds a run with {name} {there}, this one has {name} {wanted}. {_ADVICE}"
            )
    return saved


def read_model(folder: Path) -> SavedModel:
    """A trained model from its folder."""
    _refuse_name(folder)
    document = _document(folder)
    try:
        recipe = Recipe.from_json(json.dumps(document["recipe"]))
        encoder = Encoder.from_json(json.dumps(document["encoder"]))
        num_data = int(document["num_data"])
        _check_values(recipe, encoder)
        learner = recipe.learner(len(encoder.feature_names), encoder.num_outputs, num_data)
    except Exception as problem:  # an edited document may raise anything
        raise _damaged(folder / "model.json", problem) from problem
    # Versions before this one kept no list of files.
    if "model.json" in (files := Files(folder)):
        files.check("model.json")
    run = load_run(learner, folder) if (folder / FINAL).is_file() else None
    if run is None or len(run.states) != (recipe.members or 1):
        raise CheckpointError(
            f"{folder} holds no finished run. If training was interrupted, the same fit command "
            "continues where it stopped."
        )
    return SavedModel(encoder, run)


def _check_values(recipe: Recipe, encoder: Encoder) -> None:
    """Raises if a recipe or an encoder has values that none is made with."""
    for part in (recipe, encoder):
        check_types(part)
    if not min(encoder.target_std, *(getattr(c, "std", 1.0) for c in encoder.columns)) > 0:
        raise ValueError("a standard deviation in it is not above zero")


def check_types(part: Any) -> None:
    """Raises if a field of a dataclass, or of one within it, is not of its type.

    >>> from bayesrule.app.recipe import Recipe
    >>> check_types(Recipe(hidden=(5,)))
    >>> check_types(Recipe(hidden=(5.5,)))
    Traceback (most recent call last):
    TypeError: its hidden is (5.5,)
    """
    types = get_type_hints(type(part))
    for field in fields(part):
        value = getattr(part, field.name)
        if not _fits(value, types[field.name]):
            raise TypeError(f"its {field.name} is {str(value)[:60]}")


def _fits(value: Any, kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in inner)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, inner[0]) for item in value)
    if is_dataclass(kind):
        if not isinstance(value, kind):  # type: ignore[arg-type]
            return False
        check_types(value)
        return True
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is (origin or kind)


def _document(folder: Path) -> dict[str, Any]:
    file = folder / "model.json"
    if not file.is_file():
        raise DataError(
            f"{folder} is not the folder of a trained model: there is no model.json in it. "
            "Make one with: bayesrule fit DATA --target COLUMN --out FOLDER"
        )
    try:
        document = json.loads(file.read_bytes(), parse_constant=_no_number)
        version = document["format"]
        if not isinstance(document["recipe"], dict):
            raise TypeError("its recipe is not a table of names and values")
    except (ValueError, TypeError, KeyError, RecursionError) as problem:
        raise _damaged(file, problem) from problem
    if version != FORMAT:
        raise CheckpointError(
            f"{file} has format {version}, and this version of bayesrule reads format {FORMAT}. "
            "Use the version that wrote it, or fit again."
        )
    return document


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"it holds {constant}, which is no number")


def _damaged(file: Path, problem: Exception) -> CheckpointError:
    what = f"{problem} is missing" if isinstance(problem, KeyError) else str(problem)
    return CheckpointError(
        f"{file} is damaged: {what}. Nothing was changed; restore it from a copy, or fit again."
    )
