"""Checkpoints whose header somebody edited: one sentence each, whatever was written there."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from sine import X, Y, quick

from bayesrule import fit, load_run
from bayesrule.training import checkpoint
from bayesrule.training.checkpoint import CheckpointError

OPTIONS: dict[str, Any] = {"epochs": 2, "validation": (X, Y), "patience": 9}
# What numbers, tables and lists may be replaced by.
ODD = (None, True, "x", "", -1, 1.5, 10**400, math.nan, math.inf, [], [1], {}, {"a": 1}, [[]])
LOOKED_AT = {
    "step",
    "seed",
    "history",
    "best",
    "within",
    "slower",
    "best_epoch",
    "parts",
    "num_data",
}
TEXTS = ("", "{", "null", "1", "[]", '"x"', "[" * 100_000, "{}", '{"step": 1}')


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run, as a version that kept no list of its files left it."""
    folder = tmp_path_factory.mktemp("whole")
    fit(quick(), (X, Y), out=folder, **OPTIONS)
    (folder / "files.json").unlink()
    return folder


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in nested tables and lists something can be replaced."""
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in pairs:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of a document with something else at a place."""
    new = copy.deepcopy(document)
    inner = new
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return new


def edited(file: Path, name: str, text: str, to: Path) -> None:
    """A copy of a checkpoint with another text in its header."""
    with safe_open(file, framework="pt") as opened:
        metadata = {**opened.metadata(), name: text}
    save_file(load_file(file), to, metadata)


def documents(file: Path) -> dict[str, Any]:
    """The two documents in a header."""
    with safe_open(file, framework="pt") as opened:
        return {name: json.loads(text) for name, text in opened.metadata().items()}


def copied(whole: Path, folder: Path) -> None:
    for file in whole.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())


@pytest.mark.parametrize("name", ["numbers", "facts"])
@pytest.mark.parametrize("file", ["checkpoint.safetensors", "final.safetensors"])
@pytest.mark.filterwarnings("ignore:.*kept no checksums")
def test_other_texts_in_a_header_are_refused_or_change_nothing(
    file: str, name: str, whole: Path, tmp_path: Path
) -> None:
    before = load_with(file, whole, tmp_path)
    document = documents(whole / file)[name]
    spots = [path for path in places(document) if path[0] in LOOKED_AT][:60]
    texts = [*TEXTS, *(json.dumps(replaced(document, p, odd)) for p in spots for odd in ODD)]
    refused = 0
    for text in texts:
        copied(whole, tmp_path)
        edited(whole / file, name, text, tmp_path / file)
        problem = None
        try:
            found = load_with(file, tmp_path, tmp_path)
        except CheckpointError as raised:
            problem, refused = str(raised), refused + 1
        if problem is None:
            # What is not looked at when a run is loaded, such as the seed that it had.
            state = dataclasses.replace(found.state, step=2, seed=0)
            assert checkpoint.same(state, before.state)
        else:
            assert str(tmp_path) in problem
            assert len(problem) < 800
    assert refused > len(texts) / 3


def load_with(file: str, folder: Path, out: Path) -> Any:
    """The run of a folder, from its final state or from its checkpoint."""
    if file.startswith("final"):
        return load_run(quick(), folder)
    if folder != out:
        copied(folder, out)
    (out / "files.json").unlink(missing_ok=True)
    return fit(quick(), (X, Y), out=out, **OPTIONS)
