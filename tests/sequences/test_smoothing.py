"""Filtering and smoothing of series: exact where the module is linear."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from series import NOISE, Echo, Walk, lstm_steps, online
from torch import Tensor, nn

import bayesrule as br
from bayesrule.sequences import Online, SeriesState, SeriesStep, rts_smoother
from bayesrule.sequences.online import leaves


def walked(
    y: np.ndarray, a: float, c: float, q: float
) -> tuple[Online, SeriesState, list[SeriesStep]]:
    """The states of the linear model observed along y (T, B)."""
    on = online(Walk(a, c))
    place, steps = on.init(), []
    for row in torch.as_tensor(y):
        x = br.moments.uncertain(torch.full((y.shape[1], 1), 0.3), q)
        place, seen = on.observe(place, (x, row[:, None]))
        steps.append(seen)
    return on, place, steps


def kalman(y: np.ndarray, a: float, c: float, q: float) -> dict[str, np.ndarray]:
    """Filter and smoother of one series in closed form: the joint Gaussian, conditioned."""
    num = len(y)
    # h = L u with u ~ N(0.3, q) independent.
    lower = np.array([[a ** (i - j) if j <= i else 0.0 for j in range(num)] for i in range(num)])
    mean, cov = lower @ np.full(num, 0.3), q * lower @ lower.T
    found: dict[str, list[float]] = {"filtered": [], "spread": [], "predicted": [], "before": []}

    def given(until: int) -> tuple[np.ndarray, np.ndarray]:
        seen = [t for t in range(until) if not np.isnan(y[t])]
        if not seen:
            return mean, cov
        inner = c * c * cov[np.ix_(seen, seen)] + NOISE**2 * np.eye(len(seen))
        gain = np.linalg.solve(inner, c * cov[seen]).T
        return mean + gain @ (y[seen] - c * mean[seen]), cov - gain @ (c * cov[seen])

    for t in range(num):
        m, v = given(t)
        found["predicted"].append(c * m[t])
        found["before"].append(c * c * v[t, t])
        m, v = given(t + 1)
        found["filtered"].append(m[t])
        found["spread"].append(v[t, t])
    m, v = given(num)
    exact = {k: np.array(values) for k, values in found.items()}
    smooth = {"rts_smoother": m, "smooth_spread": np.diag(v)}
    return exact | smooth | {"outputs": c * m, "outputs_spread": c * c * np.diag(v)}


def series(num: int, width: int, holes: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(num, width)).cumsum(0)
    y[rng.random((num, width)) < holes] = np.nan
    return y


@settings(max_examples=8)
@given(
    a=st.floats(-1.1, 1.1),
    c=st.floats(0.3, 2.0),
    q=st.floats(0.01, 2.0),
    width=st.integers(1, 3),
    holes=st.sampled_from([0.0, 0.4]),
)
def test_a_linear_module_is_a_kalman_filter_and_smoother(
    a: float, c: float, q: float, width: int, holes: float
) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        y = series(7, width, holes)
        on, _, steps = walked(y, a, c, q)
        smoothed = rts_smoother(on, steps)
    finally:
        torch.set_default_dtype(before)
    expected = {
        "predicted": [s.prediction.mean for s in steps],
        "before": [s.prediction.epistemic for s in steps],
        "filtered": [s.carried.centre for s in steps],
        "spread": [s.carried.variance for s in steps],
        "rts_smoother": [h.centre for h in smoothed.carried],
        "smooth_spread": [h.variance for h in smoothed.carried],
        "outputs": [p.mean for p in smoothed.predictions],
        "outputs_spread": [p.epistemic for p in smoothed.predictions],
    }
    for k in range(width):
        exact = kalman(y[:, k], a, c, q)
        for name, values in expected.items():
            got = np.array([float(v[k, 0]) for v in values])
            np.testing.assert_allclose(got, exact[name], rtol=1e-9, atol=1e-10, err_msg=name)


def test_missing_targets_that_are_inputs_later_are_those_of_an_autoregression(
    double_precision: None,
) -> None:
    a, num = 0.8, 7
    y = np.array([0.5, np.nan, np.nan, 1.2, -0.3, np.nan, 0.9])
    on = online(Echo(a))
    place, steps = on.init(), []
    for t in range(num):
        x = torch.full((1, 1), 1.0 if t == 0 else math.nan)
        place, seen = on.observe(place, (x, torch.tensor([[y[t]]])))
        steps.append(seen)
    smoothed = rts_smoother(on, steps).predictions
    # y = L (e + a · 1 at the start), e ~ N(0, r).
    lower = np.array([[a ** (i - j) if j <= i else 0.0 for j in range(num)] for i in range(num)])
    mean, cov = a * lower[:, 0], NOISE**2 * lower @ lower.T
    for t in np.flatnonzero(np.isnan(y)):
        seen_at = np.flatnonzero(~np.isnan(y))
        for found, known in ((steps[t].prediction, seen_at[seen_at < t]), (smoothed[t], seen_at)):
            gain = np.linalg.solve(cov[np.ix_(known, known)], cov[known, t])
            np.testing.assert_allclose(
                float(found.mean), mean[t] + gain @ (y[known] - mean[known]), rtol=1e-9
            )
            np.testing.assert_allclose(
                float(found.variance), cov[t, t] - gain @ cov[known, t], rtol=1e-9
            )


def test_a_cell_state_is_smoothed_with_its_forget_gate(double_precision: None) -> None:
    """`c̄ˢ = c̄ + s_c f̄ δ₊` and `s_cˢ = s_c + (s_c f̄)² η₊`, δ₊ through `J_c ō` and the head."""

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.LSTMCell(1, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
            state = self.cell(x, state)
            return self.head(state[0]), state

    model = Small()
    learner = br.tagi(
        model,
        br.GaussianLikelihood(noise=NOISE),
        num_data=2,
        gain=0.3,
        activations=br.moments.LocallyLinear(),
    )
    on, x = Online(learner), torch.tensor([[0.7]])
    place, first = on.observe(on.init(), (x, torch.tensor([[0.2]])))
    _, second = on.observe(place, (x, torch.tensor([[1.5]])))
    h, c = (one.centre for one in first.carried)
    cell = model.cell
    gates = x @ cell.weight_ih.mT + cell.bias_ih + h @ cell.weight_hh.mT + cell.bias_hh
    _, f, _, o = gates.detach().chunk(4, 1)
    way, outputs, (_, new) = on.run(place, x)
    found = on.conditioned(place, outputs, second.y)
    slope = (1.0 - new.centre.tanh().square()) * o.sigmoid() * model.head.weight.detach()
    gain = first.carried[1].variance * f.sigmoid() * slope
    smoothed = rts_smoother(on, [first, second]).carried[0][1]
    torch.testing.assert_close(smoothed.centre, c + gain * found.delta)
    torch.testing.assert_close(
        smoothed.variance, first.carried[1].variance + gain.square() * found.eta
    )
    assert way.tape.nodes


@pytest.mark.parametrize(
    "options", [{}, {"num_layers": 2}, {"kind": nn.GRU}, {"kind": nn.RNN}], ids=str
)
def test_smoothing_never_makes_less_certain(options: dict[str, Any]) -> None:
    on, steps = lstm_steps(**options)
    smoothed = rts_smoother(on, steps)
    assert smoothed.first is None
    last = smoothed.predictions[-1].epistemic
    for got, filtered in zip(leaves(smoothed.carried[-1]), leaves(steps[-1].carried), strict=True):
        torch.testing.assert_close(got.centre, filtered.centre, rtol=0, atol=0)
    for seen, prediction in zip(steps, smoothed.predictions, strict=True):
        assert prediction.mean.isfinite().all()
        assert (prediction.epistemic <= seen.prediction.epistemic * (1 + 1e-5)).all()
        assert (prediction.variance > 0).all()
    assert (last < steps[-1].prediction.epistemic).all()


def test_outputs_that_also_tell_the_noise(double_precision: None) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.GRUCell(1, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
            state = self.body(x, state)
            return self.head(state), state

    on = Online(br.tagi(Noisy(), br.HeteroscedasticLikelihood(), num_data=5))
    place, steps = on.init(), []
    for t, y in enumerate((0.3, math.nan, math.nan, 0.9, 0.4)):
        x = torch.full((1, 1), math.nan if t else 0.0)
        place, seen = on.step(place, (x, torch.tensor([[y]])))
        steps.append(seen)
    for before, after in zip(steps, rts_smoother(on, steps).predictions, strict=True):
        assert after.mean.shape == (1, 1)
        assert float(after.epistemic) <= float(before.prediction.epistemic)
