"""Arithmetic on parameters as vectors: one fused call over all tensors where torch has one.

As in torch, functions whose names end in an underscore work in place. Use them only on vectors
that nothing else refers to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from bayesrule.tensors import randomness
from bayesrule.tensors.randomness import Generators
from bayesrule.types import Params

Shapes = dict[str, tuple[int, ...]]


class Flat(dict[str, Tensor]):
    """Parameters that are views of one row of numbers, so that arithmetic takes a single call.

    On a GPU, a call on a list of small tensors leaves most of the chip idle; a call on one row does
    not.
    """

    row: Tensor

    @classmethod
    def of(cls, params: Params) -> Flat:
        """A copy of the parameters in one row, each as it lies in memory."""
        parts = [_in_a_row(value) for value in params.values()]
        return cls.around(torch.cat(parts), params)

    @classmethod
    def around(cls, row: Tensor, like: Params) -> Flat:
        """Views of a row with the names, shapes and strides of other parameters."""
        parts = row.split([value.numel() for value in like.values()])
        pairs = zip(like.items(), parts, strict=True)
        params = cls({name: laid_out(part, value) for (name, value), part in pairs})
        params.row = row
        return params


def _in_a_row(value: Tensor) -> Tensor:
    order = in_memory(value)
    return (value if order is None else value.permute(order)).reshape(-1)


def matched(vector: Params, like: Params) -> Params:
    """The same vector, as one row if `like` is one."""
    if not isinstance(like, Flat) or isinstance(vector, Flat):
        return vector
    return Flat.of({name: placed_as(vector[name], value) for name, value in like.items()})


def placed_as(value: Tensor, like: Tensor) -> Tensor:
    """The same numbers with the memory layout of `like` (channels last)."""
    return value if value.stride() == like.stride() else torch.empty_like(like).copy_(value)


def _named(like: Params, values: Sequence[Tensor]) -> Params:
    if isinstance(like, Flat):
        return Flat.around(values[0], like)
    return dict(zip(like, values, strict=True))


def _list(a: Params) -> list[Tensor]:
    """The tensors to compute on: all parameters, or the row that holds them."""
    return [a.row] if isinstance(a, Flat) else list(a.values())


def _values(vector: Params, like: Params) -> list[Tensor]:
    """The tensors of a vector in the order and layout of `_list(like)`."""
    return _list(matched(vector, like)) if isinstance(like, Flat) else [vector[k] for k in like]


def _apply(name: str, a: Params, *others: Params | float | Tensor, **options: float) -> Params:
    """Applies one of torch's operations to vectors and numbers; a final underscore means in place.

    torch's `_foreach` form splits tensors into pieces of many thousand numbers, so for a single
    tensor the plain form is faster. For a number that is a tensor, 0-d or one per net (num,), the
    `_foreach` form would make a GPU wait to read it.
    """
    tensors = _list(a)
    operands = [_values(other, a) if isinstance(other, dict) else other for other in others]
    # `_foreach_mul` takes a 0-d tensor without reading it.
    least = 1 if name.startswith("mul") else 0
    single = any(isinstance(other, Tensor) and other.ndim >= least for other in others)
    if len(tensors) > 1 and not single:
        values = getattr(torch, f"_foreach_{name}")(tensors, *operands, **options)
    else:
        values = []
        for i, tensor in enumerate(tensors):
            args = [x[i] if isinstance(x, list) else over(x, tensor) for x in operands]
            values.append(getattr(Tensor, name)(tensor, *args, **options))
    return a if name[-1] == "_" else _named(a, values)


def over(factor: float | Tensor, like: Tensor) -> float | Tensor:
    """One number per net of a stack, (num,), reshaped to broadcast over the nets' tensors.

    Numbers that all nets share are returned unchanged.
    """
    if isinstance(factor, Tensor) and factor.ndim:
        return factor.reshape(-1, *[1] * (like.ndim - 1))
    return factor


def add(a: Params, b: Params, alpha: float | Tensor = 1.0) -> Params:
    """`a + alpha b`; alpha is a number, a 0-d tensor, or one number for each net."""
    if isinstance(alpha, Tensor):
        return _apply("addcmul", a, b, alpha)
    return _apply("add", a, b, alpha=alpha)


def add_(a: Params, b: Params, alpha: float | Tensor = 1.0) -> Params:
    """`a ← a + alpha b`; alpha as for `add`."""
    if isinstance(alpha, Tensor):
        return _apply("addcmul_", a, b, alpha)
    return _apply("add_", a, b, alpha=alpha)


def shift(a: Params, value: float | Tensor) -> Params:
    """`a + value`, elementwise; the value is like alpha for `add`."""
    return _apply("add", a, value)


def shift_(a: Params, value: float | Tensor) -> Params:
    """`a ← a + value`, elementwise; the value is like alpha for `add`."""
    return _apply("add_", a, value)


def scale(a: Params, factor: float | Tensor) -> Params:
    """`factor a`; the factor is like alpha for `add`."""
    return _apply("mul", a, factor)


def scale_(a: Params, factor: float | Tensor) -> Params:
    """`a ← factor a`; the factor is like alpha for `add`."""
    return _apply("mul_", a, factor)


def lerp(a: Params, b: Params, weight: float | Tensor) -> Params:
    """`(1 − weight) a + weight b`; the weight is a number or a 0-d tensor."""
    return _apply("lerp", a, b, weight)


def lerp_(a: Params, b: Params, weight: float | Tensor) -> Params:
    """`a ← (1 − weight) a + weight b`; the weight is a number or a 0-d tensor."""
    return _apply("lerp_", a, b, weight)


def mul(a: Params, b: Params) -> Params:
    """`a ∘ b`."""
    return _apply("mul", a, b)


def mul_(a: Params, b: Params) -> Params:
    """`a ← a ∘ b`."""
    return _apply("mul_", a, b)


def div(a: Params, b: Params) -> Params:
    """`a / b`, elementwise."""
    return _apply("div", a, b)


def div_(a: Params, b: Params) -> Params:
    """`a ← a / b`, elementwise."""
    return _apply("div_", a, b)


def addcmul(a: Params, b: Params, c: Params, value: float = 1.0) -> Params:
    """`a + value b ∘ c`."""
    return _apply("addcmul", a, b, c, value=value)


def addcmul_(a: Params, b: Params, c: Params, value: float | Tensor = 1.0) -> Params:
    """`a ← a + value b ∘ c`; the value is like alpha for `add`."""
    if isinstance(value, Tensor):
        return add_(a, mul(matched(b, a), c), alpha=value)
    return _apply("addcmul_", a, b, c, value=value)


def addcdiv_(a: Params, b: Params, c: Params, value: float | Tensor = 1.0) -> Params:
    """`a ← a + value b / c`, elementwise; the value is like alpha for `add`."""
    if isinstance(value, Tensor):
        return add_(a, div(matched(b, a), c), alpha=value)
    return _apply("addcdiv_", a, b, c, value=value)


def reciprocal(a: Params) -> Params:
    """`1 / a`, elementwise."""
    return _apply("reciprocal", a)


def sqrt(a: Params) -> Params:
    """`√a`, elementwise."""
    if any(value.device.type != "cpu" for value in _list(a)):
        return _apply("sqrt", a)
    # On a CPU this is twice as fast as the square root, and it also maps 0 to 0.
    return _apply("reciprocal_", rsqrt(a))


def rsqrt(a: Params) -> Params:
    """`1/√a`, elementwise."""
    return _apply("rsqrt", a)


def clamp_(a: Params, bound: float | Tensor) -> Params:
    """`a` clamped to ±bound, elementwise; the bound is a number or a 0-d tensor."""
    if isinstance(bound, Tensor):
        for tensor in _list(a):
            torch.minimum(torch.maximum(tensor, -bound, out=tensor), bound, out=tensor)
        return a
    return _apply("clamp_min_", _apply("clamp_max_", a, bound), -bound)


def dot(a: Params, b: Params, nets: int = 0) -> Tensor:
    """`⟨a, b⟩`, 0-d; with `nets=1` one for each net of a stack, (num,)."""
    if nets:
        return total(mul(a, b), nets)
    pairs = [(a[name].flatten(), b[name].flatten()) for name in a]
    return torch.stack([torch.linalg.vecdot(*pair) for pair in pairs]).sum(0)


def total(a: Params, nets: int = 0) -> Tensor:
    """The sum of all entries, 0-d; with `nets=1` one for each net of a stack, (num,)."""
    return torch.stack([in_rows(v, nets).sum(-1) for v in a.values()]).sum(0)


def zeros_like(a: Params) -> Params:
    """Zeros of the same names, shapes and types."""
    if isinstance(a, Flat):
        return Flat.around(torch.zeros_like(a.row), a)
    return {name: torch.zeros_like(value) for name, value in a.items()}


def randn_like(a: Params, generator: Generator | Generators) -> Params:
    """Standard normal draws of the same names, shapes and types."""
    kinds = {(value.dtype, value.device) for value in a.values()}
    if len(kinds) > 1:
        return {name: randn_like({name: value}, generator)[name] for name, value in a.items()}
    ((dtype, device),) = kinds
    if isinstance(generator, Generators):
        num = len(next(iter(a.values())))
        rows = generator.rows(numel(a) // num, dtype)
        blocks = rows.split([value.numel() // num for value in a.values()], dim=1)
        # Each weight gets memory of its own, as fused arithmetic needs.
        return {k: part.reshape(v.shape) for (k, v), part in zip(a.items(), blocks, strict=True)}
    flat = Flat.around(randomness.normal(numel(a), generator, dtype=dtype, device=device), a)
    return flat if isinstance(a, Flat) else dict(flat)


def several_randn(a: Params, num: int, generator: Generator) -> Params:
    """The numbers of `num` calls of `randn_like`, (num, *shape), for weights of one dtype."""
    like, size = next(iter(a.values())), numel(a)
    kind: Any = {"dtype": like.dtype, "device": like.device}
    rows = torch.stack([randomness.normal(size, generator, **kind) for _ in range(num)])
    return unflatten(rows, shapes_of(a))


def several_randn_like(a: Params, draws: int, generators: Generators) -> Params:
    """The numbers of `draws` calls of `randn_like` for a stack, {name: (num, draws, *shape)}."""
    like = next(iter(a.values()))
    sizes = [value[0].numel() for value in a.values()]
    rows = generators.several(draws, sum(sizes), like.dtype)
    parts = zip(a.items(), rows.split(sizes, dim=2), strict=True)
    return {k: part.reshape(len(like), draws, *v.shape[1:]) for (k, v), part in parts}


def laid_out(flat: Tensor, like: Tensor) -> Tensor:
    """A view of one row of numbers with the shape and memory layout of `like`, without gaps.

    >>> kernel = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
    >>> laid_out(torch.zeros(96), kernel).stride() == kernel.stride()
    True
    """
    order = in_memory(like)
    if order is None:
        return flat.view(like.shape)
    return flat.view([like.shape[axis] for axis in order]).permute(inverse(order))


def in_memory(tensor: Tensor) -> list[int] | None:
    """The axes in the order in which they lie in memory, for example channels last.

    None if the tensor is contiguous, or if its memory has gaps.
    """
    if tensor.is_contiguous():
        return None
    order = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    return order if tensor.permute(order).is_contiguous() else None


def inverse(order: Sequence[int]) -> list[int]:
    """The inverse permutation."""
    return sorted(range(len(order)), key=order.__getitem__)


def apart(a: Params, others: Iterable[Tensor] = ()) -> Params:
    """Gives each tensor memory of its own: a sum passes one gradient tensor to all its terms."""
    seen = {other.untyped_storage().data_ptr() for other in others}
    for name, value in a.items():
        place = value.untyped_storage().data_ptr()
        if place in seen or 0 in value.stride():
            a[name] = value.clone(memory_format=torch.contiguous_format)
        seen.add(place)
    return a


def numel(a: Params) -> int:
    """The number of entries."""
    return sum(value.numel() for value in a.values())


def shapes_of(params: Params, leading: int = 0) -> Shapes:
    """The shapes by name, without `leading` axes."""
    return {name: tuple(value.shape[leading:]) for name, value in params.items()}


def in_rows(value: Tensor, leading: int) -> Tensor:
    """One parameter as rows, (*leading axes, size); a scalar has no axes but the leading ones."""
    return value.reshape(*value.shape[:leading], -1)


def flatten(params: Params, shapes: Shapes, leading: int = 0) -> Tensor:
    """All parameters as one vector, (*leading axes, P), in the order of `shapes`."""
    return torch.cat([in_rows(params[k], leading) for k in shapes], dim=leading)


def unflatten(vector: Tensor, shapes: Shapes) -> Params:
    """One vector (*leading axes, P) back into named tensors."""
    parts = vector.split([math.prod(shape) for shape in shapes.values()], dim=-1)
    pairs, axes = zip(shapes.items(), parts, strict=True), vector.shape[:-1]
    return {k: part.reshape((*axes, *shape)) for (k, shape), part in pairs}
