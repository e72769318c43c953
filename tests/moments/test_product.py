"""Products of Gaussians: moments against draws, and the way back against autograd."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments import GaussianTensor, LocallyLinear
from bayesrule.moments.product import LINEAR, Bilinear, convolution, product
from bayesrule.moments.tensor import Tape

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
    "convolution": (convolution([2], [1], [1], 1), (2, 3, 6), (4, 3, 3)),
    "transposed": (convolution([2], [1], [1], 1, True, [1]), (2, 3, 4), (3, 2, 3)),
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
