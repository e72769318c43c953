"""Pooling and interpolation of Gaussians."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from bayesrule.moments import GaussianTensor, MomentMatched, NoRule, Tape
from moments.linear_maps import Function, check_linear, learned, leaves

AVERAGES: dict[str, tuple[Function, tuple[int, ...]]] = {
    "one dimension": (nn.AvgPool1d(2), (2, 2, 5)),
    "one dimension, padded": (nn.AvgPool1d(3, 2, padding=1), (1, 2, 5)),
    "one dimension, edges by themselves": (
        nn.AvgPool1d(3, 2, padding=1, ceil_mode=True, count_include_pad=False),
        (1, 2, 6),
    ),
    "two dimensions": (nn.AvgPool2d(2), (2, 2, 4, 4)),
    "overlap": (nn.AvgPool2d(3, stride=(1, 2)), (1, 2, 4, 5)),
    "padded": (nn.AvgPool2d((2, 3), padding=(1, 0)), (1, 2, 4, 6)),
    "padding not counted": (nn.AvgPool2d(3, 2, 1, count_include_pad=False), (1, 1, 5, 5)),
    "rounded up": (nn.AvgPool2d(2, ceil_mode=True), (1, 1, 5, 3)),
    "rounded up and padded": (nn.AvgPool2d(3, 2, 1, ceil_mode=True), (1, 1, 6, 4)),
    "another divisor": (nn.AvgPool2d(2, divisor_override=3), (1, 1, 4, 4)),
    "no batch": (lambda x: F.avg_pool2d(x, 2), (2, 4, 4)),
    "three dimensions": (nn.AvgPool3d(2, ceil_mode=True), (1, 1, 3, 2, 4)),
    "to one": (nn.AdaptiveAvgPool2d(1), (2, 2, 3, 4)),
    "to one of a row": (nn.AdaptiveAvgPool1d(1), (2, 2, 5)),
    "to one of a box": (nn.AdaptiveAvgPool3d(1), (1, 2, 2, 3, 2)),
    "adaptive": (nn.AdaptiveAvgPool1d(3), (1, 2, 5)),
    "adaptive overlap": (nn.AdaptiveAvgPool2d((3, 2)), (1, 2, 4, 5)),
    "adaptive, one axis kept": (nn.AdaptiveAvgPool2d((None, 2)), (1, 2, 3, 5)),
    "adaptive, enlarged": (nn.AdaptiveAvgPool2d(4), (1, 1, 3, 2)),
    "adaptive in three dimensions": (nn.AdaptiveAvgPool3d((1, 2, 2)), (1, 1, 2, 3, 4)),
    "nearest": (nn.Upsample(scale_factor=2), (1, 2, 2, 3)),
    "nearest, one dimension": (nn.Upsample(size=5), (1, 2, 3)),
    "nearest, exact": (lambda x: F.interpolate(x, size=(3, 2), mode="nearest-exact"), (1, 1, 5, 4)),
    "linear": (nn.Upsample(scale_factor=2, mode="linear"), (1, 2, 3)),
    "bilinear": (nn.Upsample(scale_factor=2, mode="bilinear"), (1, 1, 3, 2)),
    "bilinear to corners": (nn.UpsamplingBilinear2d(size=(5, 3)), (1, 1, 3, 2)),
    "trilinear": (nn.Upsample(size=(3, 2, 3), mode="trilinear"), (1, 1, 2, 2, 2)),
}


@pytest.mark.parametrize("name", AVERAGES)
def test_averages_are_exact(name: str) -> None:
    check_linear(*AVERAGES[name])


@given(
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    size=st.integers(4, 7),
    pad=st.integers(0, 2),
    ceil=st.booleans(),
    counted=st.booleans(),
)
@settings(max_examples=15)
def test_any_average(
    kernel: int, stride: int, size: int, pad: int, ceil: bool, counted: bool
) -> None:
    check_linear(nn.AvgPool1d(kernel, stride, min(pad, kernel // 2), ceil, counted), (1, 1, size))


MAXIMA: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "one dimension": (nn.MaxPool1d(2), (2, 2, 6)),
    "two dimensions": (nn.MaxPool2d(2), (2, 2, 4, 4)),
    "overlap and padding": (nn.MaxPool2d(3, 2, padding=1), (2, 2, 5, 5)),
    "rounded up": (nn.MaxPool2d(2, ceil_mode=True), (1, 2, 5, 3)),
    "dilated": (nn.MaxPool2d(2, 1, dilation=2), (1, 2, 4, 4)),
    "no batch": (nn.MaxPool2d(2), (2, 4, 4)),
    "three dimensions": (nn.MaxPool3d(2), (1, 2, 2, 4, 2)),
    "adaptive, one dimension": (nn.AdaptiveMaxPool1d(2), (1, 2, 5)),
    "adaptive": (nn.AdaptiveMaxPool2d((2, 3)), (1, 2, 5, 4)),
}


@pytest.mark.parametrize("name", MAXIMA)
def test_maximum_is_the_element_with_the_largest_mean(name: str) -> None:
    """The Jacobian of max pooling at the means picks that element."""
    check_linear(*MAXIMA[name])


def test_maximum_tells_where() -> None:
    (x,) = leaves((1, 1, 4, 4))
    result, indices = nn.MaxPool2d(2, return_indices=True)(x)
    assert_close(indices, F.max_pool2d(x.centre, 2, return_indices=True)[1])
    assert_close(result.variance.flatten(), x.variance.flatten()[indices.flatten()])


def test_channels_last_stays() -> None:
    centre = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    x = GaussianTensor(centre, centre.square())
    plain = GaussianTensor(centre.contiguous(), centre.square().contiguous())
    for pool in (nn.AvgPool2d(2), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1)):
        assert_close(pool(x).centre.contiguous(), pool(plain).centre)
        assert_close(pool(x).variance.contiguous(), pool(plain).variance)
    assert nn.AvgPool2d(2)(x).centre.is_contiguous(memory_format=torch.channels_last)


def test_unknown_interpolation_is_refused() -> None:
    (x,) = leaves((1, 1, 4, 4))
    with pytest.raises(NoRule, match="bicubic"):
        F.interpolate(x, scale_factor=2, mode="bicubic")


def test_stacked_networks() -> None:
    mean, variance = torch.randn(3, 1, 2, 4, 4), torch.rand(3, 1, 2, 4, 4)

    def run(m: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        tape = Tape(MomentMatched(), record=True)
        x = tape.leaf(m, s)
        y = F.avg_pool2d(x, 2) + F.max_pool2d(x, 2) + F.adaptive_avg_pool2d(x, 1)
        tape.back(y, y.centre, -y.variance)
        return y.centre, y.variance, *learned(x)

    with torch.no_grad():
        together = torch.func.vmap(run)(mean, variance)
        alone = [run(m, s) for m, s in zip(mean, variance, strict=True)]
    for number, found in enumerate(together):
        assert_close(found, torch.stack([one[number] for one in alone]))


@pytest.mark.parametrize("name", AVERAGES)
def test_float32_takes_another_way_to_the_same_numbers(name: str) -> None:
    function, shape = AVERAGES[name]
    (exact,) = leaves(shape)
    tape = Tape(MomentMatched(), record=True)
    x = tape.leaf(exact.centre.float(), exact.variance.float())
    found, wanted = function(x), function(exact)
    assert found.dtype == torch.float32
    assert_close(found.centre.double(), wanted.centre, rtol=1e-5, atol=1e-6)
    assert_close(found.variance.double(), wanted.variance, rtol=1e-5, atol=1e-6)
    tape.back(found, found.centre, -found.variance)
    wanted.tape.back(wanted, wanted.centre, -wanted.variance)
    for own, other in zip(learned(x), learned(exact), strict=True):
        assert_close(own.double(), other, rtol=1e-5, atol=1e-6)


class TestExpectedMaxima:
    """Where nobody goes back, the largest of a window has the moments of a maximum."""

    def test_four_standard_normals(self) -> None:
        y = nn.MaxPool2d(2)(GaussianTensor(torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2)))
        assert_close(y.centre.item(), 1.0294, rtol=1e-3, atol=0.0)
        assert_close(y.variance.item(), 0.4917, rtol=1e-3, atol=0.0)

    @pytest.mark.parametrize("name", MAXIMA)
    @pytest.mark.parametrize("spread", [0.0, 1.0])
    def test_draws(self, name: str, spread: float) -> None:
        pool, shape = MAXIMA[name]
        (x,) = leaves(shape)
        m, s = spread * x.centre, x.variance.clamp(0.1, 2.0)
        y = pool(GaussianTensor(m, s))
        drawn = torch.stack([pool(m + s.sqrt() * torch.randn(shape)) for _ in range(20_000)])
        assert ((y.centre - drawn.mean(0)).abs() < 0.05 * drawn.std(0)).all()
        assert_close(y.variance, drawn.var(0), rtol=0.1, atol=0.0)

    def test_training_takes_them_where_asked_to(self) -> None:
        (x,) = leaves((1, 1, 4, 4))
        tape = Tape(MomentMatched(expected_maxima=True), record=True)
        leaf = tape.leaf(x.centre, x.variance)
        y = F.max_pool2d(leaf, 2)
        assert_close(y.centre, F.max_pool2d(GaussianTensor(x.centre, x.variance), 2).centre)
        tape.back(y, torch.ones(1, 1, 2, 2), -torch.ones(1, 1, 2, 2))
        assert_close(learned(leaf)[0].sum(), torch.tensor(4.0))
        assert (learned(leaf)[0] > 0).all()
