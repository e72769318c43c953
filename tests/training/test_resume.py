"""Runs and their folders: refused, started over, killed and gone on with."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sine import X, Y, laplace, net, quick, vogn

from bayesrule import Learner, fit, load_run
from bayesrule.training import Run, checkpoint
from bayesrule.training.checkpoint import CheckpointError
from bayesrule.training.train import Epoch

# Children come from a clean process that has torch loaded: quick to start and safe to kill.
SERVER = multiprocessing.get_context("forkserver")
# The last two are what the first gradient and the first checkpoint would load.
PRELOAD = ["pytest", "bayesrule", "torch.fx.experimental.symbolic_shapes", "safetensors.torch"]
SERVER.set_forkserver_preload(PRELOAD)


# --- folders ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("learner", "options", "what"),
    [
        (vogn, {"batch_size": 4}, "batch_size=5, this one has batch_size=4"),
        (vogn, {"seed": 1}, "seed=0, this one has seed=1"),
        (laplace, {}, "parts.posterior=Diagonal, this one has parts.posterior=Dense"),
        (lambda: vogn(prior_precision=2.0), {}, "prior_precision=1.0, this one has"),
        (lambda: vogn(temperature=0.5), {}, "temperature=0.645.*, this one has temperature=0.5"),
        (lambda: vogn(learning_rate=0.2), {}, "rule.learning_rate=0.1, this one has rule.lear"),
        (lambda: vogn(rate=2e-3), {}, "rule.rate=0.001, this one has rule.rate=0.002"),
        (lambda: vogn(momentum=0.5), {}, "rule.momentum.decay=0.9, this one has rule.mom"),
        (lambda: vogn(draws=2), {}, "expectation.num=1, this one has expectation.num=2"),
    ],
    ids=[
        "batch size",
        "seed",
        "method",
        "prior",
        "temperature",
        "learning rate",
        "rate",
        "momentum",
        "draws",
    ],
)
def test_another_run_in_the_same_folder_is_refused(
    learner: Callable[[], Learner], options: dict[str, Any], what: str, tmp_path: Path
) -> None:
    fit(vogn(), (X, Y), epochs=1, batch_size=5, out=tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(CheckpointError, match=rf"checkpoint\.safetensors belongs to .*{what}"):
        fit(learner(), (X, Y), epochs=2, out=tmp_path, **{"batch_size": 5, **options})
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_starting_over_leaves_nothing_of_the_run_before(tmp_path: Path) -> None:
    train_case("early stopping", tmp_path)
    mine = ["best-model.safetensors", ".download.safetensors.7.part", "notes.txt"]
    for name in mine:
        (tmp_path / name).write_text("mine")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(vogn(), (X, Y), epochs=2, out=tmp_path, resume=False, callback=stop)
    # Interrupted before its first checkpoint: the older run must not seem to be this one.
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(mine)
    run = fit(vogn(), (X, Y), epochs=2, out=tmp_path)
    assert checkpoint.same(run.state, fit(vogn(), (X, Y), epochs=2).state)
    assert all((tmp_path / name).read_text() == "mine" for name in mine)


def test_a_finished_run_is_loaded_and_can_be_prolonged(tmp_path: Path) -> None:
    run = fit(laplace(), (X, Y), epochs=2, out=tmp_path)
    loaded = load_run(laplace(), tmp_path)
    assert checkpoint.same(loaded.state, run.state)
    assert loaded.history == run.history
    longer = fit(laplace(), (X, Y), epochs=4, out=tmp_path)
    assert longer.history[:2] == run.history
    assert checkpoint.same(longer.state, fit(laplace(), (X, Y), epochs=4).state)


def test_a_damaged_checkpoint_is_named_and_nothing_is_trained(tmp_path: Path) -> None:
    fit(quick(), (X, Y), epochs=1, out=tmp_path)
    (tmp_path / "checkpoint.safetensors").write_bytes(b"half a fi")
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors is not a whole checkpoint"):
        fit(quick(), (X, Y), epochs=2, out=tmp_path)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == b"half a fi"


def test_checkpoints_are_written_as_often_as_asked(tmp_path: Path) -> None:
    fit(quick(), (X, Y), epochs=3, out=tmp_path / "seldom", checkpoint_seconds=1e6)
    history = checkpoint.facts(tmp_path / "seldom" / "checkpoint.safetensors")["history"]
    # The last one always.
    assert len(history) == 3


# --- killed and resumed -------------------------------------------------------------------------

# Each case: what is trained, and how.
CASES: dict[str, tuple[Callable[[], Learner], dict[str, Any]]] = {
    "dropout, batch norm, learned noise": (vogn, {"epochs": 12, "validation": (X, Y)}),
    "laplace": (laplace, {"epochs": 12}),
    # Targets between the first outputs and the data: the score rises, then falls.
    "early stopping": (
        lambda: laplace(learning_rate=0.004),
        {"epochs": 12, "validation": (X, 0.6 * net()(X).detach() + 0.4 * Y), "patience": 3},
    ),
}


def train_case(case: str, out: Path | None, **options: Any) -> Run:
    """Trains a case, writing a checkpoint after every epoch."""
    make, given = CASES[case]
    return fit(make(), (X, Y), batch_size=6, out=out, checkpoint_seconds=0.0, **given, **options)


def train_slowly(case: str, out: Path) -> None:
    """In a child: training that takes long enough to be killed."""
    train_case(case, out, callback=lambda *_: time.sleep(0.02))


def train_and_die(case: str, out: Path, call: str, count: int) -> None:
    """In a child: dies by SIGKILL at the `count`-th call of an operation on files."""
    original, calls = getattr(os, call), iter(range(1, 10_000))

    def deadly(*args: Any) -> None:
        if next(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        original(*args)

    setattr(os, call, deadly)
    train_case(case, out)


def finished(out: Path) -> bool:
    """Whether a run has come to its end."""
    return (out / "final.safetensors").exists()


def history_in(out: Path) -> list[Epoch]:
    """The epochs that the checkpoint of a folder knows of; it must be whole at any time."""
    file = out / "checkpoint.safetensors"
    return checkpoint.facts(file)["history"] if file.exists() else []


def without_times(history: list[Epoch]) -> list[Epoch]:
    """All figures but the wall-clock ones."""
    return [{k: v for k, v in figures.items() if k != "seconds"} for figures in history]


def assert_ends_as_if_uninterrupted(case: str, out: Path) -> None:
    """Resumes a run, and compares its end with that of a run that nobody killed."""
    resumed, whole = train_case(case, out), train_case(case, None)
    assert checkpoint.same(resumed.state, whole.state)
    assert without_times(resumed.history) == without_times(whole.history)
    assert resumed.best_epoch == whole.best_epoch
    # A case that is about early stopping has several best states, and stops.
    if whole.best_epoch is not None:
        assert 1 < whole.best_epoch < len(whole.history) < 12
    make, _ = CASES[case]
    assert checkpoint.same(load_run(make(), out).state, whole.state)
    # Nothing half written, and no more than one best state, is left.
    left = sorted(path.name for path in out.iterdir())
    best = [f"best-{whole.best_epoch}.safetensors"] if whole.best_epoch else []
    assert left == [*best, "checkpoint.safetensors", "files.json", "final.safetensors"]


@pytest.fixture
def delays() -> Iterator[float]:
    """Seconds to wait before a kill: anywhere in the time of two epochs."""
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"delays from seed {seed}")
    generator = np.random.default_rng(seed)
    return iter(lambda: float(generator.uniform(0.0, 0.06)), None)


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_is_killed_again_and_again_ends_as_if_it_had_not_been(
    case: str, tmp_path: Path, delays: Iterator[float]
) -> None:
    kills = 0
    for _ in range(3):
        before = len(history_in(tmp_path))
        child = SERVER.Process(target=train_slowly, args=(case, tmp_path))
        child.start()
        deadline = time.monotonic() + 30.0
        # Each life gets at least one epoch further.
        while len(history_in(tmp_path)) <= before and child.is_alive():
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(next(delays))
        child.kill()
        child.join()
        kills += child.exitcode == -signal.SIGKILL
        assert len(history_in(tmp_path)) > before
    assert kills >= 1
    assert_ends_as_if_uninterrupted(case, tmp_path)


@pytest.mark.parametrize("call", ["fsync", "replace", "unlink"])
@pytest.mark.parametrize("case", ["laplace", "early stopping"])
def test_no_moment_of_writing_is_a_bad_one_to_die_at(case: str, call: str, tmp_path: Path) -> None:
    # fsync: perhaps not yet on the disk; replace: without its name; unlink: no longer needed.
    deaths = 0
    for count in (1, 2, 4):
        child = SERVER.Process(target=train_and_die, args=(case, tmp_path, call, count))
        child.start()
        child.join(30.0)
        deaths += child.exitcode == -signal.SIGKILL
        history_in(tmp_path)
        if finished(tmp_path):
            break
    assert deaths >= 2
    assert_ends_as_if_uninterrupted(case, tmp_path)
