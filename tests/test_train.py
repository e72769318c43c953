"""Training: figures, early stopping, bad input, and runs that are killed and go on."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesrule
from bayesrule import (
    CategoricalLikelihood,
    Dense,
    GaussianLikelihood,
    Learner,
    Run,
    TrainingError,
    checkpoint,
    fit,
    load_run,
)
from bayesrule.checkpoint import CheckpointError
from bayesrule.train import Epoch
from bayesrule.types import State

X = torch.linspace(-2.0, 2.0, 20).unsqueeze(1)
Y = X.sin()
# Children come from a clean process that has torch loaded: quick to start and safe to kill.
SERVER = multiprocessing.get_context("forkserver")
# The last two are what the first gradient and the first checkpoint would load.
PRELOAD = ["pytest", "bayesrule", "torch.fx.experimental.symbolic_shapes", "safetensors.torch"]
SERVER.set_forkserver_preload(PRELOAD)


def net(*extra: nn.Module) -> nn.Module:
    """A small net, the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 6), *extra, nn.Tanh(), nn.Linear(6, 1))


def vogn(**options: Any) -> Learner:
    """VOGN on a net that draws (dropout) and keeps statistics (batch norm), with learned noise."""
    module = net(nn.BatchNorm1d(6), nn.Dropout(0.2))
    return bayesrule.vogn(module, GaussianLikelihood(), **{"num_data": 20, **options})


def laplace() -> Learner:
    """Laplace: something is left to do once training ends."""
    return bayesrule.laplace(
        net(), GaussianLikelihood(noise=0.3), structure=Dense(), num_data=20, learning_rate=0.05
    )


def quick(learning_rate: float = 0.01) -> Learner:
    """The cheapest learner."""
    likelihood = GaussianLikelihood(noise=1.0)
    return bayesrule.map(net(), likelihood, num_data=20, learning_rate=learning_rate)


# --- figures ------------------------------------------------------------------------------------


def test_history_and_callback_tell_the_same_story() -> None:
    told: list[tuple[Learner, int, Epoch]] = []
    learner = quick()
    run = fit(
        learner,
        (X, Y),
        epochs=3,
        batch_size=8,
        validation=(X, Y),
        callback=lambda who, state, figures: told.append((who, state.step, figures)),
    )
    assert [figures for _, _, figures in told] == run.history
    assert all(who is learner for who, _, _ in told)
    assert [step for _, step, _ in told] == [3, 6, 9]
    assert [(f["epoch"], f["step"]) for f in run.history] == [(1, 3), (2, 6), (3, 9)]
    assert all(f["seconds"] > 0 for f in run.history)
    assert run.best_epoch is None


def test_the_loss_is_per_example_and_the_score_is_the_mean_log_likelihood() -> None:
    run = fit(quick(learning_rate=0.0), (X, Y), epochs=1, batch_size=20, validation=(X[:5], Y[:5]))
    outputs = net()(X).detach()
    nll = 0.5 * (outputs - Y).square() + 0.5 * math.log(2 * math.pi)
    assert run.history[0]["loss"] == pytest.approx(float(nll.mean()), rel=1e-5)
    assert run.history[0]["validation"] == pytest.approx(-float(nll[:5].mean()), rel=1e-5)


def test_a_run_predicts_as_predict_does() -> None:
    run = fit(vogn(), (X, Y), epochs=2)
    expected = bayesrule.predict(run.learner, run.state, X, seed=3)
    assert torch.equal(run.predict(X, seed=3).variance, expected.variance)


@pytest.mark.parametrize(
    "data",
    [
        (X.numpy(), Y.numpy()),
        (X.double().numpy(), Y.double().numpy()),
        [X.tolist(), Y.tolist()],
        (X, Y.squeeze(1)),
        TensorDataset(X, Y),
    ],
    ids=["numpy", "numpy in double precision", "lists", "flat targets", "dataset"],
)
def test_the_kind_of_data_does_not_matter(data: Any) -> None:
    expected = fit(laplace(), (X, Y), epochs=2, validation=(X, Y))
    found = fit(laplace(), data, epochs=2, validation=(np.asarray(X), np.asarray(Y)))
    assert found.history[1]["validation"] == pytest.approx(expected.history[1]["validation"])
    assert checkpoint.same(found.state, expected.state)


def test_a_loader_gives_the_batches() -> None:
    ordered = [(X[:8], Y[:8]), (X[8:], Y[8:])]
    learner = vogn()
    state = learner.init(seed=1)
    for batch in ordered * 2:
        state, _ = learner.step(state, batch)
    assert checkpoint.same(fit(learner, [*ordered, *ordered], epochs=1, seed=1).state, state)
    shuffled = DataLoader(TensorDataset(X, Y), 8, shuffle=True)
    first = fit(laplace(), shuffled, epochs=2).state
    torch.rand(3)
    assert checkpoint.same(fit(laplace(), shuffled, epochs=2).state, first)
    assert not checkpoint.same(fit(laplace(), shuffled, epochs=2, seed=1).state, first)


def test_classes_and_several_inputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 3)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.cat([a, b], 1))

    torch.manual_seed(0)
    classes = (X.squeeze(1) + 2.0).long().clamp(0, 2)
    learner = bayesrule.map(Two(), CategoricalLikelihood(), num_data=20, learning_rate=0.1)
    pair = (X.numpy().astype(np.float64), X.square())
    run = fit(learner, (pair, classes.int()), epochs=60, validation=(pair, classes.numpy()))
    assert run.history[-1]["validation"] > run.history[0]["validation"]
    assert (run.predict(pair).labels == classes).float().mean() > 0.8


def test_the_global_random_state_and_the_module_are_left_alone() -> None:
    learner = vogn()
    before = {k: v.clone() for k, v in learner.model.state_dict().items()}
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    fit(learner, DataLoader(TensorDataset(X, Y), 8, shuffle=True), epochs=1, validation=(X, Y))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(v, before[k]) for k, v in learner.model.state_dict().items())


def test_nothing_is_printed_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    fit(quick(), (X, Y), epochs=2, validation=(X, Y))
    assert capfd.readouterr() == ("", "")


# --- early stopping -----------------------------------------------------------------------------


def stops_early(**options: Any) -> tuple[Run, list[State]]:
    """A run whose validation targets fit the first weights best after a few epochs."""
    states: list[State] = []
    learner = bayesrule.map(net(), GaussianLikelihood(noise=0.3), num_data=20, learning_rate=0.03)
    # Targets between the first outputs and the data: the score rises, then falls.
    between = 0.6 * net()(X).detach() + 0.4 * Y
    keep = lambda _, state, __: states.append(state)  # noqa: E731
    return fit(learner, (X, Y), validation=(X, between), callback=keep, **options), states


def test_early_stopping_goes_back_to_the_best() -> None:
    run, states = stops_early(epochs=100, patience=3)
    scores = [figures["validation"] for figures in run.history]
    best = max(range(len(scores)), key=scores.__getitem__)
    assert 0 < best < 90
    assert run.best_epoch == best + 1
    # Exactly three epochs without a better one.
    assert len(run.history) == best + 1 + 3
    assert checkpoint.same(run.state, states[best])
    assert not checkpoint.same(run.state, states[-1])


def test_the_best_is_taken_even_where_the_epochs_run_out() -> None:
    run, states = stops_early(epochs=100, patience=3)
    assert run.best_epoch is not None
    short, _ = stops_early(epochs=run.best_epoch + 1, patience=3)
    assert len(short.history) == run.best_epoch + 1
    assert checkpoint.same(short.state, states[run.best_epoch - 1])


def test_without_patience_all_epochs_run_and_the_last_is_kept() -> None:
    run, states = stops_early(epochs=20)
    assert len(run.history) == 20
    assert checkpoint.same(run.state, states[-1])


def test_a_score_that_is_no_number_is_never_the_best() -> None:
    # A target that is not a number until the second epoch.
    targets = torch.full_like(Y, float("nan"))

    def mend(_: Learner, __: State, ___: Epoch) -> None:
        targets.copy_(Y)

    run = fit(quick(), (X, Y), epochs=6, validation=(X, targets), patience=5, callback=mend)
    assert math.isnan(run.history[0]["validation"])
    assert run.best_epoch is not None
    assert run.best_epoch > 1


# --- what goes wrong ----------------------------------------------------------------------------


def test_a_loss_that_is_no_number_stops_and_leaves_earlier_checkpoints(tmp_path: Path) -> None:
    x = X.clone()

    def poison(_: Learner, __: State, figures: Epoch) -> None:
        if figures["epoch"] == 2:
            x.fill_(float("nan"))

    options: dict[str, Any] = {"epochs": 4, "out": tmp_path, "checkpoint_seconds": 0.0}
    with pytest.raises(TrainingError, match=r"loss is nan in epoch 3 .*smaller learning_rate"):
        fit(quick(), (x, Y), callback=poison, **options)
    assert len(checkpoint.facts(tmp_path / "checkpoint.safetensors")["history"]) == 2
    assert not (tmp_path / "final.safetensors").exists()
    # With the data mended the run goes on as if nothing had happened.
    assert checkpoint.same(
        fit(quick(), (X, Y), **options).state, fit(quick(), (X, Y), epochs=4).state
    )


def test_weights_that_are_no_numbers_are_not_written(tmp_path: Path) -> None:
    # A step so long that the weights overflow: the loss before it is still a number.
    likelihood = GaussianLikelihood(noise=1e-4)
    learner = bayesrule.sgd(net(), likelihood, num_data=20, learning_rate=1e38)
    with pytest.raises(TrainingError, match="weights are not finite in epoch 1"):
        fit(learner, (X, Y), epochs=1, batch_size=20, out=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"epochs": 0}, ValueError, "epochs is a whole number of at least 1, got 0"),
        ({"epochs": 2.5}, ValueError, "epochs is a whole number of at least 1, got 2.5"),
        ({"batch_size": 0}, ValueError, "batch_size is a whole number of at least 1, got 0"),
        ({"patience": 3}, ValueError, "needs validation data"),
        ({"patience": 0, "validation": (X, Y)}, ValueError, "patience is a whole number .* got 0"),
        ({"validation": X}, TypeError, r"validation is a pair \(x, y\), got Tensor"),
        ({"validation": (X, Y[:3])}, ValueError, "20 inputs but 3 targets"),
        ({"train": (X, Y[:3])}, ValueError, "20 inputs but 3 targets"),
        ({"train": (X, torch.zeros(20, 2))}, ValueError, "needs targets of the shape"),
        ({"train": None}, TypeError, "Training data is .* got NoneType"),
    ],
)
def test_bad_input_is_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    train = options.pop("train", (X, Y)) if "train" in options else (X, Y)
    with pytest.raises(error, match=message):
        fit(quick(), train, **{"epochs": 1, **options})


# --- folders ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("learner", "options", "what"),
    [
        (vogn, {"batch_size": 4}, "batch_size=5, this one has batch_size=4"),
        (vogn, {"seed": 1}, "seed=0, this one has seed=1"),
        (laplace, {}, "parts="),
        (lambda: vogn(prior_precision=2.0), {}, "prior_precision=1.0, this one has"),
        (lambda: vogn(temperature=0.5), {}, "temperature=1.0, this one has"),
        (lambda: vogn(num_data=40), {}, "num_data=20, this one has num_data=40"),
    ],
    ids=["batch size", "seed", "method", "prior", "temperature", "data"],
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
    stops_early(epochs=100, patience=3, out=tmp_path, checkpoint_seconds=0.0)
    (tmp_path / "notes.txt").write_text("mine")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(vogn(), (X, Y), epochs=2, out=tmp_path, resume=False, callback=stop)
    # Interrupted before its first checkpoint: the older run must not seem to be this one.
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    run = fit(vogn(), (X, Y), epochs=2, out=tmp_path)
    assert checkpoint.same(run.state, fit(vogn(), (X, Y), epochs=2).state)


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
    "early stopping": (vogn, {"epochs": 12, "validation": (X, 0.5 * Y), "patience": 4}),
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
    make, _ = CASES[case]
    assert checkpoint.same(load_run(make(), out).state, whole.state)
    # Nothing half written, and no more than one best state, is left.
    left = sorted(path.name for path in out.iterdir())
    best = [f"best-{whole.best_epoch}.safetensors"] if whole.best_epoch else []
    assert left == [*best, "checkpoint.safetensors", "final.safetensors"]


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
