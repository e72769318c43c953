"""One training at a time in a folder, and Ctrl-C: who is refused, and what is left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sine import X, Y, quick, vogn
from torch.utils.data import DataLoader, TensorDataset

from bayesrule import fit, load_run
from bayesrule.training import checkpoint
from bayesrule.training.checkpoint import CheckpointError
from bayesrule.training.lock import NAME, occupied

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["pytest", "bayesrule", "safetensors.torch"])


def test_a_folder_is_for_one_training_at_a_time(tmp_path: Path) -> None:
    def intrude(*_: object) -> None:
        def other() -> None:
            with pytest.raises(CheckpointError, match=rf"in use: process {os.getpid()} on"):
                fit(quick(), (X, Y + 1), epochs=1, out=tmp_path)
            tried.append(True)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    tried: list[bool] = []
    run = fit(quick(), (X, Y), epochs=2, out=tmp_path, callback=intrude)
    assert tried == [True, True]
    assert checkpoint.same(run.state, load_run(quick(), tmp_path).state)
    assert not (tmp_path / NAME).exists()


def test_a_lock_is_asked_for_again_by_its_holder_and_let_go_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), occupied(tmp_path), occupied(tmp_path):
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    # What a killed process leaves behind is no lock.
    (tmp_path / NAME).write_text("process 1 on nowhere")
    with occupied(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(CheckpointError, match=r"Cannot write into the folder .*file"):
        fit(quick(), (X, Y), epochs=1, out=tmp_path / "file")


def wait_for(file: Path) -> None:
    """Waits until a file is there."""
    deadline = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def train_for_long(out: Path, workers: int) -> None:
    """In a child: an endless training, with workers that are forked from it."""
    data = DataLoader(
        TensorDataset(X, Y),
        5,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    fit(
        quick(),
        data if workers else (X, Y),
        epochs=10**6,
        out=out,
        checkpoint_seconds=0.0,
        callback=lambda *_: time.sleep(0.01),
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_another_process_is_refused_until_the_first_one_dies(workers: int, tmp_path: Path) -> None:
    child = SERVER.Process(target=train_for_long, args=(tmp_path, workers))
    child.start()
    wait_for(tmp_path / "checkpoint.safetensors")
    data = DataLoader(TensorDataset(X, Y), 5) if workers else (X, Y)
    with pytest.raises(CheckpointError, match=f"in use: process {child.pid} on .* is training"):
        fit(quick(), data, epochs=1, out=tmp_path)
    with pytest.raises(CheckpointError, match="in use"):
        fit(quick(), data, epochs=1, out=tmp_path, resume=False)
    child.kill()
    child.join()
    # At once, although its workers may live on for a while.
    assert (tmp_path / NAME).exists()
    done = len(checkpoint.facts(tmp_path / "checkpoint.safetensors")["history"])
    run = fit(quick(), data, epochs=done + 1, out=tmp_path)
    assert len(run.history) == done + 1
    assert not (tmp_path / NAME).exists()


# --- Ctrl-C ---------------------------------------------------------------------------------------


def at_step(number: int, what: Callable[[], None]) -> Any:
    """Does something during a step."""
    return lambda state, _: what() if state.step == number else None


@pytest.mark.parametrize("step", [1, 6, 8], ids=["first", "middle", "end of an epoch"])
def test_an_interrupted_run_writes_a_checkpoint_and_says_so(step: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": 4, "batch_size": 6, "validation": (X, Y)}
    press = at_step(step, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt, match=rf"checkpoint is in {tmp_path}: the same call"):
        fit(vogn(), (X, Y), out=tmp_path, on_step=press, **options)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    steps: list[int] = []
    run = fit(
        vogn(), (X, Y), out=tmp_path, on_step=lambda state, _: steps.append(state.step), **options
    )
    assert steps == list(range(step + 1, 17))
    whole = fit(vogn(), (X, Y), **options)
    assert checkpoint.same(run.state, whole.state)
    assert [f["loss"] for f in run.history] == [f["loss"] for f in whole.history]
    assert checkpoint.same(load_run(vogn(), tmp_path).state, whole.state)


def test_a_second_interrupt_stops_at_once(tmp_path: Path) -> None:
    def press_twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(quick(), (X, Y), out=tmp_path, on_step=at_step(1, press_twice))
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_and_with_a_handler_of_ones_own_nothing_changes(tmp_path: Path) -> None:
    press = at_step(1, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        fit(quick(), (X, Y), on_step=press)
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: heard.append(number))
    try:
        run = fit(quick(), (X, Y), epochs=2, out=tmp_path, on_step=press)
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]
    assert len(run.history) == 2


def test_an_interrupt_after_the_last_step_of_an_epoch_keeps_the_epoch(tmp_path: Path) -> None:
    def press(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="after 1 epochs and 0 batches"):
        fit(quick(), (X, Y), epochs=3, out=tmp_path, callback=press)
    assert len(checkpoint.facts(tmp_path / "checkpoint.safetensors")["history"]) == 1
