"""Numbers that are not finite stop at the door, and so does a state that was given up."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.execution.compiled import Compiled
from bayesrule.methods import METHODS
from bayesrule.tensors import tree
from bayesrule.tensors.unfit import check_finite, check_module

NAMES = [name for name in METHODS if name not in ("ridge", "newton")]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 3), torch.randn(6, 1)


def learner_of(name: str) -> br.Learner:
    return METHODS[name](net(), br.GaussianLikelihood(noise=0.5), num_data=6)


@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_refused_by_column_and_row(name: str, value: float, donate: bool) -> None:
    learner, (x, y) = learner_of(name), batch()
    x[4, 1] = x[5, 2] = value
    state = learner.init()
    before = tree.map_tensors(state.posterior.mean, torch.clone)
    words = r"inputs are not finite in columns 1, 2 \(2 numbers .*the first in row 4\)"
    with pytest.raises(ValueError, match=words):
        learner.step(state, (x, y), donate=donate)
    with pytest.raises(ValueError, match=words):
        br.predict(learner, state, x, br.AtMean())
    # The state has not moved, and the next step can be taken.
    assert all(torch.equal(value, before[key]) for key, value in state.posterior.mean.items())
    state, info = learner.step(state, batch(), donate=donate)
    assert info.loss.isfinite()


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", NAMES)
def test_targets_are_refused_by_row(name: str, value: float) -> None:
    learner, (x, y) = learner_of(name), batch()
    y[3] = value
    if name == "tagi" and math.isnan(value):
        _, info = learner.step(learner.init(), (x, y))  # There NaN is a target that is missing.
        assert info.loss.isfinite()
        return
    words = r"targets are not finite in columns 0 \(1 numbers .*row 3\)|hold 1 (infinite )?numbers"
    with pytest.raises(ValueError, match=words):
        learner.step(learner.init(), (x, y))


@pytest.mark.parametrize("name", NAMES)
def test_a_broken_belief_is_refused_by_parameter(name: str) -> None:
    learner = learner_of(name)
    # Before the first step the belief is made anew, from the mean.
    state, _ = learner.step(learner.init(), batch())
    for name_of, value in tree.tensors(state.posterior).items():
        if value.is_floating_point() and not {"precision", "rotation"} & set(name_of.split("/")):
            value.fill_(math.nan)
    with pytest.raises((FloatingPointError, ValueError), match=r"weight|bias"):
        learner.step(state, batch())


def test_predictions_of_a_broken_belief_are_refused() -> None:
    learner = learner_of("map")
    state = learner.init()
    state.posterior.mean["2.weight"].fill_(math.inf)
    with pytest.raises(FloatingPointError, match=r"mean of '2\.weight' holds infinity"):
        br.predict(learner, state, batch()[0])


def test_a_caller_who_looks_at_the_loss_need_not_be_stopped() -> None:
    learner, (x, y) = learner_of("map"), batch()
    x[0, 0] = math.nan
    _, info = learner.step(learner.init(), (x, y), checked=False)
    assert info.loss.isnan()


def test_large_numbers_and_those_of_other_kinds_pass() -> None:
    check_finite("The inputs", torch.full((4, 2), 3e38))
    check_finite("The inputs", (torch.arange(3), torch.tensor([True, False])))


def test_images_are_named_by_their_place() -> None:
    x = torch.zeros(5, 1, 4, 4)
    x[2, 0, 1, 1] = math.nan
    with pytest.raises(ValueError, match="The inputs are not finite in examples 2 "):
        check_finite("The inputs", x)


def test_frozen_parameters_and_buffers_may_be_anything() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False).half()
    model.register_buffer("mask", torch.full((2,), -math.inf))
    check_module(model)


# --- states that were given up --------------------------------------------------------------------


def test_a_state_that_was_given_up_is_refused() -> None:
    learner = learner_of("vogn")
    first = learner.init()
    second, _ = learner.step(first, batch(), donate=True)
    words = r"state of step 0 was given up to a later step \(donate=True\)"
    for use in (
        lambda: learner.step(first, batch()),
        lambda: br.predict(learner, first, torch.zeros(1, 3)),
        lambda: learner.finish(first, [batch()]),
    ):
        with pytest.raises(RuntimeError, match=words):
            use()
    third, _ = learner.step(second, batch())
    learner.step(second, batch())
    learner.step(third, batch())


def test_a_compiled_step_gives_its_state_up_too() -> None:
    compiled: Any = Compiled(learner_of("tagi"), backend="eager")
    state, _ = compiled.step(compiled.learner.init(), batch())
    later, _ = compiled.step(state, batch())
    with pytest.raises(RuntimeError, match="state of step 1 was given up"):
        compiled.step(state, batch())
    x, y = batch()
    x[0, 0] = math.nan
    with pytest.raises(ValueError, match="inputs are not finite in columns 0"):
        compiled.step(later, (x, y))
    compiled.step(later, batch())
