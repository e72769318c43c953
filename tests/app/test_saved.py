"""A trained table model on disk: what comes back, what is refused, and that nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bayesrule.app.data import DataError, Encoder, Table
from bayesrule.app.recipe import Recipe
from bayesrule.app.saved import SavedModel, claim_folder, fingerprint, read_model
from bayesrule.training.checkpoint import CheckpointError

pandas = pytest.importorskip("pandas")

ROWS = 12
RECIPE = Recipe("map", epochs=2, hidden=(3,))


def table(seed: int = 0) -> Table:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=ROWS)
    columns = {"x": x, "colour": ["red", "blue", "green"] * 4, "y": 100 + 20 * x}
    return Table.from_frame(pandas.DataFrame(columns))


@pytest.fixture
def encoder() -> Encoder:
    return Encoder.fit(table(), "y")


def train(folder: Path, encoder: Encoder, recipe: Recipe = RECIPE, **options: Any) -> SavedModel:
    x, y = encoder.transform(table()), encoder.targets(table())
    claim_folder(folder, recipe, encoder, ROWS, fingerprint(x, y), **options)
    run = recipe.fit(x, y, encoder.num_outputs, out=folder, progress=False)
    return SavedModel(encoder, run)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_model_comes_back_as_it_was(tmp_path: Path, encoder: Encoder) -> None:
    kept = train(tmp_path, encoder)
    found = read_model(tmp_path)
    assert found.encoder == encoder
    torch.testing.assert_close(
        found.predict(table()).mean, kept.predict(table()).mean, rtol=0, atol=0
    )


def test_predictions_are_in_the_targets_units(tmp_path: Path, encoder: Encoder) -> None:
    kept = train(tmp_path, encoder)
    raw = kept.run.predict(encoder.transform(table()))
    found = kept.predict(table())
    mean, std = encoder.target_mean, encoder.target_std
    assert std > 5
    torch.testing.assert_close(found.mean, mean + std * raw.mean)
    torch.testing.assert_close(found.aleatoric, std**2 * raw.aleatoric)


def test_outputs_by_target() -> None:
    assert Encoder.fit(table(), "y").num_outputs == 1
    assert Encoder.fit(table(), "colour").num_outputs == 3


def test_fingerprints_differ_with_values_order_and_shape() -> None:
    x = torch.arange(6.0)
    others = (x.flip(0), x + 1, x.reshape(2, 3), x[:5])
    marks = {fingerprint(x), *(fingerprint(other) for other in others), fingerprint(x, x)}
    assert len(marks) == 6
    assert fingerprint(x.clone()) == fingerprint(x)


def test_the_very_run_is_gone_on_with(tmp_path: Path, encoder: Encoder) -> None:
    train(tmp_path, encoder)
    before = contents(tmp_path)
    x, y = encoder.transform(table()), encoder.targets(table())
    assert claim_folder(tmp_path, RECIPE, encoder, ROWS, fingerprint(x, y)) == 2
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"recipe": replace(RECIPE, method="vogn")}, "method map, this one has method vogn"),
        ({"recipe": replace(RECIPE, hidden=(4,))}, r"hidden \[3\], this one has hidden \[4\]"),
        ({"recipe": replace(RECIPE, options={"temperature": 0.5})}, "options {}, this one"),
        ({"encoder": Encoder.fit(table(1), "y")}, "other data"),
        ({"num_data": 11}, "other data"),
        ({"data": "0" * 16}, "other data"),
    ],
)
def test_another_run_is_refused_and_kept(
    change: dict[str, Any], words: str, tmp_path: Path, encoder: Encoder
) -> None:
    train(tmp_path, encoder)
    before = contents(tmp_path)
    mark = json.loads(before["model.json"])["data"]
    call = {"recipe": RECIPE, "encoder": encoder, "num_data": ROWS, "data": mark, **change}
    with pytest.raises(CheckpointError, match=words):
        claim_folder(tmp_path, **call)
    assert contents(tmp_path) == before
    assert claim_folder(tmp_path, **call, start_over=True) == 0
    assert list(contents(tmp_path)) == ["model.json"]


def test_weights_without_a_description_are_kept(tmp_path: Path, encoder: Encoder) -> None:
    train(tmp_path, encoder)
    (tmp_path / "model.json").unlink()
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=r"without a model\.json"):
        claim_folder(tmp_path, RECIPE, encoder, ROWS, "")
    assert contents(tmp_path) == before


def test_starting_over_leaves_files_of_others_alone(tmp_path: Path, encoder: Encoder) -> None:
    train(tmp_path, encoder)
    for name in ("mine.safetensors", "notes.txt"):
        (tmp_path / name).write_text("keep me")
    claim_folder(tmp_path, RECIPE, encoder, ROWS, "", start_over=True)
    assert sorted(contents(tmp_path)) == ["mine.safetensors", "model.json", "notes.txt"]


def test_a_run_that_never_reached_a_checkpoint_may_be_replaced(
    tmp_path: Path, encoder: Encoder
) -> None:
    claim_folder(tmp_path, RECIPE, encoder, ROWS, "")
    with pytest.raises(CheckpointError, match="no finished run"):
        read_model(tmp_path)
    train(tmp_path, encoder, replace(RECIPE, method="vogn"))
    assert read_model(tmp_path).run.learner.parts()["expectation"] == "Draws"


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(DataError, match="bayesrule fit DATA --target COLUMN --out FOLDER"):
            read_model(folder)


def without(*names: str) -> Callable[[str], str]:
    """Removes one entry of a json document, by its path."""

    def change(text: str) -> str:
        document = json.loads(text)
        place = document
        for name in names[:-1]:
            place = place[name]
        del place[names[-1]]
        return json.dumps(document)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[:50], "is damaged"),
        (lambda text: "", "is damaged"),
        (lambda text: "[1, 2]", "is damaged"),
        (lambda text: "{}", "'format' is missing"),
        (without("recipe"), "'recipe' is missing"),
        (without("recipe", "hidden"), "'hidden' is missing"),
        (without("encoder", "columns"), "is damaged: This is not a saved encoder"),
        (lambda text: text.replace('"map"', '"nap"'), "Unknown method 'nap'"),
        (lambda text: text.replace('"num_data": 12', '"num_data": 0'), "no examples"),
        (lambda text: text.replace('"format": 1', '"format": 2', 1), "has format 2"),
    ],
)
def test_a_damaged_description_is_said_and_left_alone(
    change: Callable[[str], str], words: str, tmp_path: Path, encoder: Encoder
) -> None:
    train(tmp_path, encoder)
    file = tmp_path / "model.json"
    file.write_text(change(file.read_text()))
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=words):
        read_model(tmp_path)
    with pytest.raises(CheckpointError):
        claim_folder(tmp_path, RECIPE, encoder, ROWS, "")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("payload", [b"", b"not weights", None])
def test_damaged_weights_are_said_and_left_alone(
    payload: bytes | None, tmp_path: Path, encoder: Encoder
) -> None:
    train(tmp_path, encoder)
    file = tmp_path / "final.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if payload is None else payload)
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match="not a whole checkpoint"):
        read_model(tmp_path)
    assert contents(tmp_path) == before


def test_weights_of_another_model_are_refused(tmp_path: Path, encoder: Encoder) -> None:
    train(tmp_path / "a", encoder)
    train(tmp_path / "b", encoder, replace(RECIPE, hidden=(4,)))
    weights = (tmp_path / "b" / "final.safetensors").read_bytes()
    (tmp_path / "a" / "final.safetensors").write_bytes(weights)
    with pytest.raises(CheckpointError, match="another model or method"):
        read_model(tmp_path / "a")
