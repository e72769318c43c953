"""Arithmetic on named parameters equals that on one flat vector."""

from collections.abc import Callable

import pytest
import torch
from exact import DTYPE, close, flat, generator, randn
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayesrule.tensors import vectors
from bayesrule.types import Params

SHAPES: tuple[tuple[int, ...], ...] = ((2, 3), (4,), (), (1, 2, 2))

stable = settings(max_examples=30, deadline=None, derandomize=True, database=None)
shapes = st.lists(st.sampled_from(SHAPES), min_size=1, max_size=4)
numbers = st.floats(-3, 3)


def params(chosen: list[tuple[int, ...]], seed: int) -> Params:
    return {f"p{i}": randn(*shape, seed=seed + i) for i, shape in enumerate(chosen)}


def reordered(vector: Params) -> Params:
    """The same parameters named in another order: names count, not places."""
    return dict(reversed(vector.items()))


def _copy(vector: Params) -> Params:
    return {name: value.clone() for name, value in vector.items()}


PAIRS: list[tuple[Callable[..., Params], Callable[..., Tensor]]] = [
    (vectors.add, lambda a, b, c: a + c * b),
    (vectors.mul, lambda a, b, c: a * b),
    (vectors.div, lambda a, b, c: a / b),
    (vectors.lerp, lambda a, b, c: (1 - c) * a + c * b),
]


@pytest.mark.parametrize(("found", "expected"), PAIRS, ids=["add", "mul", "div", "lerp"])
@stable
@given(chosen=shapes, value=numbers)
def test_two_vectors(
    found: Callable[..., Params],
    expected: Callable[..., Tensor],
    chosen: list[tuple[int, ...]],
    value: float,
) -> None:
    a, b = params(chosen, 0), params(chosen, 50)
    extra = (value,) if found in (vectors.add, vectors.lerp) else ()
    out = found(a, reordered(b), *extra)
    close(flat(out), expected(flat(a), flat(b), value), 1e-12)
    assert {k: v.shape for k, v in out.items()} == {k: v.shape for k, v in a.items()}


@stable
@given(chosen=shapes, value=numbers)
def test_three_vectors(chosen: list[tuple[int, ...]], value: float) -> None:
    a, b, c = (params(chosen, seed) for seed in (0, 50, 100))
    product = vectors.addcmul(a, reordered(b), reordered(c), value)
    ratio = vectors.addcdiv_(_copy(a), reordered(b), reordered(c), value)
    close(flat(product), flat(a) + value * flat(b) * flat(c), 1e-12)
    close(flat(ratio), flat(a) + value * flat(b) / flat(c), 1e-12)


@stable
@given(chosen=shapes, value=numbers)
def test_one_vector(chosen: list[tuple[int, ...]], value: float) -> None:
    a = params(chosen, 0)
    close(flat(vectors.shift(a, value)), flat(a) + value, 1e-12)
    close(flat(vectors.scale(a, value)), flat(a) * value, 1e-12)
    close(flat(vectors.sqrt(vectors.mul(a, a))), flat(a).abs(), 1e-12)
    close(flat(vectors.rsqrt(vectors.mul(a, a))), 1.0 / flat(a).abs(), 1e-12)
    close(flat(vectors.clamp_(_copy(a), abs(value))), flat(a).clamp(-abs(value), abs(value)), 0.0)
    close(vectors.total(a), flat(a).sum(), 1e-12)
    close(flat(vectors.zeros_like(a)), torch.zeros_like(flat(a)), 0.0)
    assert vectors.numel(a) == len(flat(a))


@stable
@given(chosen=shapes, value=numbers)
def test_in_place(chosen: list[tuple[int, ...]], value: float) -> None:
    a, b = params(chosen, 0), params(chosen, 50)
    x, y, other = flat(a), flat(b), reordered(b)
    close(flat(vectors.add_(_copy(a), other, value)), x + value * y, 1e-12)
    close(flat(vectors.mul_(_copy(a), other)), x * y, 1e-12)
    close(flat(vectors.div_(_copy(a), other)), x / y, 1e-12)
    close(flat(vectors.scale_(_copy(a), value)), value * x, 1e-12)
    close(flat(vectors.shift_(_copy(a), value)), x + value, 1e-12)
    same = _copy(a)
    assert vectors.scale_(same, 2.0) is same


@stable
@given(chosen=shapes)
def test_dot(chosen: list[tuple[int, ...]]) -> None:
    a, b = params(chosen, 0), params(chosen, 50)
    close(vectors.dot(a, reordered(b)), flat(a) @ flat(b), 1e-12)


def test_dot_of_views_that_are_not_contiguous() -> None:
    a, b = randn(3, 4, seed=1), randn(4, 3, seed=2)
    close(vectors.dot({"w": a.mT}, {"w": b}), (a.mT * b).sum(), 1e-12)


def test_nothing_changes_in_place() -> None:
    a, b = params([(2, 3), (4,)], 0), params([(2, 3), (4,)], 50)
    before = flat(a).clone()
    vectors.add(a, b), vectors.lerp(a, b, 0.5), vectors.shift(a, 1.0)
    close(flat(a), before, 0.0)


def test_missing_names_are_errors() -> None:
    with pytest.raises(KeyError, match="b"):
        vectors.add({"a": randn(2), "b": randn(2)}, {"a": randn(2)})


def test_noise_is_white_typed_and_repeatable() -> None:
    like = {"w": torch.zeros(4000, dtype=DTYPE), "b": torch.zeros(3, 2)}
    one, two = (vectors.randn_like(like, generator(1)) for _ in range(2))
    assert one["b"].dtype == torch.float32
    assert one["b"].shape == (3, 2)
    assert torch.equal(flat(one), flat(two))
    assert abs(float(one["w"].mean())) < 5 / 4000**0.5
    assert abs(float(one["w"].square().mean()) - 1.0) < 5 * (2 / 4000) ** 0.5


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 1, 0, 2)])
def test_draws_lie_in_memory_as_what_they_are_for(order: tuple[int, ...]) -> None:
    like = torch.zeros(2, 3, 4, 5).permute(order)
    like = torch.empty_like(like)
    found = vectors.randn_like({"a": like}, torch.Generator().manual_seed(0))["a"]
    assert found.shape == like.shape
    assert found.stride() == like.stride()
    flat = torch.randn(120, generator=torch.Generator().manual_seed(0))
    assert torch.equal(found.flatten().sort().values, flat.sort().values)


def test_what_has_gaps_in_memory_gets_draws_without() -> None:
    like = torch.zeros(4, 6)[:, ::2]
    found = vectors.randn_like({"a": like}, torch.Generator().manual_seed(0))["a"]
    assert found.shape == (4, 3)
    assert found.is_contiguous()
