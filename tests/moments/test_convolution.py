"""Convolutions of Gaussians: each against draws and against its own dense matrix."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments import GaussianTensor, MomentMatched
from bayesrule.moments.tensor import Tape

from .monte_carlo import check_moments
from .nets import randn

PLAIN = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def variances(*shape: int, seed: int) -> Tensor:
    """Positive numbers."""
    return 0.1 + randn(*shape, seed=seed).square()


def gaussian(*shape: int, seed: int) -> GaussianTensor:
    """Any Gaussian of this shape."""
    return GaussianTensor(randn(*shape, seed=seed), variances(*shape, seed=seed + 50))


@pytest.mark.parametrize(
    ("function", "options", "image", "kernel"),
    [
        (F.conv1d, {"padding": 1}, (1, 1, 3), (2, 1, 3)),
        (F.conv2d, {"stride": 2, "padding": 1}, (1, 2, 2, 2), (1, 2, 3, 3)),
        (F.conv_transpose2d, {"stride": 2}, (1, 1, 1, 2), (1, 1, 2, 2)),
    ],
    ids=["one dimension", "two dimensions", "transposed"],
)
def test_it_is_as_draws_say(
    function: Callable[..., Any], options: dict, image: tuple[int, ...], kernel: tuple[int, ...]
) -> None:
    transposed = function is F.conv_transpose2d
    x, w = gaussian(*image, seed=1), gaussian(*kernel, seed=2)
    b = gaussian(kernel[1] if transposed else kernel[0], seed=3)
    check_moments(partial(function, **options), [x, w, b], num=1_000_000)


def dense(function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Tensor:
    """The matrix of a linear map of tensors of this shape."""
    size = int(torch.tensor(shape).prod())
    rows = [function(unit.reshape(shape)).flatten() for unit in torch.eye(size)]
    return torch.stack(rows, dim=1)


@settings(max_examples=15)
@given(
    num=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.integers(0, 1),
    dilation=st.integers(1, 2),
    groups=st.integers(1, 2),
    transposed=st.booleans(),
    which=st.sampled_from(["x", "w", "b", "xw", "xwb", "wb"]),
)
def test_moments_and_innovations_of_every_kind(
    num: int,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    transposed: bool,
    which: str,
) -> None:
    """`m = A μ + b`, `s = B(μ² + σ²) + C σ² + s_b`: A of the means, B and C of their squares."""
    image, kernel = (2, 2, *[4] * num), (2, 2 // groups, *[2] * num)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    run = partial((TRANSPOSED if transposed else PLAIN)[num], **options)
    channels = kernel[1] * groups if transposed else kernel[0]
    tape = Tape(MomentMatched(), record=True)
    means = {"x": randn(*image, seed=1), "w": randn(*kernel, seed=2), "b": randn(channels, seed=3)}
    spread = {k: variances(*v.shape, seed=9) * (k in which) for k, v in means.items()}
    leaves = {k: tape.leaf(v, spread[k]) for k, v in means.items() if k in which}
    placed = {**means, **leaves}
    found = run(placed["x"], placed["w"], placed["b"])
    x, w, b = (means[k] for k in "xwb")
    torch.testing.assert_close(found.centre, run(x, w, b))
    total = run(x.square() + spread["x"], spread["w"], spread["b"])
    torch.testing.assert_close(found.variance, total + run(spread["x"], w.square()))
    delta, eta = randn(*found.shape, seed=5), -variances(*found.shape, seed=6)
    tape.back(found, delta, eta)
    shape = found.shape
    maps = {
        "x": dense(lambda t: run(t, w), image),
        "w": dense(lambda t: run(x, t), kernel),
        "b": dense(lambda t: torch.zeros(shape) + t.reshape(-1, *[1] * num), (channels,)),
    }
    for name, leaf in leaves.items():
        matrix = maps[name]
        assert leaf.node is not None
        torch.testing.assert_close(leaf.node.delta.flatten(), matrix.mT @ delta.flatten())
        # A position meets each weight once, so that squares of the map's entries are the weights'.
        assert leaf.node.eta is not None
        torch.testing.assert_close(leaf.node.eta.flatten(), matrix.square().mT @ eta.flatten())


def test_padding_by_name() -> None:
    x, w = gaussian(1, 1, 5, 5, seed=1), gaussian(1, 1, 3, 3, seed=2)
    for name, number in (("same", 1), ("valid", 0)):
        found, expected = F.conv2d(x, w, padding=name), F.conv2d(x, w, padding=number)
        torch.testing.assert_close(found.centre, expected.centre)
        torch.testing.assert_close(found.variance, expected.variance)
    with pytest.raises(ValueError, match=r"kernels of even size \(2, 2\).*padding as numbers"):
        F.conv2d(x, gaussian(1, 1, 2, 2, seed=3), padding="same")


def test_images_need_examples_and_channels() -> None:
    with pytest.raises(ValueError, match=r"in 2 dimensions needs .* 4 axes, got \(1, 5, 5\)"):
        F.conv2d(gaussian(1, 5, 5, seed=1), gaussian(1, 1, 3, 3, seed=2))
