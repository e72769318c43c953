"""Closed forms and quadrature against adaptive integration in float64."""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest
import torch
from exact import close
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.nn import functional as F

from bayesrule.moments import GaussianTensor, closed_forms, through
from bayesrule.moments.quadrature import nodes, quadrature
from moments.monte_carlo import check_moments
from moments.scalar_functions import CLOSED, LINEAR, SMOOTH, Function, passed


def integrated(
    function: Function, kinks: tuple[float, ...], m: float, s: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and slope by adaptive integration in pieces."""
    std = math.sqrt(s)
    cuts = [t for t in ((k - m) / std for k in kinks) if abs(t) < 12.0]
    edges = [-12.0, *sorted(cuts), 12.0]

    def mean(of: Callable[[float, float], float]) -> float:
        def density(t: float) -> float:
            value = float(function(torch.tensor(m + std * t)))
            return of(value, t) * math.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi)

        pieces = pairwise(edges)
        return sum(integrate.quad(density, *piece, epsabs=1e-11)[0] for piece in pieces)

    centre = mean(lambda y, t: y)
    variance = mean(lambda y, t: (y - centre) ** 2)
    slope = mean(lambda y, t: (y - centre) * t) / std
    return torch.tensor([centre]), torch.tensor([variance]), torch.tensor([slope])


class TestClosedForms:
    @pytest.mark.parametrize("name", CLOSED)
    @pytest.mark.parametrize(("m", "s"), [(0.3, 0.8), (-1.5, 2.0), (2.5, 0.05)])
    def test_equal_integrals(self, name: str, m: float, s: float) -> None:
        function, kinks = CLOSED[name]
        found = passed(function, torch.tensor([m]), torch.tensor([s]))
        for actual, expected in zip(found, integrated(function, kinks, m, s), strict=False):
            close(actual, expected, 1e-8)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("scale", [1e-12, 1e-9, 1e-6, 1e-3, 1.0, 1e3, 1e6])
    def test_relu_is_right_at_every_scale(self, scale: float, dtype: torch.dtype) -> None:
        """ReLU of c z is c times ReLU of z: no number of its own may come in."""
        alpha = torch.tensor([-6.0, -3.0, -1.0, 0.0, 0.5, 3.0, 10.0, 1e4])
        mean, variance, slope, _ = passed(F.relu, alpha, torch.ones(8))
        s = torch.full((8,), scale, dtype=dtype)
        found = passed(F.relu, (alpha * scale**0.5).to(dtype), s)
        rtol = 1e-3 if dtype == torch.float32 else 1e-9
        for actual, wanted in zip(
            found, (mean * scale**0.5, variance * scale, slope), strict=False
        ):
            torch.testing.assert_close(actual.double(), wanted, rtol=rtol, atol=0.0)

    def test_relu_far_below_zero(self) -> None:
        mean, variance, slope, _ = passed(F.relu, torch.tensor([-30.0]), torch.tensor([1.0]))
        assert mean.item() == 0.0
        assert 0.0 < variance.item() < 1e-10
        assert 0.0 < slope.item() < 1e-10

    def test_logarithm_undoes_exponential(self) -> None:
        m, s = torch.tensor([-1.0, 0.5, 2.0]), torch.tensor([0.1, 1.0, 3.0])
        mean, variance, slope = closed_forms.matched_exp(m, s)
        back = closed_forms.matched_log(mean, variance)
        close(back[0], m)
        close(back[1], s)
        # cov(ln y, y) is the same from both sides.
        close(back[2] * variance, slope * s)

    @pytest.mark.parametrize("power", [0.5, -1.0, 1.5])
    def test_powers_of_log_normals(self, power: float) -> None:
        m, s = torch.tensor([0.5, -0.3]), torch.tensor([0.2, 0.7])
        x, spread, _ = closed_forms.matched_exp(m, s)
        mean, variance, slope = closed_forms.matched_power(x, spread, power)
        expected, wide, _ = closed_forms.matched_exp(power * m, power * power * s)
        close(mean, expected)
        close(variance, wide)
        close(slope, expected * x * torch.expm1(power * s) / spread)

    @pytest.mark.parametrize("function", [torch.log, lambda x: x**0.5, lambda x: x**-1.0])
    def test_positive_gaussians_are_nearly_log_normal(self, function: Function) -> None:
        x = GaussianTensor(torch.tensor([2.0, 5.0]), torch.tensor([0.01, 0.2]))
        check_moments(function, [x], rtol=0.05)

    def test_elu_keeps_its_digits_in_single_precision(self) -> None:
        m, s = torch.tensor([-0.3, 0.01, 0.0]), torch.tensor([1e-7, 1e-6, 1e-8])
        single = passed(nn.ELU(), m.float(), s.float())
        for one, two in zip(single, passed(nn.ELU(), m, s), strict=True):
            torch.testing.assert_close(one.double(), two, rtol=1e-5, atol=0.0)


class TestQuadrature:
    def test_nodes_integrate_powers_exactly(self) -> None:
        for degree, expected in ((0, 1.0), (2, 1.0), (4, 3.0), (6, 15.0), (7, 0.0)):
            found = sum(weight * point**degree for point, weight in nodes(5))
            assert abs(found - expected) < 1e-12

    @pytest.mark.parametrize("name", SMOOTH)
    @pytest.mark.parametrize(
        ("m", "s", "tol"), [(0.4, 0.2, 1e-7), (-1.0, 1.0, 2e-5), (0.5, 9.0, 2e-2)]
    )
    def test_smooth_activations_equal_integrals(
        self, name: str, m: float, s: float, tol: float
    ) -> None:
        function = SMOOTH[name]
        found = passed(function, torch.tensor([m]), torch.tensor([s]))
        for actual, expected in zip(found, integrated(function, (), m, s), strict=False):
            close(actual, expected, tol)

    @settings(max_examples=20)
    @given(st.floats(-4.0, 4.0), st.floats(1e-3, 0.5))
    def test_equals_closed_forms(self, m: float, s: float) -> None:
        mean, variance = torch.tensor([m]), torch.tensor([s])
        for function, closed in (
            (torch.sin, closed_forms.matched_sin),
            (torch.cos, closed_forms.matched_cos),
            (torch.square, closed_forms.matched_square),
            (torch.exp, closed_forms.matched_exp),
        ):
            found = passed(partial(through, function=function), mean, variance)
            for actual, expected in zip(found, closed(mean, variance), strict=False):
                close(actual, expected, 1e-8)

    def test_the_number_of_nodes_can_be_chosen(self) -> None:
        x = torch.tensor([0.5])
        close(quadrature(lambda z: z**3, x, x, 4)[1], quadrature(lambda z: z**3, x, x, 20)[1])
        assert (quadrature(lambda z: z**3, x, x, 3)[1] - 20.0).abs() > 1.0

    def test_overflow_is_infinite(self) -> None:
        m, s = torch.tensor([1.0, 1000.0]), torch.tensor([1e6, 1.0])
        mean, variance, slope, _ = passed(lambda x: through(x, torch.exp), m, s)
        assert mean.isinf().all()
        assert variance.isinf().all()
        assert slope.isinf().all()

    def test_single_precision_falls_back_on_the_tangent(self) -> None:
        m = torch.tensor([0.7, 3.0, -30.0], dtype=torch.float32)
        s = torch.full_like(m, 1e-12)
        _, variance, slope, _ = passed(F.silu, m, s)
        _, linear, derivative, _ = passed(F.silu, m, s, LINEAR)
        assert torch.equal(slope, derivative)
        # What is left is the rounding of m ± √s, a tenth of √s here.
        assert (variance >= linear).all()
        torch.testing.assert_close(variance[0], linear[0], rtol=0.2, atol=0.0)
