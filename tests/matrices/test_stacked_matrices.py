"""Matrices of several nets stacked along a first axis do what each of them does alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import bayesrule as br
from bayesrule.execution.stacked.rows import StackedProducts, StackedRows
from bayesrule.matrices import DiagonalMatrix, Matrix, Structure
from bayesrule.tensors import tree
from bayesrule.tensors.chain import Linear
from bayesrule.types import Params

pytestmark = pytest.mark.usefixtures("double_precision")
NUM, VECTORS, EXAMPLES = 3, 2, 9
STRUCTURES: list[Any] = [
    br.Kronecker(),
    br.Kronecker(exact=True),
    br.Kronecker(corrected=True),
    br.matrices.BlockTridiagonal(),
]


def draw(*shape: int, seed: int) -> Tensor:
    """Normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rows(seed: int) -> Any:
    """Those of two layers, (3 → 4) and (4 → 2)."""
    layers = [Linear("0.weight", "0.bias"), Linear("1.weight", "1.bias")]
    inputs = [draw(NUM, EXAMPLES, size, seed=seed + i) for i, size in enumerate((3, 4))]
    slopes = [
        [draw(NUM, EXAMPLES, size, seed=seed + 10 * v + i) for i, size in enumerate((4, 2))]
        for v in range(1, VECTORS + 1)
    ]
    return StackedRows(layers, inputs, slopes)


def vector(seed: int, *leading: int) -> Params:
    """One for each net, with further axes after that of the nets."""
    shapes = rows(0).shapes.items()
    return {k: draw(*leading, *shape, seed=seed + i) for i, (k, shape) in enumerate(shapes)}


def matrix(structure: Structure, seed: int) -> Any:
    """A positive one, with a damping of its own for each net."""
    found: Any = structure.contract(rows(seed))
    return found.damped(torch.tensor([0.5, 0.7, 1.1]))


def alone(found: Any, which: int) -> Any:
    """What one net has of it."""
    return tree.map_tensors(found, lambda value: value[which])


def asked(found: Any, name: str, *given: Any) -> Any:
    """What one net, told by the last number, answers with its part of what is given."""
    *parts, which = given
    return getattr(alone(found, which), name)(*(alone(part, which) for part in parts))


def same(found: Any, singles: Callable[[int], Any]) -> None:
    """Whether a stacked result holds that of each net."""
    for i in range(NUM):
        mine, expected = dict(tree.leaves(alone(found, i))), dict(tree.leaves(singles(i)))
        assert mine.keys() == expected.keys()
        for name, value in mine.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_vectors(structure: Structure) -> None:
    big, x = matrix(structure, 1), vector(50, NUM)
    for name in ("matmul", "solve", "inv_sqrt"):
        same(getattr(big, name)(x), partial(asked, big, name, x))
    back = big.solve(big.matmul(x))
    for name, value in x.items():
        torch.testing.assert_close(back[name], value)


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_numbers_and_diagonals(structure: Structure) -> None:
    big, other = matrix(structure, 1), matrix(structure, 7)
    for name in ("logdet", "diagonal", "inverse_diagonal"):
        same(getattr(big, name)(), partial(asked, big, name))
    same(big.trace_solve(other), lambda i: alone(big, i).trace_solve(alone(other, i)))
    plain = DiagonalMatrix({k: v.exp() for k, v in vector(80, NUM).items()})
    same(big.trace_solve(plain), lambda i: alone(big, i).trace_solve(alone(plain, i)))
    assert big.logdet().shape == (NUM,)


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_sums_and_averages(structure: Structure) -> None:
    big, other = matrix(structure, 1), matrix(structure, 7)
    each = torch.tensor([2.0, 0.5, 3.0])
    same(big.plus(other), lambda i: alone(big, i).plus(alone(other, i)))
    same(big.lerp(other, 0.3), lambda i: alone(big, i).lerp(alone(other, i), 0.3))
    precision = big.damped(0.1)
    same(
        big.retract(other, 0.3, precision),
        lambda i: alone(big, i).retract(alone(other, i), 0.3, alone(precision, i)),
    )
    same(big.times(2.0), lambda i: alone(big, i).times(2.0))
    same(big.times(each), lambda i: alone(big, i).times(float(each[i])))
    same(big.damped(each), lambda i: alone(big, i).damped(float(each[i])))


@pytest.mark.parametrize("structure", STRUCTURES, ids=str)
def test_several_draws_are_those_of_one_after_another(structure: Structure) -> None:
    """Of a stack, and of one net."""
    big, noise = matrix(structure, 1), vector(50, NUM, 5)
    for whole, given, axis in ((big, noise, 1), (alone(big, 1), alone(noise, 1), 0)):
        found = whole.inv_sqrt(given)
        for i in range(5):
            expected = whole.inv_sqrt({k: v.select(axis, i) for k, v in given.items()})
            for name, value in expected.items():
                torch.testing.assert_close(found[name].select(axis, i), value)


def test_draws_of_neighbouring_layers_have_the_inverse_as_their_covariance() -> None:
    """Whatever basis is chosen among equal eigenvalues, of which a chain has many."""
    whole: Matrix = alone(matrix(br.matrices.BlockTridiagonal(), 1), 0)
    sizes = [value.numel() for value in vector(0).values()]
    total = sum(sizes)

    def columns(function: Callable[[Params], Params]) -> Tensor:
        parts = zip(vector(0).items(), torch.eye(total).split(sizes, dim=1), strict=True)
        units = {k: part.reshape(total, *v.shape) for (k, v), part in parts}
        each = [function({k: v[i] for k, v in units.items()}) for i in range(total)]
        return torch.stack([torch.cat([v.flatten() for v in one.values()]) for one in each], 1)

    root, inverse = columns(whole.inv_sqrt), columns(whole.solve)
    torch.testing.assert_close(root @ root.mT, inverse)


class TestRows:
    """Rows of linear layers, without forming them."""

    def products(self) -> tuple[StackedProducts, Tensor]:
        a, g = draw(NUM, EXAMPLES, 3, seed=0), draw(NUM, VECTORS, EXAMPLES, 4, seed=1)
        return StackedProducts(a, g, None), g.unsqueeze(-1) * a[:, None, :, None]

    def test_squares_and_products_in_other_bases(self) -> None:
        found, table = self.products()
        left, right = draw(NUM, 4, 4, seed=2), draw(NUM, 3, 3, seed=3)
        seen = left[:, None, None].mT @ table @ right[:, None, None]
        torch.testing.assert_close(found.squares(left, right), seen.square().sum((1, 2)))
        gains = draw(NUM, 4, 3, seed=4).exp()
        expected = torch.einsum("kvnoi,kwnoi,koi->knvw", seen, seen, gains)
        torch.testing.assert_close(found.gram(left, right, gains), expected)

    def test_what_fills_up_counts_for_nothing(self) -> None:
        own = torch.arange(EXAMPLES) < torch.tensor([[9], [4], [1]])
        full = rows(1)
        slopes = [[g * own.unsqueeze(-1) for g in slope] for slope in full._slopes]
        some: Any = StackedRows(full._layers, full._inputs, slopes, own)
        big: Any = br.Kronecker().contract(some)
        assert big.layers["0.weight"].factors.count.tolist() == [9, 4, 1]
        for i, size in enumerate((9, 4, 1)):
            inputs = [a[i : i + 1, :size] for a in full._inputs]
            fewer = [[g[i : i + 1, :size] for g in slope] for slope in slopes]
            other: Any = StackedRows(full._layers, inputs, fewer)
            one = br.Kronecker().contract(other)
            for name, value in tree.leaves(alone(one, 0)):
                expected = dict(tree.leaves(alone(big, i)))[name]
                torch.testing.assert_close(value, expected)
