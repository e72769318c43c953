"""When training has settled, and how the learning rate falls then."""

from __future__ import annotations

import math
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sine import X, Y, net, quick

import bayesrule as br
from bayesrule import GaussianLikelihood, Learner, fit, fit_many, load_run
from bayesrule.schedules import falling
from bayesrule.training import checkpoint, settling
from bayesrule.training.loop import Loop
from bayesrule.training.settling import Fall, Settling, has_settled, most_epochs


def history(losses: list[float]) -> list[dict[str, float]]:
    return [{"loss": loss} for loss in losses]


def test_a_loss_that_falls_has_not_settled_and_one_that_stays_has() -> None:
    falls = [10.0 - 0.1 * k for k in range(90)]
    noise = random.Random(0)
    assert not has_settled(falls)
    # By chance one in six of those that stay seem to gain more than the standard error.
    stay = [[9.0, *(1.0 + noise.gauss(0.0, 0.1) for _ in range(89))] for _ in range(200)]
    assert 150 < sum(map(has_settled, stay)) < 195
    assert has_settled([1.0] * 12)
    assert has_settled([1.0 + k for k in range(12)])
    # Noise does not hide a gain that is larger than its error.
    assert not has_settled([loss + noise.gauss(0.0, 0.1) for loss in falls])


def test_of_a_large_loss_a_small_share_is_still_much() -> None:
    """A first loss of a thousand nats is no reason to stop while there are nats to gain."""
    late = [1000.0, *(4.0 - 0.1 * k for k in range(29))]
    assert not has_settled(late)
    # Hundredths of a nat are little, and so is a small share of a small gain.
    assert has_settled([1000.0, *(4.0 - 1e-4 * k for k in range(29))])
    assert not has_settled([0.02, *(0.01 - 1e-4 * k for k in range(29))])


def test_what_is_found_depends_on_the_history_alone() -> None:
    noise = random.Random(1)
    losses = [math.exp(-k / 40) + noise.gauss(0.0, 0.003) for k in range(800)]
    whole = Settling(steps=20).epoch(history(losses))
    assert whole is not None
    assert 60 < whole < 600
    grown = Settling(steps=20)
    found = [grown.epoch(history(losses[:k])) for k in range(801)]
    assert found == [None] * whole + [whole] * (801 - whole)
    for begin in (whole - 1, whole, whole + 7):
        assert Settling(steps=20).epoch(history(losses[:begin])) == found[begin]


def test_there_is_a_least_and_a_most_of_steps() -> None:
    flat, steep = history([1.0] * 700), history([-float(k) for k in range(700)])
    assert Settling(steps=1).epoch(flat) == settling.LEAST_STEPS
    assert Settling(steps=10**4).epoch(flat) == settling.LEAST_EPOCHS
    assert Settling(steps=10**4).epoch(steep) == settling.MOST_EPOCHS == most_epochs(10**4)
    assert Settling(steps=100).epoch(steep) == 50 == most_epochs(100)
    assert Settling(steps=1).epoch(steep) is None


def test_the_rate_falls_for_half_as_long_again() -> None:
    assert Fall.after(11, br.Natural(falling(0.1))) == Fall(11, 17)
    assert Fall.after(11, br.Natural(0.1)) == Fall(11, 11)
    rule = Fall(11, 17).bound(br.Natural(falling(0.1)), first=5, steps=10)
    assert rule.learning_rate == falling(0.1, 115, 60)  # type: ignore[attr-defined]


# --- fit ------------------------------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings that are looked at sooner."""
    monkeypatch.setattr(settling, "LEAST_STEPS", 30)
    monkeypatch.setattr(settling, "MOST_STEPS", 100)


def sgd(rate: Any = None, **options: Any) -> Learner:
    likelihood = GaussianLikelihood(noise=1.0)
    given: dict[str, Any] = {"num_data": 20, "learning_rate": rate or falling(0.3), **options}
    return br.sgd(net(), likelihood, **given)


def rates_of(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Notes the learning rate of each step."""
    seen: list[float] = []
    step = Learner.step

    def noted(self: Learner, state: Any, batch: Any, **options: Any) -> Any:
        seen.append(self.rule.rates(state.step).learning_rate)
        return step(self, state, batch, **options)

    monkeypatch.setattr(Learner, "step", noted)
    return seen


def test_with_epochs_the_rate_falls_over_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = rates_of(monkeypatch)
    learner = sgd()
    run = fit(learner, (X, Y), epochs=4, batch_size=10)
    schedule = falling(0.3, 0, 8)
    assert seen == [schedule(step) for step in range(8)]
    assert run.learner is learner
    # From a state on, too, whose steps are counted on.
    seen.clear()
    fit(learner, (X, Y), epochs=2, batch_size=10, state=run.state)
    schedule = falling(0.3, 8, 4)
    assert seen == [schedule(step) for step in range(8, 12)]


@pytest.mark.usefixtures("short")
def test_without_epochs_it_falls_once_training_has_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = rates_of(monkeypatch)
    run = fit(sgd(), (X, Y), batch_size=10)
    settled = Settling(2).epoch(run.history)
    assert settled is not None
    assert 15 <= settled <= 50
    assert len(run.history) == settled + (settled + 1) // 2
    assert len(seen) == 2 * len(run.history)
    assert seen[: 2 * settled + 1] == [0.3] * (2 * settled + 1)
    assert seen[2 * settled :] == sorted(seen[2 * settled :], reverse=True)
    assert 0 < seen[-1] < 0.01
    assert torch.isfinite(run.predict(X).mean).all()


@pytest.mark.usefixtures("short")
def test_rates_that_are_numbers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = rates_of(monkeypatch)
    run = fit(sgd(0.3), (X, Y), batch_size=10)
    assert len(run.history) == Settling(2).epoch(run.history)
    assert set(seen) == {0.3}


@pytest.mark.usefixtures("short")
def test_with_patience_it_decides_alone() -> None:
    options: dict[str, Any] = {"validation": (X, Y), "batch_size": 10}
    # Targets that are learned ever better: the most of epochs is the end.
    assert len(fit(sgd(), (X, Y), patience=40, **options).history) == 50
    # Targets that fit the first weights best.
    options["validation"] = X, net()(X).detach()
    run = fit(sgd(), (X, Y), patience=3, **options)
    assert run.best_epoch is not None
    assert len(run.history) == run.best_epoch + 3 < 15


@pytest.mark.usefixtures("short")
def test_a_compiled_or_replayed_step_is_made_anew_when_the_rate_falls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []
    stepping = Loop.__dataclass_fields__["stepping"].default

    def noted(learner: Learner) -> Any:
        made.append(learner.rule)
        return stepping(learner)

    monkeypatch.setattr("bayesrule.training.train._fused_step", noted)
    run = fit(sgd(), (X, Y), batch_size=10, fused=True)
    settled = Settling(2).epoch(run.history) or 0
    rates: list[Any] = [rule.learning_rate for rule in made]
    assert rates == [falling(0.3), falling(0.3, 2 * settled, 2 * ((settled + 1) // 2))]


# --- resumed --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("step", [7, 33, 60], ids=["before", "middle of an epoch", "falling"])
def test_an_interrupted_run_ends_as_if_it_had_not_been(step: int, tmp_path: Path) -> None:
    whole = fit(sgd(), (X, Y), batch_size=10)
    assert len(whole.history) > 30

    def press(state: Any, _: Any) -> None:
        if state.step == step:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(sgd(), (X, Y), batch_size=10, out=tmp_path, on_step=press)
    run = fit(sgd(), (X, Y), batch_size=10, out=tmp_path)
    assert checkpoint.same(run.state, whole.state)
    assert [f["loss"] for f in run.history] == [f["loss"] for f in whole.history]
    assert checkpoint.same(load_run(sgd(), tmp_path).state, whole.state)
    assert not list(tmp_path.glob("begin-*"))


@pytest.mark.usefixtures("short")
def test_a_settled_run_is_at_its_end_and_can_be_prolonged(tmp_path: Path) -> None:
    run = fit(sgd(), (X, Y), batch_size=10, out=tmp_path)
    steps: list[int] = []
    count: Callable[..., None] = lambda state, _: steps.append(state.step)  # noqa: E731
    again = fit(sgd(), (X, Y), batch_size=10, out=tmp_path, on_step=count)
    assert steps == []
    assert checkpoint.same(run.state, again.state)
    more = len(run.history) + 2
    longer = fit(sgd(), (X, Y), batch_size=10, out=tmp_path, on_step=count, epochs=more)
    assert len(steps) == 4
    assert longer.history[: len(run.history)] == run.history


# --- many -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short")
def test_nets_that_step_together_end_together() -> None:
    flat = 0.0 * Y
    runs = fit_many([sgd(), sgd()], [(X, Y), (X, flat)], batch_size=10, seeds=[0, 0])
    lengths = {len(run.history) for run in runs}
    each = [Settling(2).epoch(run.history) for run in runs]
    settled = max(one or 0 for one in each)
    assert lengths == {settled + (settled + 1) // 2}
    # The one that decides is as it is alone.
    slow = max(range(2), key=lambda k: each[k] or 0)
    alone = fit(sgd(), (X, (Y, flat)[slow]), batch_size=10)
    for name, value in alone.state.posterior.mean.items():
        torch.testing.assert_close(runs[slow].state.posterior.mean[name], value)


@pytest.mark.usefixtures("short")
def test_a_net_alone_ends_when_it_has_settled() -> None:
    (run,) = fit_many([sgd()], [(X, Y)], batch_size=10)
    assert checkpoint.same(run.state, fit(sgd(), (X, Y), batch_size=10).state)


def test_the_bar_counts_until_the_end_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    fit(quick(), (X, Y), epochs=2, progress=True)
    assert "0/2 " in capsys.readouterr().err
    fit(quick(0.0), (X, Y), progress=True)
    assert "0step [" in capsys.readouterr().err
