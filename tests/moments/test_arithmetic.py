"""Sums and products of Gaussian tensors, and dropout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from bayesrule.moments import GaussianTensor, MomentMatched, NoRule, Tape
from moments.linear_maps import Function, check_linear, learned, leaves
from moments.monte_carlo import check_moments

ROW = torch.tensor([1.0, -2.0, 0.5]).double()
SQUARE = torch.arange(9.0).reshape(3, 3).double()


def plus(x: Tensor, y: object) -> Tensor:
    x += y  # type: ignore[arg-type]
    return x


def in_turn(x: Tensor) -> Tensor:
    x = x.clone()  # the Jacobian's tensors must stay as they are
    x += 1.0
    x *= 2.0
    x -= ROW
    x /= ROW
    return x


LINEAR: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "add": (lambda x, y: x + y, ((2, 3), (2, 3))),
    "add broadcast": (lambda x, y: x + y, ((2, 3), (2, 1))),
    "add with alpha": (lambda x, y: torch.add(x, y, alpha=-0.3), ((2, 3), (3,))),
    "add a number": (lambda x: x + 2, ((2, 3),)),
    "a number added to": (lambda x: 2 + x, ((2, 3),)),
    "add plain": (lambda x: x + ROW, ((2, 1),)),
    "plain added to": (lambda x: ROW + x, ((2, 1),)),
    "add itself": (lambda x: x + x, ((2, 3),)),
    "add itself with alpha": (lambda x: x.add(x, alpha=3), ((2, 3),)),
    "sub": (lambda x, y: x - y, ((2, 3), (2, 3))),
    "sub with alpha": (lambda x, y: torch.sub(x, y, alpha=2), ((2, 3), (3,))),
    "sub plain": (lambda x: x - ROW, ((2, 3),)),
    "plain less": (lambda x: ROW - x, ((2, 1),)),
    "a number less": (lambda x: 1 - x, ((2, 3),)),
    "rsub": (lambda x, y: torch.rsub(x, y, alpha=2), ((2, 3), (3,))),
    "sub itself": (lambda x: x - x, ((2, 3),)),
    "neg": (lambda x: -x, ((2, 3),)),
    "positive": (lambda x: +x, ((2, 3),)),
    "mul by a number": (lambda x: -0.5 * x, ((2, 3),)),
    "mul by plain": (lambda x: x * ROW, ((2, 1),)),
    "plain times": (lambda x: SQUARE * x, ((3,),)),
    "mul by a mask": (lambda x: x * torch.tensor([True, False, True]), ((2, 3),)),
    "mul by whole numbers": (lambda x: torch.tensor([1, 2, 3]) * x, ((2, 3),)),
    "mul by a 0-d tensor": (lambda x: x * torch.tensor(3.0).double(), ((2, 3),)),
    "div by a number": (lambda x: x / 4, ((2, 3),)),
    "div by plain": (lambda x: torch.div(x, ROW), ((2, 3),)),
    "div by whole numbers": (lambda x: x / torch.tensor([1, 2, 3]), ((2, 3),)),
    "operators in place": (in_turn, ((2, 3),)),
    "sum": (lambda x: x.sum(), ((2, 3),)),
    "sum over an axis": (lambda x: x.sum(-1), ((2, 3),)),
    "sum over axes": (lambda x: torch.sum(x, (0, 2), keepdim=True), ((2, 3, 2),)),
    "mean": (lambda x: torch.mean(x), ((2, 3),)),
    "mean over axes": (lambda x: x.mean(dim=(-1, -2)), ((2, 3, 2),)),
    "mean along an axis": (lambda x: x.mean(axis=0, keepdim=True), ((2, 3),)),
    "cumsum": (lambda x: x.cumsum(1), ((2, 3),)),
    "matmul by plain": (lambda x: x @ SQUARE, ((2, 3),)),
    "plain matmul": (lambda x: SQUARE @ x, ((3, 2),)),
    "batched matmul by plain": (lambda x: torch.matmul(x, SQUARE), ((2, 2, 3),)),
    "plain broadcast matmul": (lambda x: SQUARE @ x, ((2, 3, 1),)),
    "broadcast matmul": (lambda x: x @ torch.stack([SQUARE, SQUARE.mT]), ((2, 3),)),
    "matrix times plain vector": (lambda x: x @ ROW, ((2, 2, 3),)),
    "plain matrix times vector": (lambda x: SQUARE @ x, ((3,),)),
    "vector times plain matrix": (lambda x: x @ SQUARE, ((3,),)),
    "dot": (lambda x: x @ ROW, ((3,),)),
    "bmm": (lambda x: torch.bmm(x, SQUARE.expand(2, 3, 3)), ((2, 2, 3),)),
    "addmm": (
        lambda x, y: torch.addmm(x, y, SQUARE, beta=2, alpha=-1),
        ((2, 3), (2, 3)),
    ),
    "addmm of plain": (lambda x: torch.addmm(x, SQUARE, SQUARE), ((3,),)),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_linear(name: str) -> None:
    function, shapes = LINEAR[name]
    check_linear(function, *shapes)


means = st.floats(-2.0, 2.0)
variances = st.floats(0.05, 1.5)


def gaussian(shape: tuple[int, ...], seed: int, scale: float) -> GaussianTensor:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(shape, dtype=torch.float64, generator=generator)
    spread = torch.rand(shape, dtype=torch.float64, generator=generator) + 0.1
    return GaussianTensor(mean, scale * spread)


PRODUCTS: dict[str, tuple[Function, tuple[int, ...], tuple[int, ...]]] = {
    "mul": (torch.mul, (3,), (3,)),
    "mul broadcast": (lambda x, y: x * y, (2, 1), (3,)),
    "matmul": (torch.matmul, (2, 3), (3, 1)),
    "batched matmul": (lambda x, y: x @ y, (2, 1, 2), (2, 2, 1)),
    "broadcast matmul": (lambda x, y: x @ y, (1, 2), (2, 2, 1)),
    "vector times matrix": (lambda x, y: x @ y, (2,), (2, 2)),
    "dot": (torch.dot, (3,), (3,)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_exact(name: str) -> None:
    function, left, right = PRODUCTS[name]
    check_moments(function, [gaussian(left, 1, 0.5), gaussian(right, 2, 2.0)], num=1_000_000)


@given(mean=means, variance=variances)
@settings(max_examples=6)
def test_a_tensor_times_itself_is_a_square(mean: float, variance: float) -> None:
    """`x * x` is not a product of independents."""
    x = GaussianTensor(torch.tensor([mean]).double(), torch.tensor([variance]).double())
    check_moments(lambda x: x * x, [x], num=1_000_000)


def test_what_is_shared_is_taken_as_independent() -> None:
    (x,) = leaves((3,))
    y = x * 1.0
    assert_close((x + y).variance, 2.0 * x.variance)
    assert_close((x + x).variance, 4.0 * x.variance)


def test_no_division_by_gaussians() -> None:
    x, y = leaves((3,), (3,))
    refused = (
        lambda: torch.div(x, y),
        lambda: x.div(2.0, rounding_mode="floor"),
        lambda: torch.div(ROW, x),
    )
    for function in refused:
        with pytest.raises(NoRule, match="No moment rule for"):
            function()
    # Torch turns a TypeError of an operator into Python's own.
    for function in (lambda: x / y, lambda: ROW / x, lambda: 1.0 / x):
        with pytest.raises(TypeError, match="unsupported operand"):
            function()


def test_no_change_in_place() -> None:
    """Operators give new tensors; a method whose result may be thrown away is refused by name."""
    (x,) = leaves((3,))
    before = x.centre.clone()
    y = plus(x, 1.0)
    assert y is not x
    assert_close(x.centre, before)
    with pytest.raises(NoRule, match="'add_'"):
        x.add_(1.0)
    total = torch.zeros(3).double()
    total += x
    assert isinstance(total, GaussianTensor)
    assert_close(total.variance, x.variance)


PROMOTED: dict[str, Function] = {
    "add": lambda x: x + ROW,
    "mul": lambda x: x * ROW,
    "div": lambda x: x / ROW,
    "sum": lambda x: x.sum(dtype=torch.float64),
    "cat": lambda x: torch.cat([x, ROW]),
    "where": lambda x: torch.where(ROW > 0, x, ROW),
}


@pytest.mark.parametrize("name", PROMOTED)
def test_types_are_promoted_alike(name: str) -> None:
    tape = Tape(MomentMatched(), record=True)
    x = tape.leaf(torch.ones(3, dtype=torch.float32), torch.ones(3, dtype=torch.float32))
    result = PROMOTED[name](x)
    assert result.dtype == result.centre.dtype == result.variance.dtype == torch.float64
    tape.back(result, result.centre, result.centre)
    assert [one.dtype for one in learned(x)] == [torch.float32] * 2


class Residual(nn.Module):
    """A block with a branch, a skip connection and one layer used twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shared, self.side = nn.Linear(width, width), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.shared(self.shared(x)) + x
        hidden += self.side(x)
        return hidden - 0.5 * x.mean(-1, keepdim=True)


def test_residual_block_of_known_weights() -> None:
    """With plain weights everything is linear in the input, though branches meet again.

    Means and δ are exact then. Variances are not: the branches are taken as independent.
    """
    block = Residual(3).double()
    (x,) = leaves((2, 3))
    with torch.no_grad():
        result = block(x)
        jacobian = torch.func.jacrev(block)(x.centre).reshape(6, 6)
        delta = torch.randn(2, 3, dtype=torch.float64)
        assert_close(result.centre, block(x.centre))
        result.tape.back(result, delta, -delta.abs())
    assert_close(learned(x)[0].flatten(), jacobian.mT @ delta.flatten())
    assert bool((learned(x)[1] < 0).all())


def test_shared_layer_learns_from_both_uses() -> None:
    tape = Tape(MomentMatched(), record=True)
    weight = tape.leaf(torch.randn(2, 2).double(), torch.rand(2, 2).double())
    x = torch.randn(3, 2).double()
    hidden = F.linear(x, weight)
    result = F.linear(hidden, weight)
    delta = torch.randn(3, 2).double()
    with torch.no_grad():
        tape.back(result, delta, -torch.ones_like(delta))
    first = (delta @ weight.centre).mT @ x
    second = delta.mT @ hidden.centre
    assert_close(learned(weight)[0], first + second)


def test_stacked_networks() -> None:
    mean, variance = torch.randn(4, 2, 3), torch.rand(4, 2, 3)

    def run(m: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        tape = Tape(MomentMatched(), record=True)
        x = tape.leaf(m, s)
        y = (x * x + 2.0 - x * torch.ones(3)) @ x.mT + x.sum(1)
        y = y.mean(0, keepdim=True) / 3.0
        tape.back(y, y.centre, -y.variance)
        return y.centre, y.variance, *learned(x)

    with torch.no_grad():
        together = torch.func.vmap(run)(mean, variance)
        alone = [run(m, s) for m, s in zip(mean, variance, strict=True)]
    for number, found in enumerate(together):
        assert_close(found, torch.stack([one[number] for one in alone]))


def seeded(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """A layer that draws the same mask each time."""

    def run(x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return layer(x.clone())

    return run


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Dropout(0.3), (4, 5)),
        (nn.Dropout(1.0), (2, 3)),
        (nn.Dropout(0.3, inplace=True), (4, 5)),
        (nn.Dropout1d(), (4, 3, 2)),
        (nn.Dropout2d(0.4), (4, 3, 2, 2)),
        (nn.Dropout3d(), (4, 3, 1, 2, 2)),
        (nn.AlphaDropout(0.3), (4, 5)),
        (nn.FeatureAlphaDropout(0.3), (4, 3, 2, 2)),
    ],
)
def test_dropout_is_a_known_map(layer: nn.Module, shape: tuple[int, ...]) -> None:
    """From the same seed, the mask and all that follows from it is what plain tensors get."""
    result = check_linear(seeded(layer), shape)
    assert (result.variance == 0).any()


@pytest.mark.parametrize("layer", [nn.Dropout(), nn.Dropout2d(), nn.AlphaDropout()])
def test_dropout_in_evaluation_changes_nothing(layer: nn.Module) -> None:
    (x,) = leaves((2, 3, 2, 2))
    assert layer.eval()(x) is x
