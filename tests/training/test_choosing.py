"""Options that held-out rows choose."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.training import held_out
from bayesrule.training.calibrating import Held, score
from bayesrule.training.checkpoint import same
from bayesrule.training.choosing import Choice, Member, Options, candidates, choose
from bayesrule.training.held_out import held_out_parts

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(60, 1, generator=GENERATOR) * 4.0 - 2.0
Y = 3.0 * X + 0.1 * torch.randn(60, 1, generator=GENERATOR)


def line(**options: Any) -> br.Learner:
    """A linear model that starts at zero; with little noise the slope of 3 is plain to see."""
    model = nn.Linear(1, 1)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    given: dict[str, Any] = {"num_data": 60, "temperature": 1.0} | options
    return br.ridge(model, br.GaussianLikelihood(noise=0.1), **given)


def build(num_data: int, options: Options, epochs: int | None) -> br.Learner:
    return line(num_data=num_data, **options)


@pytest.mark.parametrize(("rows", "number"), [(5, 5), (200, 5), (201, 3), (601, 2), (1501, 1)])
def test_parts_hold_out_a_fifth_and_no_row_twice(rows: int, number: int) -> None:
    parts = held_out_parts(rows)
    assert len(parts) == number
    for train, held in parts:
        assert len(held) == rows // 5
        assert sorted([*train.tolist(), *held.tolist()]) == list(range(rows))
    held = torch.cat([part.held for part in parts])
    assert len(held.unique()) == len(held)


def test_parts_follow_from_the_seed() -> None:
    one, again, other = (held_out_parts(50, seed)[0].held for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 5 rows, there are 4"):
        held_out_parts(4)


def test_candidates_are_all_combinations() -> None:
    found = candidates({"temperature": (1.0, 0.1), "prior_precision": (1.0, 2.0)})
    pairs = [(one["temperature"], one["prior_precision"]) for one in found]
    assert pairs == [(1.0, 1.0), (1.0, 2.0), (0.1, 1.0), (0.1, 2.0)]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_best_candidate_is_found_wherever_it_stands(place: int) -> None:
    # The other priors hold the slope near zero.
    values = [1e6, 1e6, 1e6]
    values[place] = 1.0
    tried = [{"prior_precision": value} for value in values]
    found = choose([Member(build)], (X, Y), [tried], [3], batch_size=60)
    assert found.options == {"prior_precision": 1.0}
    assert found.score > 0.0


def test_the_choice_is_the_same_each_time() -> None:
    tried = candidates({"prior_precision": (1.0, 10.0), "temperature": (1.0, 0.3)})
    one, two = (choose([Member(build, 4)], (X, Y), [tried], [3], batch_size=60) for _ in range(2))
    assert one[:4] == two[:4]
    steps = [[run.state.step for runs in each.runs for run in runs] for each in (one, two)]
    assert steps[0] == steps[1]


class Squares(nn.Module):
    """What is squared in front of a linear layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square()


EVERY = [1, 2, 300, 400, 500]


@pytest.mark.parametrize(("squared", "tried"), [(True, EVERY[:-1]), (False, EVERY)])
def test_longer_trainings_are_tried_for_as_long_as_they_are_worth_it(
    squared: bool, tried: list[int]
) -> None:
    lengths: dict[int | None, set[float]] = {}

    def noted(num_data: int, options: Options, epochs: int | None) -> br.Learner:
        lengths.setdefault(epochs, set()).add(options["prior_precision"])
        model: nn.Module = line().model
        model = nn.Sequential(Squares(), model) if squared else model
        noise, rates = br.GaussianLikelihood(noise=0.1), {"learning_rate": 0.5, **options}
        return br.map(model, noise, num_data=num_data, **rates)

    # A line says nothing of squares. What is known no better than by a line may be on a plateau,
    # and every length is tried, with all options.
    y, options = 3.0 * X.square() if squared else Y, candidates({"prior_precision": (1.0, 1e3)})
    found = choose([Member(noted)], (X, y), [options], EVERY, batch_size=60)
    assert (found.epochs, found.options) == (300, {"prior_precision": 1.0})
    assert list(lengths) == tried
    assert {len(lengths[epochs]) for epochs in tried if epochs and epochs > 300} == {2 - squared}


def test_a_choice_counts_what_is_believed_against_its_calibration() -> None:
    def noisy(num_data: int, options: Options, epochs: int | None) -> br.Learner:
        return br.map(line().model, br.GaussianLikelihood(), num_data=num_data, learning_rate=0.1)

    found = choose([Member(noisy)], (X, Y), [[{}]], [20], batch_size=60, calibrate=True)
    assert found.calibration is not None
    assert found.calibration.noise != 1.0
    held = [
        Held.of(run.learner, [run.state], X[part.held], Y[part.held])
        for run, part in zip(found.runs[0], held_out_parts(60), strict=True)
    ]
    fit = score(br.GaussianLikelihood(), held, found.calibration)
    assert math.isclose(found.score, fit - found.calibration.cost() / 60, rel_tol=1e-6)


def fragile(real: Any) -> Any:
    """A `fit_many` in which learners with a prior precision of one diverge."""

    def train(learners: list[br.Learner], *args: Any, **more: Any) -> Any:
        if any(learner.prior_precision == 1.0 for learner in learners):
            raise br.training.TrainingError("diverged")
        return real(learners, *args, **more)

    return train


def test_a_candidate_that_fails_does_not_stand_for_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "fit_many", fragile(held_out.fit_many))
    tried = [{"prior_precision": value} for value in (1.0, 1e6, 10.0)]
    assert choose([Member(build)], (X, Y), [tried], [3], batch_size=60).options == {
        "prior_precision": 10.0
    }
    with pytest.raises(br.training.TrainingError, match="None of the options"):
        choose([Member(build)], (X, Y), [tried[:1]], [3], batch_size=60)


# `fit(choose=...)`


def test_fit_chooses_and_then_trains_on_all_rows() -> None:
    choices = {"prior_precision": (1e6, 2.0), "temperature": (1.0, 0.5)}
    run = br.fit(line(), (X, Y), epochs=3, batch_size=60, choose=choices, progress=False)
    assert run.learner.prior_precision == 2.0
    assert run.learner.num_data == 60
    options = {"prior_precision": 2.0, "temperature": run.learner.temperature}
    by_hand = br.fit(line(**options), (X, Y), epochs=3, batch_size=60, progress=False)
    assert same(run.state, by_hand.state)


def test_fit_leaves_what_is_not_chosen() -> None:
    learner = line(prior_precision=7.0)
    run = br.fit(learner, (X, Y), epochs=1, choose={"temperature": (0.5, 0.4)}, progress=False)
    assert run.learner.prior_precision == 7.0
    assert learner.temperature == 1.0


@pytest.mark.parametrize(
    ("data", "choices", "message"),
    [
        ((X, Y), {"learning_rate": (0.1,)}, "temperature and prior_precision, got 'learning_rate'"),
        ((X, Y), {"temperature": ()}, "no values of temperature"),
        ([(X, Y)], {"temperature": (1.0,)}, r"rows of \(x, y\), got list"),
        (torch.utils.data.TensorDataset(X, Y), {"temperature": (1.0,)}, "got TensorDataset"),
        (
            torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y)),
            {"temperature": (1.0,)},
            "got DataLoader",
        ),
    ],
)
def test_fit_refuses_what_it_cannot_choose(data: Any, choices: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        br.fit(line(), data, epochs=1, choose=choices)


def test_fit_chooses_from_the_first_weights_only() -> None:
    learner = line()
    with pytest.raises(ValueError, match="leave state out"):
        br.fit(learner, (X, Y), choose={"temperature": (1.0,)}, state=learner.init())


def test_a_learner_with_other_values_has_the_same_parts() -> None:
    learner = br.vogn(nn.Linear(3, 1), br.GaussianLikelihood(), num_data=2, prior_precision=3.0)
    other = learner.replaced(num_data=100)
    assert (other.num_data, other.prior_precision) == (100, 3.0)
    # The usual temperature is that of the new number of data; a given one stays.
    assert (learner.temperature, other.temperature) == (0.5, 1.0)
    assert learner.replaced(temperature=0.25).replaced(num_data=9).temperature == 0.25
    assert other.parts() == learner.parts()
    assert other.rule == learner.rule
    assert math.isclose(learner.replaced(prior_precision=0.5).prior_precision, 0.5)


def test_an_ensemble_is_chosen_and_calibrated_as_one() -> None:
    members = [Member(build, seed) for seed in (1, 2, 3)]
    found = choose(members, (X, Y), [[{}]], [3], batch_size=60, calibrate=True)
    alone = choose(members[:1], (X, Y), [[{}]], [3], batch_size=60, calibrate=True)
    assert [len(runs) for runs in found.runs] == [len(held_out_parts(60, seed=1))] * 3
    parts = held_out_parts(60, seed=1)
    held = [
        Held.of(runs[0].learner, [run.state for run in runs], X[part.held], Y[part.held])
        for part, runs in zip(parts, zip(*found.runs, strict=True), strict=True)
    ]
    assert found.calibration is not None
    fit = score(line().likelihood, held, found.calibration)
    assert found.score == pytest.approx(fit - found.calibration.cost() / 60)
    for one, other in zip(found.runs[0], alone.runs[0], strict=True):
        for name, mean in one.state.posterior.mean.items():
            torch.testing.assert_close(mean, other.state.posterior.mean[name])


def test_among_several_options_the_first_member_chooses() -> None:
    built: list[tuple[int, Any]] = []

    def of(number: int) -> Member:
        def noted(num_data: int, options: Any, epochs: int | None) -> br.Learner:
            built.append((number, dict(options)))
            return build(num_data, options, epochs)

        return Member(noted, number)

    tried = candidates({"temperature": (1.0, 0.3)})
    found = choose([of(1), of(2)], (X, Y), [tried], [3], batch_size=60)
    assert {options["temperature"] for number, options in built if number == 1} == {1.0, 0.3}
    assert all(options == found.options for number, options in built if number == 2)
    assert len(found.runs) == 2


def test_a_member_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_out, "fit_many", fragile(held_out.fit_many))

    def failing(num_data: int, options: Any, epochs: int | None) -> br.Learner:
        return build(num_data, {"prior_precision": 1.0}, epochs)

    members = [Member(build, 1), Member(failing, 2), Member(build, 3)]
    tried = [{"prior_precision": 10.0}]
    found = choose(members, (X, Y), [tried], [3], batch_size=60)
    assert len(found.runs) == 2
    with pytest.raises(br.training.TrainingError, match="None of the options"):
        choose([members[1], members[0]], (X, Y), [tried], [3], batch_size=60)


def test_a_complex_candidate_must_be_better_by_a_standard_error() -> None:
    generator = torch.Generator().manual_seed(0)
    simple = torch.randn(100, generator=generator)
    noise = torch.randn(100, generator=generator)
    noise = (noise - noise.mean()) / noise.std()

    def choice(log_probs: torch.Tensor) -> Choice:
        return Choice({}, 1, float(log_probs.mean()), log_probs=log_probs)

    # Paired differences of deviation one: their standard error is a tenth.
    assert not choice(simple + noise + 0.09).is_clearly_better(choice(simple))
    assert choice(simple + noise + 0.11).is_clearly_better(choice(simple))
    assert choice(simple).is_clearly_better(Choice({}, 1))
    assert not Choice({}, 1).is_clearly_better(choice(simple))


def test_of_two_groups_that_are_equal_the_first_is_taken() -> None:
    groups = [[{"prior_precision": 10.0}], [{"prior_precision": 10.0 - 1e-6}]]
    for tried in (groups, groups[::-1]):
        found = choose([Member(build)], (X, Y), tried, [3], batch_size=60)
        assert found.options == tried[0][0]
