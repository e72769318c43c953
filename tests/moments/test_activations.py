"""Scalar functions of Gaussians against draws, autograd and differences; spellings and extremes."""

import math
from functools import partial

import pytest
import torch
from exact import close
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from bayesrule.moments import Activations, GaussianTensor, NoRule, Tape, closed_forms
from moments.monte_carlo import check_moments
from moments.scalar_functions import ALL, LINEAR, MATCHED, SMOOTH, Function, passed

EVERY = pytest.mark.parametrize("function", ALL.values(), ids=ALL.keys())

means = st.floats(-4.0, 4.0)
spreads = st.floats(-3.0, 0.9).map(lambda power: 10.0**power)


class TestDraws:
    @settings(max_examples=10)
    @given(
        st.sampled_from(sorted(ALL)),
        st.lists(means, min_size=3, max_size=3),
        st.lists(spreads, min_size=3, max_size=3),
    )
    def test_moments_and_slopes(self, name: str, m: list[float], s: list[float]) -> None:
        # Draws of exp at large variances are too wild for z-scores; integrals cover them.
        spread = torch.tensor(s).clamp_max(1.0 if name == "exp" else 8.0)
        x = GaussianTensor(torch.tensor(m), spread)
        rtol = 0.05 if name in SMOOTH else 0.0
        check_moments(ALL[name], [x], z=6.0, rtol=rtol, num=1_000_000)

    def test_notice_a_wrong_rule(self) -> None:
        x = GaussianTensor(torch.tensor([0.5]), torch.tensor([1.0]))
        for only in ("mean", "variance", "slopes"):
            with pytest.raises(AssertionError, match=only.rstrip("s")):
                check_moments(torch.tanh, [x], LINEAR, only=[only], num=100_000)


class TestLocallyLinear:
    @EVERY
    def test_equals_autograd(self, function: Function) -> None:
        m, s = torch.tensor([-2.0, -0.7, 0.2, 1.5]), torch.tensor([0.1, 1.0, 2.0, 0.3])
        z = m.clone().requires_grad_()
        value = function(z)
        (slope,) = torch.autograd.grad(value.sum(), z)
        mean, variance, delta, eta = passed(function, m, s, LINEAR)
        close(mean, value.detach())
        close(variance, slope.square() * s)
        close(delta, slope)
        close(eta, slope.square())

    def test_logarithm(self) -> None:
        mean, variance, delta, _ = passed(
            torch.log, torch.tensor([2.0]), torch.tensor([0.4]), LINEAR
        )
        close(torch.cat([mean, variance, delta]), torch.tensor([math.log(2.0), 0.1, 0.5]))


class TestWayBack:
    @EVERY
    @pytest.mark.parametrize("activations", [MATCHED, LINEAR])
    def test_slope_is_the_derivative_of_the_mean(
        self, function: Function, activations: Activations
    ) -> None:
        """For a Gaussian, cov(φ(z), z)/s = E φ'(z) = dE φ(z)/dm (Stein)."""
        m, s = torch.tensor([-1.3, 0.4, 2.2]), torch.tensor([0.3, 0.6, 0.2])
        step = 1e-5
        up = passed(function, m + step, s, activations)[0]
        down = passed(function, m - step, s, activations)[0]
        _, _, delta, eta = passed(function, m, s, activations)
        close(delta, (up - down) / (2.0 * step), 2e-6)
        close(eta, delta.square())

    def test_innovations_are_weighted_by_slope_and_its_square(self) -> None:
        tape = Tape(MATCHED, record=True)
        x = tape.leaf(torch.tensor([0.2, -0.4]), torch.tensor([0.5, 0.3]))
        slope = closed_forms.matched_sin(x.centre, x.variance)[2]
        delta, eta = torch.tensor([2.0, -3.0]), torch.tensor([-0.5, 0.25])
        y = torch.sin(x)
        assert isinstance(y, GaussianTensor)
        tape.back(y, delta, eta)
        assert x.node is not None
        assert x.node.delta is not None
        assert x.node.eta is not None
        close(x.node.delta, slope * delta)
        close(x.node.eta, slope.square() * eta)


class TestExtremes:
    @EVERY
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("activations", [MATCHED, LINEAR])
    def test_never_nan(
        self, function: Function, dtype: torch.dtype, activations: Activations
    ) -> None:
        m = torch.tensor([-30.0, -1.0, 0.0, 0.5, 30.0], dtype=dtype).repeat(4)
        s = torch.tensor([0.0, 1e-12, 1.0, 1e4], dtype=dtype).repeat_interleave(5)
        found = passed(function, m, s, activations)
        assert not any(part.isnan().any() for part in found)
        if activations is MATCHED:
            assert (found[1] > 0)[s > 0].all()
            # What is known for sure is not changed.
            torch.testing.assert_close(found[0][:5], function(m[:5]), rtol=1e-5, atol=2e-6)

    def test_exponential_overflows_to_infinity(self) -> None:
        m = torch.tensor([0.0, 100.0, -1e6], dtype=torch.float32)
        s = torch.tensor([1e4, 1.0, 1e5], dtype=torch.float32)
        mean, variance, slope, _ = passed(torch.exp, m, s)
        assert mean.tolist() == slope.tolist() == [math.inf, math.inf, 0.0]
        assert variance[:2].isinf().all()
        assert variance[2] > 0

    def test_power_and_logarithm_of_far_numbers(self) -> None:
        m, s = torch.tensor([1e-3, 1.0, 30.0]), torch.tensor([1e4, 1e-12, 1.0])
        for function in (torch.log, lambda x: x**0.5, lambda x: x**-2):
            assert not any(part.isnan().any() for part in passed(function, m, s))


SPELLINGS: list[tuple[Function, Function]] = [
    (Tensor.relu, F.relu),
    (torch.relu, F.relu),
    (Tensor.tanh, torch.tanh),
    (F.tanh, torch.tanh),
    (Tensor.sigmoid, torch.sigmoid),
    (F.sigmoid, torch.sigmoid),
    (torch.special.expit, torch.sigmoid),
    (Tensor.exp, torch.exp),
    (Tensor.square, torch.square),
    (lambda x: torch.pow(x, 2), torch.square),
    (lambda x: x.pow(2.0), torch.square),
    (abs, torch.abs),
    (Tensor.abs, torch.abs),
    (Tensor.sin, torch.sin),
    (Tensor.cos, torch.cos),
    (lambda x: -x, torch.neg),
    (partial(F.relu, inplace=True), F.relu),
    (nn.LeakyReLU(0.1, inplace=True), nn.LeakyReLU(0.1)),
    (nn.ReLU6(inplace=True), nn.ReLU6()),
    (nn.Hardtanh(inplace=True), nn.Hardtanh()),
    (nn.Hardsigmoid(inplace=True), nn.Hardsigmoid()),
    (nn.ELU(inplace=True), nn.ELU()),
    (nn.SELU(inplace=True), nn.SELU()),
    (nn.CELU(inplace=True), nn.CELU()),
    (nn.SiLU(inplace=True), nn.SiLU()),
    (nn.Mish(inplace=True), nn.Mish()),
]


@pytest.mark.parametrize(("one", "other"), SPELLINGS)
def test_spellings_agree_and_leave_the_input_alone(one: Function, other: Function) -> None:
    m, s = torch.tensor([-0.5, 1.2]), torch.tensor([0.7, 0.1])
    before = m.clone(), s.clone()
    for actual, expected in zip(passed(one, m, s), passed(other, m, s), strict=True):
        assert torch.equal(actual, expected)
    assert torch.equal(m, before[0])
    assert torch.equal(s, before[1])


def test_power_by_a_tensor_is_refused() -> None:
    x = GaussianTensor(torch.ones(2), torch.ones(2))
    with pytest.raises(NoRule, match="exponent that is a tensor"):
        torch.pow(x, torch.ones(2))
    with pytest.raises(NoRule, match="pow"):
        torch.pow(2.0, x)


@pytest.mark.parametrize("name", ["ReLU", "Hardtanh", "ELU", "GELU"])
@pytest.mark.parametrize("activations", [MATCHED, LINEAR])
def test_many_at_once(name: str, activations: Activations) -> None:
    """Rules run under vmap, where only one of mean and variance may be stacked."""
    m, s = torch.tensor([[-0.5, 1.2], [0.1, 0.3]]), torch.tensor([0.7, 0.1])

    def mean_and_variance(m: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        return passed(ALL[name], m, s, activations)[:2]

    stacked = torch.func.vmap(mean_and_variance, in_dims=(0, None))(m, s)
    close(stacked[1], torch.stack([mean_and_variance(row, s)[1] for row in m]))
    turned = torch.func.vmap(mean_and_variance, in_dims=(None, 0))(s, m.square())
    close(turned[0], torch.stack([mean_and_variance(s, row)[0] for row in m.square()]))
