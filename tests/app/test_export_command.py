"""`bayesrule export`: the file says what `bayesrule predict` says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from calling import FAST, call, only_line, table

from bayesrule.app.data import open_table
from bayesrule.app.saved import read_model

pandas = pytest.importorskip("pandas")


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("target", ["price", "kind"])
def test_the_file_says_what_predict_says(target: str, tmp_path: Path) -> None:
    other = "kind" if target == "price" else "price"
    data, run = table(tmp_path, drop=(other,)), tmp_path / "run"
    assert call("fit", data, "--target", target, "--out", run, *FAST).code == 0
    said = call("export", run, tmp_path / "model.pt2", "--draws", "8", "--json")
    assert said.code == 0, said
    assert json.loads(said.out)["features"] == [
        "x",
        "z",
        *(f"colour={c}" for c in ("blue", "green", "red")),
    ]
    notes = dict.fromkeys(("target", "features", "classes", "encoder"), "")
    program = torch.export.load(str(tmp_path / "model.pt2"), extra_files=notes)
    assert notes["target"] == target
    encoder = read_model(run).encoder
    assert notes["encoder"] == encoder.to_json()
    found = program.module()(encoder.transform(open_table(str(data))))
    words = ("predict", run, data, "--draws", "8", "--json")
    rows = pandas.DataFrame(json.loads(call(*words).out)["predictions"])
    if target == "price":
        expected = {"mean": rows["mean"], "epistemic": rows["epistemic_std"] ** 2,
                    "aleatoric": rows["aleatoric_std"] ** 2}  # fmt: skip
    else:
        probs = rows[[f"p({name})" for name in json.loads(notes["classes"])]]
        expected = {"probs": probs, "entropy": rows["entropy"],
                    "mutual_information": rows["mutual_information"]}  # fmt: skip
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        wanted = torch.tensor(value.to_numpy()).reshape(found[name].shape)
        torch.testing.assert_close(found[name].double(), wanted, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    data, run = table(tmp_path), tmp_path / "run"
    words = ("fit", data, "--target", "price", "--out", run, "--method", "laplace", *FAST)
    assert call(*words).code == 0
    assert "Use --how draws" in only_line(call("export", run, tmp_path / "model.onnx"))
    line = only_line(call("export", run, tmp_path / "model.txt", "--how", "mean"))
    assert "an .onnx or a .pt2 file, got" in line
    line = only_line(call("export", run, run / "model.json"))
    assert "is a file of a trained model" in line
    line = only_line(call("export", tmp_path, tmp_path / "model.onnx"))
    assert "is not the folder of a trained model" in line
    assert not list(tmp_path.glob("model.*"))
