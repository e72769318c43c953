"""The examples run and draw what they say."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.mark.parametrize("name", ["one_dimension", "variational"])
def test_beliefs_about_one_curve_are_drawn_in_four_panels(name: str) -> None:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    svg = "{http://www.w3.org/2000/svg}"
    root = ElementTree.fromstring(module.picture(epochs=3))
    assert len(root.findall(f"{svg}svg")) == 4
    assert len([t for t in root.iter(f"{svg}text") if t.get("class") == "title"]) == 4
    paths = [p.get("class") for p in root.iter(f"{svg}path")]
    assert paths.count("mean") == paths.count("outer") == paths.count("inner") == 4
