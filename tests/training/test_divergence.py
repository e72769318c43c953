"""Training that diverges: it is noticed, said in words, and recovered from."""

from __future__ import annotations

import math
import os
import re
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from sine import X, Y, net
from torch import nn

import bayesrule as br
from bayesrule import GaussianLikelihood, Learner, fit, fit_many
from bayesrule.schedules import falling
from bayesrule.training import Run, TrainingError, TrainingWarning, checkpoint, loop

OPTIONS: dict[str, Any] = {"epochs": 8, "batch_size": 5}


def learner(rate: Any = 0.01, model: nn.Module | None = None) -> Learner:
    likelihood = GaussianLikelihood(noise=0.1)
    return br.map(model or net(), likelihood, num_data=20, learning_rate=rate)


def steep(rate: float = 0.01, at: int = 13, factor: float = 300.0) -> Learner:
    """A learner whose rate is much too large at one step, in the fourth epoch."""
    return learner(lambda step: rate * (factor if step == at else 1.0))


def warned(*args: Any, **options: Any) -> tuple[Run, list[str]]:
    """A run, and what it warned of."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run = fit(*args, **options)
    assert all(issubclass(one.category, TrainingWarning) for one in found)
    return run, [str(one.message) for one in found]


def ivon() -> tuple[Learner, tuple[torch.Tensor, torch.Tensor]]:
    """Fifty points of a sine, and steps that are too long for them."""
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-3.0, 3.0, 50).unsqueeze(1)
    y = x.sin() + 0.1 * torch.randn(50, 1, generator=generator)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
    rates: dict[str, float] = {
        "learning_rate": 0.2,
        "initial_curvature": 2.0,
        "kl_clip": math.inf,
        "temperature": 1.0,
    }
    return br.ivon(model, GaussianLikelihood(noise=0.1), num_data=50, **rates), (x, y)


def test_a_training_that_explodes_ends_well() -> None:
    explosive, (x, y) = ivon()
    run, said = warned(explosive, (x, y), epochs=100)
    assert said
    assert re.fullmatch(
        r"Training diverged in epoch \d+: the loss rose from [\d.]+ to [\d.e+]+\. It begins again "
        r"with a quarter of the learning rate \(0\.05\)\.",
        said[0],
    )
    assert float((run.predict(x).mean - x.sin()).square().mean().sqrt()) < 0.5
    assert len(run.history) == 100
    assert run.learner is explosive


def test_early_on_it_begins_again() -> None:
    run, said = warned(steep(), (X, Y), **OPTIONS)
    assert len(said) == 1
    assert "diverged in epoch 4" in said[0]
    assert "begins again with a quarter of the learning rate (0.0025)" in said[0]
    expected = fit(steep(0.0025), (X, Y), **OPTIONS)
    assert checkpoint.same(run.state, expected.state)
    assert [f["loss"] for f in run.history] == [f["loss"] for f in expected.history]
    assert [f["epoch"] for f in run.history] == list(range(1, 9))


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings in which the fourth epoch is late."""
    monkeypatch.setattr(loop, "_EARLY", 8)


@pytest.mark.usefixtures("late")
def test_later_it_goes_on_from_the_last_good_epoch() -> None:
    run, said = warned(steep(), (X, Y), **OPTIONS)
    assert len(said) == 1
    assert re.search(r"diverged in epoch 4: .* goes on from epoch 3 with a quarter", said[0])
    first = fit(steep(), (X, Y), batch_size=5, epochs=3)
    assert [f["loss"] for f in run.history[:3]] == [f["loss"] for f in first.history]
    # The other batches of the data, with the smaller rate.
    slow, state, source = steep(0.0025), first.state, br.training.batches.as_batches((X, Y), 5)
    for epoch in range(3, 8):
        for batch in source.epoch(epoch, seed=0):
            state, _ = slow.step(state, batch)
    assert checkpoint.same(run.state, state)


@pytest.mark.usefixtures("late")
def test_where_that_is_not_enough_it_begins_again() -> None:
    explosive = steep(factor=1000.0)
    run, said = warned(explosive, (X, Y), **OPTIONS)
    assert [re.findall("goes on from epoch 3|begins again", one) for one in said] == [
        ["goes on from epoch 3"],
        ["begins again"],
    ]
    assert len(run.history) == 8


def test_three_times_are_enough() -> None:
    message = (
        r"in epoch \d+ \(step \d+\) with a learning rate made smaller 3 times, so training stops"
    )
    with pytest.warns(TrainingWarning) as said, pytest.raises(TrainingError, match=message):
        fit(steep(factor=1e5), (X, Y), **OPTIONS)
    rates = [float(re.findall(r"\((.*)\)", str(one.message))[0]) for one in said]
    assert rates == pytest.approx([0.0025, 0.000625, 0.00015625], rel=1e-3)


def test_data_and_first_weights_are_blamed_at_once() -> None:
    spoiled = Y.clone()
    spoiled[3] = math.nan
    with pytest.raises(TrainingError, match="targets have nan in row 3"):
        fit(learner(), (X, spoiled), epochs=2)
    built = learner()
    with torch.no_grad():
        built.model[0].bias[0] = math.inf  # type: ignore[index, operator]
    with pytest.raises(TrainingError, match=r"parameter '0\.bias' was not finite"):
        fit(built, (X, Y), epochs=2)


def test_without_a_learning_rate_only_numbers_that_are_none_stop() -> None:
    tagi = br.tagi(net(), GaussianLikelihood(noise=0.1), num_data=20)
    shift = lambda *_: X_MOVED[1].add_(1e3)  # noqa: E731
    X_MOVED = X.clone(), Y.clone()
    run = fit(tagi, X_MOVED, epochs=2, callback=shift)
    assert run.history[1]["loss"] > 1e3


def test_a_loss_that_only_wavers_is_left_alone() -> None:
    from bayesrule.training.batches import as_batches
    from bayesrule.training.net import Net

    one = Net(learner(), as_batches((X, Y), 5), 0, None)
    assert not one.exploded(1e30)
    one.history = [{"loss": 2.0}, {"loss": -3.0}]
    assert [one.exploded(loss) for loss in (2.0, 21.9, 51.9, 52.1)] == [False, False, False, True]
    one.history = [{"loss": 5000.0}]
    assert [one.exploded(loss) for loss in (5100.0, 54e3, 56e3)] == [False, False, True]
    assert not one.exploded(math.nan)


def test_a_falling_rate_falls_from_a_quarter(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    bound = loop.Loop._bound

    def noted(self: loop.Loop) -> Learner:
        seen.append(bound(self).rule.learning_rate)  # type: ignore[attr-defined]
        return bound(self)

    monkeypatch.setattr(loop.Loop, "_bound", noted)
    with pytest.warns(TrainingWarning), pytest.raises(TrainingError):
        fit(learner(falling(1e30)), (X, Y), **OPTIONS)
    assert seen[0] == falling(1e30, 0, 32)
    assert seen[1] == falling(0.25e30, 0, 32)


def test_early_stopping_forgets_the_epochs_that_were_thrown_away() -> None:
    check = X, 0.6 * net()(X).detach() + 0.4 * Y
    run, said = warned(steep(), (X, Y), validation=check, patience=6, **OPTIONS)
    assert said
    expected = fit(steep(0.0025), (X, Y), validation=check, patience=6, **OPTIONS)
    assert run.best_epoch == expected.best_epoch
    assert checkpoint.same(run.state, expected.state)


# --- resumed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("early", [True, False], ids=["begins again", "goes on"])
@pytest.mark.parametrize("when", [6, 14, 18, 27])
def test_an_interrupted_run_ends_as_if_it_had_not_been(
    when: int, early: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted before, in, and after the epoch that diverges, each time in the middle."""
    if not early:
        monkeypatch.setattr(loop, "_EARLY", 8)
    whole, said = warned(steep(), (X, Y), **OPTIONS)
    assert len(said) == 1
    taken: list[int] = []

    def press(state: Any, _: Any) -> None:
        taken.append(state.step)
        if len(taken) == when:
            signal.raise_signal(signal.SIGINT)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        with pytest.raises(KeyboardInterrupt):
            fit(steep(), (X, Y), out=tmp_path, on_step=press, **OPTIONS)
        # In the middle of an epoch the state that it began with is kept, too.
        assert len(list(tmp_path.glob("begin-*"))) == 1
        run = fit(steep(), (X, Y), out=tmp_path, **OPTIONS)
    assert checkpoint.same(run.state, whole.state)
    assert [f["loss"] for f in run.history] == [f["loss"] for f in whole.history]
    assert not list(tmp_path.glob("begin-*"))


def die(out: Path, epoch: int) -> None:
    """In a child: dies after an epoch."""

    def kill(_: Learner, __: Any, figures: Any) -> None:
        if figures["epoch"] == epoch:
            os.kill(os.getpid(), signal.SIGKILL)

    warnings.simplefilter("ignore")
    fit(steep(), (X, Y), out=out, checkpoint_seconds=0.0, callback=kill, **OPTIONS)


@pytest.mark.parametrize("epoch", [5, 7])
def test_a_killed_run_remembers_that_it_was_slowed(epoch: int, tmp_path: Path) -> None:
    whole, _ = warned(steep(), (X, Y), **OPTIONS)
    child = os.fork()
    if child == 0:
        die(tmp_path, epoch)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert checkpoint.facts(tmp_path / "checkpoint.safetensors")["slower"] == 1
    # Nothing diverges any more, so nothing is said.
    run = fit(steep(), (X, Y), out=tmp_path, **OPTIONS)
    assert checkpoint.same(run.state, whole.state)


# --- many -----------------------------------------------------------------------------------------


def linear() -> Learner:
    """Steps that are short enough for inputs of about one, and too long for larger ones."""
    torch.manual_seed(0)
    likelihood = GaussianLikelihood(noise=0.1)
    return br.sgd(nn.Linear(1, 1), likelihood, num_data=20, learning_rate=0.003)


def test_a_net_that_diverges_leaves_the_others_and_recovers_alone() -> None:
    sets = [(X, Y), (3.0 * X, Y), (X, 2.0 * Y)]
    with pytest.warns(TrainingWarning, match=r"^Set 1: Training diverged in epoch \d+") as said:
        runs = fit_many([linear() for _ in sets], sets, seeds=[0, 1, 2], **OPTIONS)
    assert all("Set 1" in str(one.message) for one in said)
    assert [len(run.history) for run in runs] == [8, 8, 8]
    alone, again = warned(linear(), sets[1], seed=1, **OPTIONS)
    assert len(again) == len(said)
    assert checkpoint.same(runs[1].state, alone.state)
    # The others go on as they would without it.
    without = fit_many([linear(), linear()], [sets[0], sets[2]], seeds=[0, 2], **OPTIONS)
    for found, expected in zip((runs[0], runs[2]), without, strict=True):
        assert checkpoint.same(found.state, expected.state)
        assert [f["loss"] for f in found.history] == [f["loss"] for f in expected.history]


def test_all_nets_may_diverge() -> None:
    with pytest.warns(TrainingWarning) as said:
        runs = fit_many([steep(), steep()], [(X, Y)] * 2, **OPTIONS)
    assert {str(one.message)[:6] for one in said} == {"Set 0:", "Set 1:"}
    assert [len(run.history) for run in runs] == [8, 8]
