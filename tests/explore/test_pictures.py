"""The examples of this folder's functions run and draw what they say."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import torch

from benchmarks.data import Images

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"
SVG = "{http://www.w3.org/2000/svg}"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bars(num: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten classes of 28×28 images: a bright bar at ten heights, and noise."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(num) % 10
    x = torch.randint(0, 40, (num, 1, 28, 28), generator=generator, dtype=torch.uint8)
    for i, row in enumerate((2 * y + 3).tolist()):
        x[i, 0, row : row + 2, 4:24] += 200
    return x, y


def test_adversarial_draws_ten_digits_in_three_rows() -> None:
    names = tuple("0123456789")
    data = Images("bars", *bars(1280, 0), *bars(100, 1), names)
    root = ElementTree.fromstring(example("adversarial").picture(data, num=1280))
    pictures = [one.get("href", "") for one in root.iter(f"{SVG}image")]
    assert len(pictures) == 30
    assert len(set(pictures)) == 30
    assert all(one.startswith("data:image/png;base64,iVBOR") for one in pictures)
    words = [one.text or "" for one in root.iter(f"{SVG}text")]
    taken = [int(word.split()[0]) for word in words if word.endswith("%)")]
    assert taken[0::2] == list(range(10))
    assert sum(new == (old + 3) % 10 for old, new in enumerate(taken[1::2])) >= 9


def test_optimise_draws_all_points_and_both_curves() -> None:
    root = ElementTree.fromstring(example("optimise").picture(evaluations=14))
    assert len(list(root.iter(f"{SVG}circle"))) == 14
    kinds = [one.get("class") for one in root.iter(f"{SVG}path")]
    assert kinds.count("best") == 1
    assert kinds.count("random") == 10
