"""Softmax and Remax of Gaussians against their equations, draws and autograd."""

import pytest
import torch
from exact import close, randn
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from bayesrule.moments import Activations, GaussianTensor
from bayesrule.moments.closed_forms import matched_relu
from bayesrule.moments.softmax import remax_moments, softmax_moments
from moments.monte_carlo import by_draws, by_rule, check_moments
from moments.scalar_functions import LINEAR, MATCHED, Function

Triple = tuple[Tensor, Tensor, Tensor]
scores = st.lists(st.floats(-2.0, 2.0), min_size=3, max_size=3).map(torch.tensor)
CHOICES = pytest.mark.parametrize("activations", [MATCHED, LINEAR])


def remax_equations(m: Tensor, s: Tensor) -> Triple:
    """Remax as it is written down."""
    top, spread, cdf = matched_relu(m, s)
    top, spread = top.clamp_min(1e-6), spread.clamp_min(1e-6)
    total, wide = top.sum(-1, keepdim=True), spread.sum(-1, keepdim=True)
    s_top, s_sum = (1 + spread / top**2).log(), (1 + wide / total**2).log()
    c = (1 + spread / (total * top)).log()
    m_a = top.log() - s_top / 2 - total.log() + s_sum / 2
    s_a = s_top + s_sum - 2 * c
    mean = (m_a + s_a / 2).exp().clamp_min(1e-6)
    mean = mean / mean.sum(-1, keepdim=True)
    variance = (s_a.exp() - 1) * mean**2
    slope = ((s_top - c).exp() - 1) * mean * top / cdf
    return mean, variance, torch.minimum((variance * s).sqrt(), slope) / s


BOTH = pytest.mark.parametrize("moments", [softmax_moments, remax_moments])


def test_remax_equals_its_equations() -> None:
    m, s = 2.0 * randn(5, 7, seed=1), randn(5, 7, seed=2).square() + 0.1
    pair = remax_moments(m, s), remax_equations(m, s)
    for actual, expected in zip(*pair, strict=True):
        close(actual, expected, 1e-8)


@pytest.mark.parametrize("classes", [2, 3, 10, 100])
@pytest.mark.parametrize("std", [0.1, 0.5, 1.0, 2.0, 5.0])
def test_softmax_over_the_regimes_of_users(classes: int, std: float) -> None:
    """Mean within a tenth of a standard deviation, variance within a tenth, by draws."""
    m = 2.0 * randn(classes, seed=classes)
    s = torch.full_like(m, std**2)
    mean, variance, slope = softmax_moments(m, s)
    p = (m + std * randn(300_000, classes, seed=3)).softmax(-1)
    wide = p.var(0) > 0.1 * p.var(0).max()  # variances of what is rarer are not seen in draws
    assert ((mean - p.mean(0)).abs() < 0.05 * p.std(0))[wide].all()
    torch.testing.assert_close(variance[wide], p.var(0)[wide], rtol=0.1, atol=0.0)
    torch.testing.assert_close(slope[wide], (p * (1 - p)).mean(0)[wide], rtol=0.1, atol=0.0)


def test_softmax_of_wide_scores() -> None:
    """Four against zero, with a standard deviation of two: 0.81 ± 0.26."""
    mean, variance, _ = softmax_moments(torch.tensor([4.0, 0.0, 0.0]), torch.full((3,), 4.0))
    torch.testing.assert_close(mean[0].item(), 0.806, rtol=0.01, atol=0.0)
    torch.testing.assert_close(variance[0].sqrt().item(), 0.261, rtol=0.02, atol=0.0)


@BOTH
class TestClosedForms:
    def test_means_add_up_to_one(self, moments: Function) -> None:
        m, s = 3.0 * randn(20, 6, seed=3), 4.0 * randn(20, 6, seed=4).square() + 1e-3
        close(moments(m, s)[0].sum(-1), torch.ones(20))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("m", [[30.0, -30.0, 0.0], [0.0, 0.0], [1e3, 0.0, -1e3], [3.0]])
    @pytest.mark.parametrize("s", [0.0, 1e-12, 1.0, 50.0, 100.0, 1e4])
    def test_never_nan_and_always_positive(
        self, moments: Function, dtype: torch.dtype, m: list[float], s: float
    ) -> None:
        centre = torch.tensor(m, dtype=dtype)
        mean, variance, slope = moments(centre, torch.full_like(centre, s))
        assert not (mean + variance + slope).isnan().any()
        assert mean.isfinite().all()
        assert (variance > 0).all()
        assert (slope >= 0).all()

    def test_single_precision_keeps_its_digits(self, moments: Function) -> None:
        """Where one class dominates and variances are small, plain sums cancel."""
        m, s = torch.tensor([9.0, 1.0, -4.0]), torch.tensor([1e-5, 2e-5, 1e-5])
        pair = moments(m.float(), s.float()), moments(m, s)
        for single, double in zip(*pair, strict=True):
            torch.testing.assert_close(single.double(), double, rtol=2e-4, atol=1e-9)


@pytest.mark.parametrize("s", [4.0, 200.0, 1e6])
def test_probabilities_vary_by_no_more_than_they_can(s: float) -> None:
    mean, variance, _ = softmax_moments(torch.tensor([1.0, 0.0, -1.0, 2.0]), torch.full((4,), s))
    assert (variance <= mean * (1.0 - mean) * (1.0 + 1e-9)).all()


class TestDraws:
    @settings(max_examples=4)
    @given(scores, st.floats(1e-3, 0.05))
    @pytest.mark.parametrize("function", [nn.Softmax(-1), nn.LogSoftmax(-1)])
    def test_small_variances(self, function: Function, m: Tensor, s: float) -> None:
        """Both choices are right to the order of the variance."""
        x = GaussianTensor(m, torch.full_like(m, s))
        for activations in (MATCHED, LINEAR):
            check_moments(function, [x], activations, rtol=0.15, atol=s * 0.05, num=1_000_000)

    def test_remax(self) -> None:
        m, s = torch.tensor([2.0, 1.5, 1.0]), torch.full((3,), 0.05)
        found = remax_moments(m, s)
        truth, _ = by_draws(
            lambda z: z.relu() / z.relu().sum(-1), [GaussianTensor(m, s)], num=1_000_000
        )
        expected = truth.mean, truth.variance, truth.slopes[0].diagonal()
        for actual, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(actual, wanted, rtol=0.06, atol=0.0)

    def test_the_whole_jacobian_is_nearer_than_its_diagonal(self) -> None:
        x = GaussianTensor(torch.tensor([1.0, 0.0, -1.0, 2.0]), torch.full((4,), 0.1))
        truth, _ = by_draws(nn.Softmax(-1), [x])
        linear = by_rule(nn.Softmax(-1), [x], LINEAR)
        p = x.centre.softmax(-1)
        diagonal = (p * (1.0 - p)).square() * x.variance
        assert (linear.variance / truth.variance - 1.0).abs().max() < 0.2
        assert (diagonal / truth.variance - 1.0).abs().min() > 0.3
        off = linear.slopes[0] - truth.slopes[0]
        left_out = truth.slopes[0] - truth.slopes[0].diagonal().diag()
        assert off.norm() < 0.1 * left_out.norm()

    def test_matched_mean_is_nearer_than_the_tangent(self) -> None:
        x = GaussianTensor(torch.tensor([1.0, 0.0, -1.0, 2.0]), torch.full((4,), 0.5))
        truth, _ = by_draws(nn.Softmax(-1), [x], num=1_000_000)
        off = [
            (by_rule(nn.Softmax(-1), [x], a).mean - truth.mean).norm() for a in (MATCHED, LINEAR)
        ]
        assert off[0] < 0.5 * off[1]


class TestLocallyLinear:
    @pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax, F.softmin])
    @pytest.mark.parametrize("dim", [0, 1, -1])
    def test_equals_autograd(self, function: Function, dim: int) -> None:
        m, s = randn(3, 4, seed=5), randn(3, 4, seed=6).square() + 0.1

        def run(z: Tensor) -> Tensor:
            return function(z, dim=dim)

        jacobian = torch.func.jacrev(run)(m)
        found = by_rule(run, [GaussianTensor(m, s)], LINEAR)
        close(found.mean, run(m))
        close(found.variance, torch.einsum("abij,ij->ab", jacobian.square(), s))
        close(found.slopes[0], jacobian)
        close(found.squares[0], jacobian.square())


@CHOICES
class TestRules:
    def test_diagonal_slopes_are_those_of_the_function(self, activations: Activations) -> None:
        m, s = randn(4, seed=7), randn(4, seed=8).square() + 0.1
        found = by_rule(nn.Softmax(-1), [GaussianTensor(m, s)], activations)
        p = m.softmax(-1)
        expected = softmax_moments(m, s)[2] if activations is MATCHED else p * (1.0 - p)
        close(found.slopes[0].diagonal(), expected)
        close(found.squares[0], found.slopes[0].square())

    def test_axis_is_honoured(self, activations: Activations) -> None:
        m, s = randn(2, 3, 4, seed=9), randn(2, 3, 4, seed=10).square() + 0.1
        for name in ("softmax", "log_softmax"):
            function = getattr(torch, name)
            one = by_rule(lambda x, f=function: f(x, 1), [GaussianTensor(m, s)], activations)
            turned = GaussianTensor(m.transpose(1, 2).contiguous(), s.transpose(1, 2).contiguous())
            other = by_rule(lambda x, f=function: f(x, -1), [turned], activations)
            close(one.mean, other.mean.transpose(1, 2))
            close(one.variance, other.variance.transpose(1, 2))
            close(one.slopes[0], other.slopes[0].transpose(1, 2).transpose(4, 5))
            close(one.squares[0], other.squares[0].transpose(1, 2).transpose(4, 5))

    def test_modules_and_spellings_agree(self, activations: Activations) -> None:
        x = GaussianTensor(randn(2, 3, seed=11), randn(2, 3, seed=12).square() + 0.1)
        groups: list[list[Function]] = [
            [nn.Softmax(-1), lambda z: z.softmax(-1), lambda z: F.softmax(z, dim=1)],
            [nn.LogSoftmax(-1), lambda z: z.log_softmax(-1), lambda z: torch.log_softmax(z, 1)],
            [nn.Softmin(-1), lambda z: torch.softmax(-z, -1)],
            [
                lambda z: torch.special.softmax(z, 1),
                lambda z: F.softmax(z, 1, dtype=torch.float64),
                lambda z: nn.Softmax2d()(z.reshape(2, 3, 1, 1)).reshape(2, 3),
            ],
        ]
        for first, *others in groups:
            expected = by_rule(first, [x], activations)
            for other in others:
                found = by_rule(other, [x], activations)
                assert torch.equal(found.mean, expected.mean)
                assert torch.equal(found.variance, expected.variance)
                assert torch.equal(found.slopes[0], expected.slopes[0])

    def test_shifts_do_not_matter(self, activations: Activations) -> None:
        m, s = randn(4, seed=13), randn(4, seed=14).square() + 0.1
        one = by_rule(nn.Softmax(-1), [GaussianTensor(m, s)], activations)
        far = by_rule(nn.Softmax(-1), [GaussianTensor(m + 1e4, s)], activations)
        close(one.mean, far.mean, 1e-9)
        close(one.variance, far.variance, 1e-9)


@pytest.mark.parametrize("std", [0.1, 1.0, 3.0])
def test_logarithm_of_softmax(std: float) -> None:
    m = randn(5, seed=15)
    x = GaussianTensor(m, torch.full_like(m, std**2))
    check_moments(nn.LogSoftmax(-1), [x], rtol=0.05, atol=0.03, only=("mean", "variance", "slopes"))


def test_an_axis_is_needed_and_the_type_stays() -> None:
    x = GaussianTensor(torch.zeros(2, 3), torch.ones(2, 3))
    with pytest.raises(TypeError, match=r"needs the axis, as in softmax\(x, dim=-1\)"):
        F.softmax(x)
    with pytest.raises(TypeError, match="leave dtype out"):
        torch.log_softmax(x, -1, dtype=torch.float32)


def test_one_class_is_certain() -> None:
    m, s = torch.tensor([[0.3]]), torch.tensor([[2.0]])
    for moments in (softmax_moments, remax_moments):
        mean, variance, slope = moments(m, s)
        assert (mean.item(), slope.item()) == (1.0, 0.0)
        assert 0.0 < variance.item() < 1e-300
    close(by_rule(nn.LogSoftmax(-1), [GaussianTensor(m, s)]).mean, torch.zeros(1, 1))
