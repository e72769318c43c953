"""Squares of single examples by the kernel for GPUs, interpreted where there is none."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.curvature.layers.convolution import ConvLayer

if find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Read when Triton is loaded.

from bayesrule.curvature.layers.square_kernel import Tiles, weight_squares

CHOICE = sys.modules[ConvLayer.__module__]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Case(NamedTuple):
    """A convolution and its inputs."""

    inputs: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0)
    dilation: tuple[int, ...] = (1, 1)


CASES = {
    "three by three": Case((3, 5, 9, 8), (7, 5, 3, 3), padding=(1, 1)),
    "strided": Case((4, 16, 8, 8), (20, 16, 3, 3), (2, 2), (1, 1)),
    "one by one": Case((2, 3, 7, 11), (17, 3, 1, 1), (2, 1)),
    "odd sizes": Case((5, 6, 12, 9), (4, 6, 3, 2), (1, 2), (2, 1), (2, 3)),
    "one axis": Case((3, 4, 19), (6, 4, 5), (2,), (2,), (1,)),
    "several tiles": Case((2, 20, 6, 6), (70, 20, 3, 3), padding=(1, 1)),
    "many positions": Case((2, 2, 20, 21), (3, 2, 2, 2)),
}


def layer_of(case: Case) -> tuple[ConvLayer, Tensor]:
    """The layer and an output gradient; sizes of channels are many powers of ten apart."""
    torch.manual_seed(0)
    axes = [1] * (len(case.inputs) - 2)
    a, weight = torch.randn(case.inputs), torch.randn(case.weight)
    a *= torch.logspace(-6, 3, a.shape[1]).reshape(1, -1, *axes)
    convolve = torch.nn.functional.conv2d if len(axes) == 2 else torch.nn.functional.conv1d
    options: Any = case[2:]
    g = torch.randn_like(convolve(a, weight, None, *options))
    g *= torch.logspace(-9, 0, g.shape[1]).reshape(1, -1, *axes)
    return ConvLayer(a.to(DEVICE), weight.to(DEVICE), None, *options, 1), g.to(DEVICE)


@pytest.mark.parametrize("tiles", [None, (16, 16, 16)])
@pytest.mark.parametrize("name", CASES)
def test_sums_of_squares_as_in_double_precision(name: str, tiles: tuple[int, ...] | None) -> None:
    layer, g = layer_of(CASES[name])
    wide = ConvLayer(layer.input.double(), layer.weight.double(), None, *CASES[name][2:], 1)
    exact = wide.weight_rows(g.double()).square().sum(0)
    found = weight_squares(
        *(layer.input, g, layer.kernel),
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        tiles=tiles and Tiles(*tiles),
    )
    assert found.shape == exact.shape
    # Each pair of channels by itself, since they are of very different sizes.
    each = (found - exact).flatten(2).norm(dim=2) / exact.flatten(2).norm(dim=2)
    assert each.max() < 2e-2
    assert each.square().mean().sqrt() < 1e-3


def test_channels_of_zeros_have_squares_of_zero() -> None:
    layer, g = layer_of(CASES["three by three"])
    layer.input[:, 1], g[:, 2] = 0.0, 0.0
    options: Any = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    found = weight_squares(layer.input, g, (3, 3), **options)
    assert found.isfinite().all()
    assert not found[:, 1].any()
    assert not found[2].any()
    assert found[0, 0].all()


def test_a_step_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    batch = torch.randn(5, 3, 4, 4).to(DEVICE), torch.randn(5, 2).to(DEVICE)

    def stepped() -> Any:
        learner = br.vogn(model.to(DEVICE), br.GaussianLikelihood(noise=1.0), num_data=50)
        return learner.step(learner.init(), batch)[0].posterior

    monkeypatch.setattr(CHOICE, "square_kernel_suits", lambda a: False)
    plain = stepped()
    monkeypatch.setattr(CHOICE, "square_kernel_suits", lambda a: True)
    quick = stepped()
    for name, value in plain.precision.values.items():
        torch.testing.assert_close(quick.precision.values[name], value, rtol=1e-2, atol=1e-3)
        torch.testing.assert_close(quick.mean[name], plain.mean[name], rtol=1e-3, atol=1e-4)
    assert any(
        not torch.equal(quick.precision.values[k], v) for k, v in plain.precision.values.items()
    )
