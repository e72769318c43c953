"""Functions that run side by side, whose trainings take their steps together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
import torch

import bayesrule as br
from bayesrule.learner import Learner
from bayesrule.training import many
from bayesrule.training.many import fit_many
from bayesrule.training.meeting import side_by_side
from bayesrule.training.models import mlp
from bayesrule.training.net import TrainingError
from bayesrule.training.train import Run

X = torch.linspace(-1.0, 1.0, 24).unsqueeze(1)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many nets each call trained."""
    seen: list[int] = []
    run = many._Trainings.run

    def noted(self: Any) -> None:
        seen.append(len(self.nets))
        run(self)

    monkeypatch.setattr(many._Trainings, "run", noted)
    return seen


def learner(seed: int) -> Learner:
    return br.vogn(mlp(1, 1, (4,), seed=seed), br.GaussianLikelihood(noise=0.3), num_data=24)


def trained(seed: int, **options: Any) -> Run:
    given = {"epochs": 3, "seeds": [seed], "batch_size": 8, "progress": False, **options}
    (run,) = fit_many([learner(seed)], [(X, (3.0 + seed) * X)], **given)
    return run


def work(seed: int, **options: Any) -> Callable[[], Run]:
    return lambda: trained(seed, **options)


def equal(found: Run, wanted: Run) -> None:
    for name, value in wanted.state.posterior.mean.items():
        torch.testing.assert_close(found.state.posterior.mean[name], value)
    for one, other in zip(found.history, wanted.history, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)


def test_trainings_that_are_asked_for_at_the_same_time_are_one(runs: list[int]) -> None:
    found = side_by_side([work(0), work(1), work(2)])
    assert runs == [3]
    for seed, run in enumerate(found):
        equal(run, trained(seed))


def test_functions_may_ask_several_times_and_end_early(runs: list[int]) -> None:
    def twice() -> Run:
        trained(0)
        return trained(1)

    first, second, third = side_by_side([twice, lambda: None, work(2)])
    assert runs == [2, 1]
    assert second is None
    equal(first, trained(1))
    equal(third, trained(2))


def test_only_trainings_on_the_same_terms_are_one(runs: list[int]) -> None:
    longer, *_ = side_by_side([work(0, epochs=5), work(1), work(2)])
    assert sorted(runs) == [1, 2]
    assert len(longer.history) == 5


def test_nets_that_train_until_they_have_settled_do_not_wait_for_others(runs: list[int]) -> None:
    def settled(seed: int) -> Callable[[], Run]:
        return work(seed, epochs=None, warm_start=False)

    found = side_by_side([settled(0), settled(1)])
    assert runs == [1, 1]
    equal(found[1], trained(1, epochs=None, warm_start=False))


def test_each_function_hears_of_its_own_net() -> None:
    heard: dict[int, list[int]] = {0: [], 1: []}

    def listening(seed: int) -> Callable[[], Run]:
        return work(seed, callback=lambda _, __, figures: heard[seed].append(figures["epoch"]))

    side_by_side([listening(0), listening(1)])
    assert heard == {0: [1, 2, 3], 1: [1, 2, 3]}


def test_a_training_that_fails_is_the_fault_of_its_own_function() -> None:
    failed: list[TrainingError] = []

    def hopeless() -> None:
        try:
            fit_many([learner(0)], [(X, X * torch.nan)], epochs=3, batch_size=8, progress=False)
        except TrainingError as problem:
            failed.append(problem)

    _, other = side_by_side([hopeless, work(1)])
    assert "counted from 0" in str(failed[0])
    equal(other, trained(1))


def test_an_error_is_raised_once_the_others_have_ended() -> None:
    ended = []

    def wrong() -> None:
        raise KeyError("mine")

    def right() -> None:
        trained(1)
        ended.append(1)

    with pytest.raises(KeyError, match="mine"):
        side_by_side([wrong, right])
    assert ended == [1]


def test_an_interruption_ends_all_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(many._Trainings, "run", interrupted)
    before, went_on = threading.active_count(), []

    def function(seed: int) -> None:
        trained(seed)
        went_on.append(seed)

    with pytest.raises(KeyboardInterrupt):
        side_by_side([lambda: function(0), lambda: function(1)])
    assert threading.active_count() == before
    assert not went_on


def test_one_function_runs_at_a_time() -> None:
    inside, most = [0], [0]

    def function(seed: int) -> None:
        for _ in range(3):
            inside[0] += 1
            time.sleep(0.01)
            most[0] = max(most[0], inside[0])
            inside[0] -= 1
            trained(seed, epochs=1)

    side_by_side([lambda: function(0), lambda: function(1), lambda: function(2)])
    assert most == [1]


def test_functions_see_the_settings_of_who_called_them() -> None:
    setting: ContextVar[int] = ContextVar("setting", default=0)
    token = setting.set(3)
    assert side_by_side([setting.get, setting.get]) == [3, 3]
    setting.reset(token)
