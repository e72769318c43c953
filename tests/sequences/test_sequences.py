"""Series with carried states: forecasts, missing targets, several series at once."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
from series import NOISE, Echo, Forecaster, lstm_steps, online
from torch import Tensor, nn

import bayesrule as br
from bayesrule.sequences import Online, SeriesState, rts_smoother


def test_forecasts_widen_as_an_autoregression_does(double_precision: None) -> None:
    on = online(Echo(0.8))
    place, _ = on.observe(on.init(), (torch.ones(2, 1), torch.tensor([[1.0], [-1.0]])))
    ahead = on.forecast(place, [torch.full((2, 1), math.nan)] * 4)
    for k, p in enumerate(ahead):
        variance = NOISE**2 * sum(0.8 ** (2 * j) for j in range(k + 1))
        torch.testing.assert_close(p.mean, 0.8 ** (k + 1) * torch.tensor([[1.0], [-1.0]]))
        torch.testing.assert_close(p.variance, torch.full((2, 1), variance))


def test_a_missing_target_teaches_nothing_and_states_roll_on(double_precision: None) -> None:
    torch.manual_seed(0)
    on = online(Forecaster(), gain=0.5)
    x, gone = torch.randn(3, 1, 1), torch.full((3, 1), math.nan)
    place, _ = on.step(on.init(), (x, torch.randn(3, 1)))
    after, seen = on.step(place, (x, gone))
    for name, value in place.weights.posterior.mean.items():
        torch.testing.assert_close(after.weights.posterior.mean[name], value, rtol=0, atol=0)
        old = place.weights.posterior.variance()[name]
        torch.testing.assert_close(after.weights.posterior.variance()[name], old)
    assert (seen.log_prob == 0).all()
    _, _, state = on.run(place, x)
    torch.testing.assert_close(after.carried[0].centre, state[0].centre, rtol=0, atol=0)
    assert not torch.equal(after.carried[1].centre, place.carried[1].centre)
    assert after.target is not None
    torch.testing.assert_close(after.target.centre, seen.prediction.mean)


def test_the_first_step_is_the_learners_own(double_precision: None) -> None:
    class Plain(nn.Module):
        def __init__(self, inner: Forecaster) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)[0]

    torch.manual_seed(0)
    model = Forecaster()
    on, plain = online(model, gain=0.5), online(Plain(model), gain=0.5).learner
    batch = torch.randn(3, 5, 1), torch.randn(3, 1)
    place, seen = on.step(on.init(), batch)
    state, info = plain.step(plain.init(), batch)
    assert seen.info is not None
    torch.testing.assert_close(seen.info.loss, info.loss)
    for name, value in place.weights.posterior.mean.items():
        torch.testing.assert_close(value, state.posterior.mean[f"inner.{name}"])
    variance = state.posterior.variance()
    for name, value in place.weights.posterior.variance().items():
        torch.testing.assert_close(value, variance[f"inner.{name}"])


def test_series_side_by_side_are_those_alone(double_precision: None) -> None:
    _, both = lstm_steps(learn=False)
    ends = [seen.carried for seen in both]
    torch.manual_seed(0)
    alone = online(Forecaster(), gain=0.5)
    place = alone.init()
    for t, (seen, end) in enumerate(zip(both, ends, strict=True)):
        x = torch.full((1, 1, 1), 0.0 if t == 0 else math.nan)
        place, own = alone.observe(place, (x, seen.y[1:]))
        torch.testing.assert_close(own.prediction.variance, seen.prediction.variance[1:])
        torch.testing.assert_close(place.carried[1].centre, end[1].centre[:, 1:])


def test_forecasts_are_steps_with_missing_targets(double_precision: None) -> None:
    on, steps = lstm_steps()
    place = SeriesState(steps[-1].before.weights, steps[-1].carried, steps[-1].before.target)
    gap = torch.full((2, 1, 1), math.nan)
    ahead = on.forecast(place, [gap] * 3)
    torch.testing.assert_close(on.predict(place, gap).mean, ahead[0].mean)
    for prediction in ahead:
        place, seen = on.observe(place, (gap, torch.full((2, 1), math.nan)))
        torch.testing.assert_close(seen.prediction.mean, prediction.mean)
        torch.testing.assert_close(seen.prediction.variance, prediction.variance)


def test_several_outputs_and_another_pass_from_the_smoothed_start() -> None:
    torch.manual_seed(0)
    on = online(Forecaster(nn.GRU, outputs=2), gain=0.5)
    place, steps = on.init(), []
    losses = []
    for _ in range(3):
        steps = []
        for t in range(12):
            x = torch.full((1, 1, 2), 0.0 if t == 0 else math.nan)
            y = torch.tensor([[math.sin(t), math.cos(t)]])
            place, seen = on.step(place, (x, y))
            steps.append(seen)
        losses.append(-sum(float(s.log_prob) for s in steps))
        smoothed = rts_smoother(on, steps)
        assert smoothed.predictions[0].mean.shape == (1, 2)
        place = on.restart(place, smoothed.first)
    assert losses[2] < losses[0]
    assert place.target is None


class TestRefusals:
    def test_a_learner_without_moments(self) -> None:
        learner = br.vogn(nn.Linear(1, 1), br.GaussianLikelihood(noise=1.0), num_data=1)
        with pytest.raises(TypeError, match=r"such as tagi.*takes Draws\(\)"):
            Online(learner)

    def test_a_module_without_state(self) -> None:
        on = online(nn.Linear(1, 1))
        with pytest.raises(TypeError, match="must return two things, outputs and the new state"):
            on.predict(on.init(), torch.zeros(1, 1))

    def test_nan_without_a_last_target(self) -> None:
        on = online(Forecaster())
        with pytest.raises(ValueError, match="the first step of the series"):
            on.predict(on.init(), torch.full((1, 1, 1), math.nan))

    def test_more_nan_than_targets(self) -> None:
        on = online(Forecaster())
        place, _ = on.step(on.init(), (torch.zeros(1, 1, 1), torch.zeros(1, 1)))
        with pytest.raises(ValueError, match=r"1 number\(s\) for each series; got \[3\] NaN"):
            on.predict(place, torch.full((1, 3, 1), math.nan))

    def test_steps_that_do_not_follow_each_other(self) -> None:
        on, steps = lstm_steps()
        with pytest.raises(ValueError, match="Step 1 does not start where step 0 ended"):
            rts_smoother(on, [steps[0], steps[2]])
        with pytest.raises(ValueError, match="no steps to smooth"):
            rts_smoother(on, [])

    def test_numbers_that_run_away(self) -> None:
        on = online(Forecaster(), gain=0.5)
        with pytest.raises(FloatingPointError, match="smaller gain"):
            on.step(on.init(), (torch.full((1, 4, 1), 1e25), torch.zeros(1, 1)))


@pytest.mark.data
def test_the_example_beats_the_last_season() -> None:
    if not os.environ.get("BAYESRULE_DATA"):
        pytest.skip("BAYESRULE_DATA is not set")
    path = Path(__file__).resolve().parents[2] / "examples" / "forecast.py"
    spec = importlib.util.spec_from_file_location("forecast", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["forecast"] = module
    spec.loader.exec_module(module)
    drawing, table = module.passengers()
    ours, theirs = ([float(v.rstrip("%")) for v in row.split()[-3:]] for row in table.splitlines())
    assert ours[0] < theirs[0]
    assert ours[1] > theirs[1]
    assert ours[2] >= 80
    ElementTree.fromstring(f'<svg xmlns="http://www.w3.org/2000/svg">{drawing}</svg>')
