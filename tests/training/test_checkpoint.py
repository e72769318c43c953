"""Checkpoints: whole or not at all, refused by name, never unpickled."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import bayesrule
from bayesrule import Dense, Diagonal, GaussianLikelihood, Learner, LowRank
from bayesrule.matrices import Isotropic, Structure
from bayesrule.posteriors import Gaussian
from bayesrule.training import checkpoint
from bayesrule.training.checkpoint import CheckpointError
from bayesrule.types import State

X = torch.linspace(-1.0, 1.0, 12).unsqueeze(1)
# Without a structure the last layer has a full covariance, and the others have none.
STRUCTURES: dict[str, Structure | None] = {
    "isotropic": Isotropic(),
    "diagonal": Diagonal(),
    "dense": Dense(),
    "low rank": LowRank(2),
    "last layer": None,
}


def net(width: int = 4, dtype: torch.dtype = torch.float32) -> nn.Module:
    """A small net with buffers of several types."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(1, width), nn.BatchNorm1d(width), nn.ReLU())
    module.append(nn.Linear(width, 1, bias=True))
    module.register_buffer("mask", torch.tensor([True, False]))
    return module.to(dtype)


def laplace(
    structure: Structure | None = STRUCTURES["diagonal"], module: nn.Module | None = None
) -> Learner:
    """A learner whose final belief has any structure, and whose noise is learned."""
    likelihood = GaussianLikelihood()
    return bayesrule.laplace(module or net(), likelihood, structure=structure, num_data=12)


def trained(learner: Learner, steps: int = 2) -> State:
    """A state after some steps and the end of training."""
    state = learner.init(seed=5)
    for _ in range(steps):
        state, _ = learner.step(state, (X, X))
    return learner.finish(state, [(X, X)])


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Learner, State]:
    """A checkpoint, the learner that made it, and the state in it."""
    learner = laplace()
    state = trained(learner)
    return checkpoint.save(tmp_path / "a.safetensors", state, note="first"), learner, state


@pytest.mark.parametrize("structure", STRUCTURES.values(), ids=STRUCTURES)
def test_a_state_of_any_structure_comes_back_bit_for_bit(
    structure: Structure | None, tmp_path: Path
) -> None:
    learner = laplace(structure)
    state = trained(learner)
    path = checkpoint.save(tmp_path / "deep" / "a.safetensors", state, epoch=3, scores=[0.1, None])
    found, facts = checkpoint.load(path, learner.init())
    assert checkpoint.same(found, state)
    assert type(found.posterior) is type(state.posterior)
    assert (found.step, found.seed) == (2, 5)
    assert facts == checkpoint.facts(path) == {"epoch": 3, "scores": [0.1, None]}
    # What comes back can be trained and predicts the same.
    after, _ = learner.step(found, (X, X))
    assert checkpoint.same(after, learner.step(state, (X, X))[0])
    mean = bayesrule.predict(learner, found, X).variance
    assert torch.equal(mean, bayesrule.predict(learner, state, X).variance)


@pytest.mark.parametrize("method", sorted(bayesrule.methods.METHODS))
def test_every_method_goes_on_from_its_checkpoint(method: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    learner = bayesrule.methods.METHODS[method](nn.Linear(1, 1), GaussianLikelihood(), num_data=12)
    state, _ = learner.step(learner.init(seed=1), (X, X))
    path = checkpoint.save(tmp_path / "a.safetensors", state)
    found, _ = checkpoint.load(path, learner.init())
    assert checkpoint.same(learner.step(found, (X, X))[0], learner.step(state, (X, X))[0])


def test_same_sees_every_bit() -> None:
    learner = laplace()
    state = learner.init()

    def with_bias(value: float, dtype: torch.dtype = torch.float32) -> State:
        mean = {**state.posterior.mean, "3.bias": torch.tensor([value], dtype=dtype)}
        assert isinstance(state.posterior, Gaussian)
        return dataclasses.replace(state, posterior=Gaussian(mean, state.posterior.precision))

    assert checkpoint.same(with_bias(float("nan")), with_bias(float("nan")))
    assert not checkpoint.same(with_bias(0.0), with_bias(-0.0))
    assert not checkpoint.same(with_bias(1.0), with_bias(1.0 + 2**-23))
    assert not checkpoint.same(with_bias(1.0), with_bias(1.0, torch.float64))
    assert not checkpoint.same(state, dataclasses.replace(state, step=1))
    assert not checkpoint.same(state, dataclasses.replace(state, buffers={}))


# What disks and people do to files.
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "one byte": lambda content: content[:1],
    "half": lambda content: content[: len(content) // 2],
    "last byte lost": lambda content: content[:-1],
    "garbage": lambda content: bytes(255 - byte for byte in content),
    "huge header": lambda content: b"\xff" * 8 + content[8:],
    "header damaged": lambda content: content[:20] + b"\x00\x00" + content[22:],
    "text": lambda content: b"step,loss\n1,0.5\n",
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_is_named_and_left_as_it_is(
    how: str, saved: tuple[Path, Learner, State]
) -> None:
    path, learner, _ = saved
    path.write_bytes(DAMAGES[how](path.read_bytes()))
    before, template = path.read_bytes(), learner.init()
    for read in (lambda: checkpoint.load(path, template), lambda: checkpoint.facts(path)):
        with pytest.raises(CheckpointError, match=r"a\.safetensors is not a whole checkpoint"):
            read()
    assert path.read_bytes() == before
    assert checkpoint.same(template, learner.init())


def test_a_tensor_file_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    safetensors.torch.save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match=r"other\.safetensors is not a whole checkpoint"):
        checkpoint.load(path, laplace().init())
    metadata = {"numbers": "{", "facts": json.dumps({})}
    safetensors.torch.save_file({"weight": torch.zeros(2)}, path, metadata)
    with pytest.raises(CheckpointError, match=r"other\.safetensors is not a whole checkpoint"):
        checkpoint.facts(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"There is no checkpoint .*nowhere"):
        checkpoint.load(tmp_path / "nowhere.safetensors", laplace().init())
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        checkpoint.load(tmp_path, laplace().init())


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (
            lambda: laplace(module=net(5)),
            r"'posterior/mean/0.weight' is \(4, 1\) and should be \(5, 1\)",
        ),
        (
            lambda: laplace(module=net(dtype=torch.float64)),
            "is torch.float32 and should be torch.float64",
        ),
        (lambda: laplace(Dense()), "it also holds 'posterior/precision/values/0.bias'"),
        (
            lambda: bayesrule.ogn(net(), GaussianLikelihood(noise=1.0), num_data=12),
            "it also holds 'likelihood/a'",
        ),
        (
            lambda: bayesrule.rmsprop(net(), GaussianLikelihood(), num_data=12),
            "it also holds 'rule/optimiser",
        ),
    ],
    ids=["width", "type", "structure", "noise", "method"],
)
def test_a_checkpoint_of_another_model_is_refused_by_name(
    other: Callable[[], Learner], what: str, saved: tuple[Path, Learner, State]
) -> None:
    with pytest.raises(CheckpointError, match=rf"a\.safetensors was written by another .*{what}"):
        checkpoint.load(saved[0], other().init())


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return Path.touch, (self.marker,)  # type: ignore[return-value]


def test_a_pickle_is_refused_and_not_executed(tmp_path: Path) -> None:
    marker, path = tmp_path / "executed", tmp_path / "checkpoint.safetensors"
    template = laplace().init()
    path.write_bytes(pickle.dumps(Trap(marker)))
    with pytest.raises(CheckpointError, match="not a whole checkpoint"):
        checkpoint.load(path, template)
    torch.save({"state": Trap(marker)}, path)
    with pytest.raises(CheckpointError, match="not a whole checkpoint"):
        checkpoint.load(path, template)
    assert not marker.exists()
    # The trap itself works.
    pickle.loads(pickle.dumps(Trap(marker)))
    assert marker.exists()


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_while_writing_leaves_the_old_file(
    call: str, saved: tuple[Path, Learner, State], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, learner, state = saved
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(
        CheckpointError, match=r"Cannot write .*a\.safetensors .*No space left.*unt"
    ):
        checkpoint.save(path, learner.step(state, (X, X))[0], note="second")
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["a.safetensors"]


FULL_DISK = """
import resource, signal, sys, torch
from torch import nn
import bayesrule
from bayesrule.training import checkpoint
path, limit = sys.argv[1], int(sys.argv[2])
learner = bayesrule.vogn(nn.Linear(100, 100), bayesrule.GaussianLikelihood(), num_data=9)
# Without the signal a write beyond the limit fails in the middle, as on a full disk.
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    checkpoint.save(path, learner.init(seed=2), note="second")
except checkpoint.CheckpointError as problem:
    print(problem)
    sys.exit(3)
"""


def test_a_disk_that_fills_up_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    learner = bayesrule.vogn(nn.Linear(100, 100), GaussianLikelihood(), num_data=9)
    checkpoint.save(path, learner.init(seed=1), note="first")
    before = path.read_bytes()
    command = [sys.executable, "-c", FULL_DISK, str(path), str(len(before) // 2)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3, done.stderr
    assert "Cannot write" in done.stdout
    assert "The file that was there is untouched" in done.stdout
    assert path.read_bytes() == before
    assert checkpoint.load(path, learner.init())[1] == {"note": "first"}
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_folder_that_is_a_file_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("something else")
    with pytest.raises(CheckpointError, match=r"Cannot write .*taken/a\.safetensors"):
        checkpoint.save(tmp_path / "taken" / "a.safetensors", laplace().init())
    assert (tmp_path / "taken").read_text() == "something else"


def test_without_safetensors_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"pip install 'bayesrule\[front\]'"):
        checkpoint.save(tmp_path / "a.safetensors", laplace().init())
