"""Beliefs exported as one module say what `predict` says, in torch, in torch.export and in ONNX."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.expectations import AtMean, Masks, Moments
from bayesrule.likelihoods import HierarchicalLikelihood
from bayesrule.predicting import Linearised, exported
from bayesrule.predicting.predict import How
from bayesrule.tensors.inputs import arguments, parts, take
from bayesrule.training.calibrating import Calibration
from bayesrule.types import State

N = 12


class TwoInputs(nn.Module):
    """Numbers and a category, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.kinds = nn.Linear(3, 4), nn.Embedding(5, 4)
        self.last = nn.Linear(4, 1)

    def forward(self, x: Tensor, kind: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x) + self.kinds(kind)))


class OneDict(nn.Module):
    """A dict as its only argument."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 1)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.inner(batch["x"])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cell(x)[0][:, -1])


def net(outputs: int, activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), activation(), nn.Linear(8, outputs))


def image_net() -> nn.Module:
    parts = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.3)
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(16, 3))


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
    return nn.Sequential(nn.Linear(3, 6), layer, nn.Flatten(), nn.Linear(12, 3))


def numbers(*shape: int) -> Tensor:
    return torch.randn(N, *shape)


def classes() -> Tensor:
    return torch.arange(N) % 3


# The learner, its inputs and targets, and how it predicts.
CASES: dict[str, Any] = {
    "numbers": lambda: (br.vogn, net(1), br.GaussianLikelihood(), numbers(3), numbers(1), None),
    "at the mean": lambda: (
        br.vogn, net(1), br.GaussianLikelihood(noise=0.3), numbers(3), numbers(1), AtMean()
    ),
    "classes": lambda: (
        br.noisy_kfac, net(3), br.CategoricalLikelihood(), numbers(3), classes(), br.Draws(4)
    ),
    "one answer": lambda: (
        br.mean_field, net(1), br.BernoulliLikelihood(), numbers(3), (classes() > 0).float(),
        br.Draws(4, antithetic=True),
    ),
    "several answers": lambda: (
        br.vogn, net(2), br.BernoulliLikelihood(), numbers(3), torch.ones(N, 2), br.Draws(4)
    ),
    "noise by input": lambda: (
        br.vogn, net(2), br.HeteroscedasticLikelihood(), numbers(3), numbers(1), br.Draws(4)
    ),
    "counts": lambda: (
        br.vogn, net(1), br.PoissonLikelihood(), numbers(3), classes().float(), br.Draws(4)
    ),
    "masks": lambda: (
        br.dropout, net(1), br.GaussianLikelihood(), numbers(3), numbers(1), Masks(4)
    ),
    "moments": lambda: (
        br.tagi, net(1, nn.ReLU), br.GaussianLikelihood(), numbers(3), numbers(1), None
    ),
    "moments of classes": lambda: (
        br.tagi, net(3, nn.ReLU), HierarchicalLikelihood(3), numbers(3), classes(), Moments()
    ),
    "images": lambda: (
        br.ivon, image_net(), br.CategoricalLikelihood(), numbers(1, 6, 6), classes(), br.Draws(4)
    ),
    "a transformer": lambda: (
        br.ivon, transformer(), br.CategoricalLikelihood(), numbers(2, 3), classes(), br.Draws(4)
    ),
    "a recurrent net": lambda: (
        br.mean_field, Recurrent(), br.GaussianLikelihood(), numbers(5, 3), numbers(1), br.Draws(4)
    ),
    "a dict in a place": lambda: (
        br.mean_field, OneDict(), br.GaussianLikelihood(), ({"x": numbers(3)},), numbers(1),
        br.Draws(4),
    ),
    "tokens": lambda: (
        br.vogn, net(3), br.CategoricalLikelihood(), numbers(4, 3), classes()[:, None].expand(N, 4),
        br.Draws(4),
    ),
    "two inputs by name": lambda: (
        br.mean_field, TwoInputs(), br.GaussianLikelihood(),
        {"x": numbers(3), "kind": torch.arange(N) % 5}, numbers(1), br.Draws(4),
    ),
}  # fmt: skip


def learned(case: str) -> tuple[br.Learner, State, Any, How | None]:
    """A learner after two steps, whose predictions are calibrated."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        method, model, likelihood, x, y, how = CASES[case]()
    learner = method(model, likelihood, num_data=N)
    state = learner.init()
    for _ in range(2):
        state, _ = learner.step(state, (x, y))
    return learner, Calibration(sharpness=0.8, spread=1.7, noise=1.3).applied(state), x, how


def called(module: Any, x: Any) -> dict[str, Tensor]:
    args, named = arguments(x)
    with torch.no_grad():
        found: dict[str, Tensor] = module(*args, **named)
    return found


def agree(found: dict[str, Any], prediction: Any) -> None:
    assert set(found) in (
        {"mean", "epistemic", "aleatoric"}, {"probs", "entropy", "mutual_information"}
    )  # fmt: skip
    for name, value in found.items():
        expected = getattr(prediction, name)
        torch.testing.assert_close(torch.as_tensor(value), expected, rtol=1e-4, atol=2e-6)


def some(x: Any, rows: slice) -> Any:
    return take(x, rows)


@pytest.mark.parametrize("case", CASES)
def test_the_module_says_what_predict_says(case: str) -> None:
    learner, state, x, how = learned(case)
    made = exported(learner, state, some(x, slice(0, 3)), how, seed=5)
    agree(called(made, x), br.predict(learner, state, x, how, seed=5))
    assert not list(made.parameters())


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("case", CASES)
def test_the_graph_says_the_same_for_any_number_of_examples(case: str) -> None:
    learner, state, x, how = learned(case)
    program = exported(learner, state, some(x, slice(0, 1)), how, seed=5).program().module()
    for rows in (slice(0, N), slice(2, 3)):
        part = some(x, rows)
        agree(called(program, part), br.predict(learner, state, part, how, seed=5))


@pytest.mark.parametrize("case", CASES)
def test_onnx_says_the_same(case: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    learner, state, x, how = learned(case)
    file = exported(learner, state, x, how).write(tmp_path / "model.onnx", {"target": "price"})
    session = onnxruntime.InferenceSession(str(file))
    assert session.get_modelmeta().custom_metadata_map["target"] == "price"
    names = [one.name for one in session.get_inputs()]
    for rows in (slice(0, N), slice(2, 3)):
        part = some(x, rows)
        given = [part[name] for name in names] if isinstance(x, dict) else parts(part)
        feed = {name: one.numpy() for name, one in zip(names, given, strict=True)}
        outputs = [one.name for one in session.get_outputs()]
        found = dict(zip(outputs, session.run(None, feed), strict=True))
        agree(found, br.predict(learner, state, part, how))


def test_a_program_runs_where_the_library_is_not(tmp_path: Path) -> None:
    learner, state, x, how = learned("classes")
    file = exported(learner, state, x, how).write(tmp_path / "model.pt2", {"target": "kind"})
    np.save(tmp_path / "x.npy", x.numpy())
    code = """
import sys, numpy, torch
sys.modules["bayesrule"] = None  # an import of it fails
notes = {"target": ""}
program = torch.export.load(sys.argv[1] + "/model.pt2", extra_files=notes)
found = program.module()(torch.from_numpy(numpy.load(sys.argv[1] + "/x.npy")))
numpy.save(sys.argv[1] + "/probs.npy", found["probs"].detach().numpy())
print(notes["target"])
"""
    words = [sys.executable, "-I", "-c", code, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "kind"
    expected = br.predict(learner, state, x, how).probs
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "probs.npy")), expected)
    assert file.name == "model.pt2"


def test_draws_are_run_side_by_side_where_torch_can() -> None:
    learner, state, x, how = learned("classes")
    program = exported(learner, state, x, how).program()
    products = [node for node in program.graph.nodes if "matmul" in str(node.target)]
    assert len(products) == 2  # one for each layer, not one for each draw


def test_a_run_exports_itself() -> None:
    learner = br.vogn(net(1), br.GaussianLikelihood(), num_data=N)
    x = numbers(3)
    run = br.fit(learner, (x, numbers(1)), epochs=1)
    agree(called(run.exported(x, br.Draws(3), seed=2), x), run.predict(x, br.Draws(3), seed=2))


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    learner, state, x, _ = learned("numbers")
    with pytest.raises(TypeError, match=r"how=Draws\(32\).*got Linearised"):
        exported(learner, state, x, Linearised())
    with pytest.raises(TypeError, match="got 32"):
        exported(learner, state, x, 32)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"an \.onnx or a \.pt2 file, got '.*model\.pb'"):
        exported(learner, state, x, AtMean()).write(tmp_path / "model.pb")
    assert not list(tmp_path.iterdir())


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    learner, state, x, _ = learned("numbers")
    with pytest.raises(ImportError, match=r"pip install 'bayesrule\[onnx\]'"):
        exported(learner, state, x, AtMean()).write(tmp_path / "model.onnx")
