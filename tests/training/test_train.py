"""Training: figures, kinds of data, early stopping, and what goes wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sine import X, Y, laplace, net, quick, vogn
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesrule
from bayesrule import CategoricalLikelihood, GaussianLikelihood, Learner, fit
from bayesrule.training import Run, TrainingError, TrainingWarning, checkpoint
from bayesrule.training.batches import as_batches
from bayesrule.training.train import Epoch
from bayesrule.types import State

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


def test_every_epoch_has_an_order_of_its_own() -> None:
    learner, source = vogn(), as_batches((X, Y), 6)
    state = learner.init(seed=4)
    for epoch in range(2):
        for batch in source.epoch(epoch, seed=4):
            state, _ = learner.step(state, batch)
    assert checkpoint.same(fit(learner, (X, Y), epochs=2, batch_size=6, seed=4).state, state)


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
    with pytest.raises(TrainingError, match=r"loss is nan in epoch 3 .*row 0, column 0"):
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
    with (
        pytest.warns(TrainingWarning, match="diverged in epoch 1"),
        pytest.raises(TrainingError, match="weights are not finite in epoch 1"),
    ):
        fit(learner, (X, Y), epochs=1, batch_size=20, out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def spoiled(tensor: torch.Tensor, *place: int, value: float = math.nan) -> torch.Tensor:
    """A tensor with one number that is none."""
    new = tensor.clone()
    new[place] = value
    return new


@pytest.mark.parametrize(
    ("train", "where"),
    [
        ((spoiled(X, 7, 0), Y), "training inputs have nan in row 7, column 0 "),
        ((X, spoiled(Y, 3, 0, value=math.inf)), "training targets have inf in row 3, column 0 "),
        (
            DataLoader(TensorDataset(X, spoiled(Y, 13, 0)), 5),
            "training targets have nan in row 3, column 0 of batch 2 ",
        ),
    ],
    ids=["inputs", "targets", "loader"],
)
def test_data_that_are_not_finite_are_blamed_by_row_and_column(train: Any, where: str) -> None:
    with pytest.raises(TrainingError, match=f"The {where}") as problem:
        fit(quick(), train, epochs=1)
    assert "learning_rate" not in str(problem.value)


def test_parameters_that_are_not_finite_are_blamed_by_name() -> None:
    learner = quick()
    with torch.no_grad():
        learner.model[2].bias.fill_(math.nan)  # type: ignore[index, operator]
    with pytest.raises(TrainingError, match=r"parameter '2\.bias' was not finite when training"):
        fit(learner, (X, Y), epochs=1)


def test_weights_that_a_step_spoils_are_named() -> None:
    likelihood = GaussianLikelihood(noise=1e-4)
    learner = bayesrule.sgd(net(), likelihood, num_data=20, learning_rate=1e38)
    with (
        pytest.warns(TrainingWarning, match="diverged in epoch 1"),
        pytest.raises(TrainingError, match=r"The first is '0\.weight'; a smaller learning_rate"),
    ):
        fit(learner, (X, Y), epochs=1, batch_size=20)


@pytest.mark.parametrize(
    "train",
    [(X[:15], Y[:15]), TensorDataset(X[:15], Y[:15]), DataLoader(TensorDataset(X[:15], Y[:15]), 4)],
    ids=["tensors", "dataset", "loader"],
)
def test_num_data_is_the_number_of_examples(train: Any) -> None:
    with pytest.raises(ValueError, match=r"num_data=20, but there are 15 examples.*num_data=15"):
        fit(quick(), train, epochs=1)
    part = torch.utils.data.SubsetRandomSampler(range(20))
    fit(quick(), DataLoader(TensorDataset(X.repeat(2, 1), Y.repeat(2, 1)), sampler=part), epochs=1)


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
