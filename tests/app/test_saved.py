"""A trained table model on disk: what comes back, what is refused, and that nothing is lost."""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bayesrule.app.data import DataError, Encoder, Table
from bayesrule.app.recipe import Recipe
from bayesrule.app.saved import SavedModel, chosen_before, claim_folder, fingerprint, read_model
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
    torch.testing.assert_close(found.mean, mean + std * raw.mean.double())
    torch.testing.assert_close(found.aleatoric, std**2 * raw.aleatoric.double())


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
    assert sorted(contents(tmp_path)) == ["files.json", "model.json"]


def test_weights_without_a_description_are_kept(tmp_path: Path, encoder: Encoder) -> None:
    train(tmp_path, encoder)
    (tmp_path / "model.json").unlink()
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=r"without a model\.json"):
        claim_folder(tmp_path, RECIPE, encoder, ROWS, "")
    assert contents(tmp_path) == before


def test_starting_over_leaves_files_of_others_alone(tmp_path: Path, encoder: Encoder) -> None:
    train(tmp_path, encoder)
    mine = ["best-model.safetensors", "mine.safetensors", "notes.txt"]
    for name in mine:
        (tmp_path / name).write_text("keep me")
    claim_folder(tmp_path, RECIPE, encoder, ROWS, "", start_over=True)
    assert sorted(contents(tmp_path)) == sorted([*mine, "files.json", "model.json"])


@pytest.mark.parametrize("name", ["model.json", "run.json", "final.safetensors"])
@pytest.mark.parametrize("start_over", [False, True])
def test_files_of_others_are_not_replaced(
    name: str, start_over: bool, tmp_path: Path, encoder: Encoder
) -> None:
    (tmp_path / name).write_text('{"mine": 1}')
    with pytest.raises(CheckpointError, match=rf"holds a {name} that no run wrote there"):
        train(tmp_path, encoder, start_over=start_over)
    assert (tmp_path / name).read_text() == '{"mine": 1}'


def test_a_description_that_was_edited_is_refused(tmp_path: Path, encoder: Encoder) -> None:
    train(tmp_path, encoder)
    file = tmp_path / "model.json"
    document = json.loads(file.read_text())
    document["num_data"] = 13
    file.write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=r"model\.json is not as its run wrote it"):
        read_model(tmp_path)


def test_a_folder_of_a_former_version_is_read_and_gone_on_with(
    tmp_path: Path, encoder: Encoder
) -> None:
    kept = train(tmp_path, encoder)
    (tmp_path / "files.json").unlink()
    with pytest.warns(UserWarning, match="kept no checksums"):
        found = read_model(tmp_path)
    assert torch.equal(found.predict(table()).mean, kept.predict(table()).mean)
    assert "files.json" not in contents(tmp_path)
    with pytest.warns(UserWarning, match="kept no checksums"):
        train(tmp_path, encoder)
    train(tmp_path, encoder, replace(RECIPE, method="vogn"), start_over=True)
    read_model(tmp_path)


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


def former(text: str) -> str:
    """A description as the version before wrote it, without a checksum."""
    document = json.loads(text)
    document.pop("checksum", None)
    return json.dumps(document, indent=2)


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
    file.write_text(change(former(file.read_text())))
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


def test_a_description_of_the_version_before_is_read(tmp_path: Path, encoder: Encoder) -> None:
    kept = train(tmp_path, encoder)
    file = tmp_path / "model.json"
    file.write_text(former(file.read_text()))
    assert torch.equal(read_model(tmp_path).predict(table()).mean, kept.predict(table()).mean)


def places(document: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all entries of a json document; of a list, those of its first."""
    inner = document.items() if isinstance(document, dict) else enumerate(document[:1])
    for name, value in inner:
        yield (*path, name)
        if isinstance(value, dict | list):
            yield from places(value, (*path, name))


def changed(document: Any, path: tuple[str | int, ...], value: Any) -> str:
    new = copy.deepcopy(document)
    place = new
    for name in path[:-1]:
        place = place[name]
    if value is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return json.dumps(new)


DAMAGE = (..., None, "abc", -1, 0, 1e300, math.nan, 10**30, True, [], {}, [1, "a"], {"a": 1})


def train_for(target: str, folder: Path) -> None:
    likelihood = "categorical" if target == "colour" else "gaussian"
    x, y = (encoder := Encoder.fit(table(), target)).tensors(table())
    recipe = replace(RECIPE, likelihood=likelihood)
    claim_folder(folder, recipe, encoder, ROWS, fingerprint(x, y))
    recipe.fit(x, y, encoder.num_outputs, out=folder, progress=False)


@pytest.mark.parametrize("target", ["y", "colour"])
def test_every_damage_to_a_description_is_answered(target: str, tmp_path: Path) -> None:
    train_for(target, tmp_path)
    file = tmp_path / "model.json"
    whole = json.loads(file.read_text())
    for path, value in itertools.product(places(whole), DAMAGE):
        if path == ("checksum",) and value is ...:
            continue
        file.write_text(changed(whole, path, value))
        if json.loads(file.read_text()) != whole:
            with pytest.raises(CheckpointError, match=r"is damaged|has format|is not as its run"):
                read_model(tmp_path)


@pytest.mark.parametrize("target", ["y", "colour"])
def test_damage_that_no_checksum_shows_gives_no_traceback(target: str, tmp_path: Path) -> None:
    train_for(target, tmp_path)
    file = tmp_path / "model.json"
    whole = json.loads(former(file.read_text()))
    refused = 0
    for path, value in itertools.product(places(whole), DAMAGE):
        file.write_text(changed(whole, path, value))
        try:
            read_model(tmp_path).predict(table())
        except (CheckpointError, DataError):
            refused += 1
    # The others are numbers and words that might have been written.
    assert refused > 200


# Files of others


@pytest.mark.parametrize("start_over", [False, True])
@pytest.mark.parametrize(
    "name",
    ["model.json", "run.json", "final.safetensors", "checkpoint.safetensors"],
)
@pytest.mark.parametrize("content", ["{}", "[1]", '{"my": "notes"}', "", "\xff"])
def test_a_file_of_somebody_else_is_never_touched(
    content: str, name: str, start_over: bool, tmp_path: Path, encoder: Encoder
) -> None:
    (tmp_path / name).write_text(content, encoding="latin-1")
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=f"holds a {name} that no run wrote"):
        claim_folder(tmp_path, RECIPE, encoder, ROWS, "", start_over=start_over)
    assert contents(tmp_path) == before


def test_weights_that_another_program_saved_are_never_removed(
    tmp_path: Path, encoder: Encoder
) -> None:
    from safetensors.torch import save_file

    train(tmp_path, encoder)
    save_file({"weight": torch.ones(2)}, tmp_path / "best-of-mine.safetensors")
    before = contents(tmp_path)["best-of-mine.safetensors"]
    claim_folder(tmp_path, RECIPE, encoder, ROWS, "", start_over=True)
    assert contents(tmp_path)["best-of-mine.safetensors"] == before


def test_a_choice_is_kept_for_the_same_question_and_data_only(
    tmp_path: Path, encoder: Encoder
) -> None:
    asked, data = Recipe("map", hidden=(3,)), (encoder, ROWS, "data")
    assert chosen_before(tmp_path, asked, *data) is None
    claim_folder(tmp_path, RECIPE, *data, asked=asked)
    assert chosen_before(tmp_path, asked, *data) == RECIPE
    assert chosen_before(tmp_path, replace(asked, seed=1), *data) is None
    assert chosen_before(tmp_path, asked, encoder, ROWS, "others") is None
    assert chosen_before(tmp_path, asked, encoder, ROWS + 1, "data") is None


def test_a_choice_that_was_changed_on_the_disk_is_refused(tmp_path: Path, encoder: Encoder) -> None:
    asked, data = Recipe("map", hidden=(3,)), (encoder, ROWS, "data")
    claim_folder(tmp_path, RECIPE, *data, asked=asked)
    file = tmp_path / "model.json"
    file.write_text(file.read_text().replace('"epochs": 2', '"epochs": 3'))
    with pytest.raises(CheckpointError):
        chosen_before(tmp_path, asked, *data)
