"""Products of Gaussians: moments against draws, and the way back against autograd."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments import GaussianTensor, LocallyLinear, MomentMatched, Tape
from bayesrule.moments.product import LINEAR, Bilinear, convolution, product

from .monte_carlo import check_moments
from .nets import randn

KINDS = [kind for kind in itertools.product([False, True], repeat=3) if any(kind)]
NAMES = ["".join("xwb"[i] for i in range(3) if kind[i]) for kind in KINDS]


def some(gaussian: bool, *shape: int, seed: int) -> Tensor:
    """A Gaussian, or its means alone."""
    mean = randn(*shape, seed=seed)
    variance = 0.1 + randn(*shape, seed=seed + 50).square()
    return GaussianTensor(mean, variance) if gaussian else mean


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_a_linear_layer_is_as_a_million_draws_say(kind: tuple[bool, bool, bool]) -> None:
    x = some(kind[0], 2, 3, seed=1)
    w, b = some(kind[1], 2, 3, seed=2), some(kind[2], 2, seed=3)
    check_moments(F.linear, [x, w, b])


def test_without_a_bias() -> None:
    check_moments(F.linear, [some(True, 1, 3, seed=1), some(True, 2, 3, seed=2)])


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 1, 3)])
def test_any_number_of_leading_axes(shape: tuple[int, ...]) -> None:
    shapes, rows = [shape, (2, 3), (2,)], [(2 if 2 in shape else 1, 3), (2, 3), (2,)]
    results = []
    for folded in (shapes, rows):
        tape = Tape(LocallyLinear(), record=True)
        leaves = [
            tape.leaf(
                randn(*s, seed=i).reshape(f), (0.1 + randn(*s, seed=i + 9).square()).reshape(f)
            )
            for i, (s, f) in enumerate(zip(shapes, folded, strict=True))
        ]
        found = F.linear(*leaves)
        unit = torch.arange(found.numel(), dtype=found.dtype).reshape(found.shape)
        tape.back(found, unit, -unit)
        nodes = [leaf.node for leaf in leaves]
        results.append([found.centre, found.variance, *(n.delta for n in nodes if n)])
        assert found.shape == (*folded[0][:-1], 2)
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one.flatten(), two.flatten())


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_moments_and_innovations_by_the_formulas(kind: tuple[bool, bool, bool]) -> None:
    shapes = (5, 3), (2, 3), (2,)
    tape = Tape(LocallyLinear(), record=True)
    means = [randn(*s, seed=i) for i, s in enumerate(shapes)]
    spreads = [
        0.1 + randn(*s, seed=i + 9).square() if random else torch.zeros(s)
        for i, (s, random) in enumerate(zip(shapes, kind, strict=True))
    ]
    placed = [
        tape.leaf(m, v) if random else m for m, v, random in zip(means, spreads, kind, strict=True)
    ]
    found = F.linear(*placed)
    (x, w, b), (sx, sw, sb) = means, spreads
    torch.testing.assert_close(found.centre, x @ w.mT + b)
    total = (x.square() + sx) @ sw.mT + sx @ w.square().mT + sb
    torch.testing.assert_close(found.variance, total)
    delta, eta = randn(5, 2, seed=20), -randn(5, 2, seed=21).square()
    tape.back(found, delta, eta)
    expected = [
        (delta @ w, eta @ w.square()),
        (delta.mT @ x, eta.mT @ x.square()),
        (delta.sum(0), eta.sum(0)),
    ]
    for leaf, want, random in zip(placed, expected, kind, strict=True):
        if random:
            torch.testing.assert_close((leaf.node.delta, leaf.node.eta), want)  # type: ignore[attr-defined]


OPS: dict[str, tuple[Bilinear, tuple[int, ...], tuple[int, ...]]] = {
    "linear": (LINEAR, (4, 2, 3), (5, 3)),
    "convolution": (convolution([2], [1], [1], False, [0], 1), (2, 3, 6), (4, 3, 3)),
    "transposed": (convolution([2], [1], [1], True, [1], 1), (2, 3, 4), (3, 2, 3)),
}


@pytest.mark.parametrize("name", OPS)
def test_adjoints_are_those_of_autograd(name: str) -> None:
    op, left_shape, right_shape = OPS[name]
    left = randn(*left_shape, seed=1).requires_grad_()
    right = randn(*right_shape, seed=2).requires_grad_()
    width = right_shape[0] if name != "transposed" else right_shape[1]
    bias = randn(width, seed=3).requires_grad_()
    outputs = op.apply(left, right, bias)
    cotangent = randn(*outputs.shape, seed=4)
    expected = torch.autograd.grad(outputs, (left, right, bias), cotangent)
    with torch.no_grad():
        found = (
            op.to_left(cotangent, left, right),
            op.to_right(cotangent, left, right),
            op.to_bias(cotangent),  # type: ignore[misc]
        )
    torch.testing.assert_close(found, expected)


def test_an_operation_without_a_bias_says_so() -> None:
    plain = dataclasses.replace(LINEAR, name="plain", to_bias=None)
    x, w, b = some(True, 1, 3, seed=1), some(True, 2, 3, seed=2), some(True, 2, seed=3)
    with pytest.raises(TypeError, match="plain has no bias"):
        product(plain, x, w, b)


PLAIN = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def variances(*shape: int, seed: int) -> Tensor:
    """Positive numbers."""
    return 0.1 + randn(*shape, seed=seed).square()


@pytest.mark.parametrize(
    ("function", "options", "image", "kernel"),
    [
        (F.conv1d, {"padding": 1}, (1, 1, 3), (2, 1, 3)),
        (F.conv2d, {"stride": 2, "padding": 1}, (1, 2, 2, 2), (1, 2, 3, 3)),
        (F.conv_transpose2d, {"stride": 2}, (1, 1, 1, 2), (1, 1, 2, 2)),
    ],
    ids=["one dimension", "two dimensions", "transposed"],
)
def test_a_convolution_is_as_draws_say(
    function: Callable[..., Any], options: dict, image: tuple[int, ...], kernel: tuple[int, ...]
) -> None:
    transposed = function is F.conv_transpose2d
    x, w = some(True, *image, seed=1), some(True, *kernel, seed=2)
    b = some(True, kernel[1] if transposed else kernel[0], seed=3)
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
def test_moments_and_innovations_of_every_convolution(
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
    x, w = some(True, 1, 1, 5, 5, seed=1), some(True, 1, 1, 3, 3, seed=2)
    for name, number in (("same", 1), ("valid", 0)):
        found, expected = F.conv2d(x, w, padding=name), F.conv2d(x, w, padding=number)
        torch.testing.assert_close(found.centre, expected.centre)
        torch.testing.assert_close(found.variance, expected.variance)
    with pytest.raises(ValueError, match=r"kernels of even size \(2, 2\).*padding as numbers"):
        F.conv2d(x, some(True, 1, 1, 2, 2, seed=3), padding="same")


def test_images_need_examples_and_channels() -> None:
    with pytest.raises(ValueError, match=r"in 2 dimensions needs .* 4 axes, got \(1, 5, 5\)"):
        F.conv2d(some(True, 1, 5, 5, seed=1), some(True, 1, 1, 3, 3, seed=2))
