"""Arithmetic on parameters as vectors: one fused call over all tensors where torch has one.

As in torch, names that end in an underscore work in place; they are for vectors just made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor

from bayesrule.tensors import randomness
from bayesrule.tensors.randomness import Generators
from bayesrule.types import Params


class Flat(dict[str, Tensor]):
    """Parameters that are views of one row of numbers, in which arithmetic on all of them is one.

    On a GPU a call for a list of small tensors leaves most of the chip idle; a call for one row
    does not.
    """

    row: Tensor

    @classmethod
    def of(cls, params: Params) -> Flat:
        """A copy of the parameters in one row, each as it lies in memory."""
        parts = [_in_a_row(value) for value in params.values()]
        return cls.around(torch.cat(parts), params)

    @classmethod
    def around(cls, row: Tensor, like: Params) -> Flat:
        """The views of a row that look like other parameters."""
        parts = row.split([value.numel() for value in like.values()])
        each = zip(like.items(), parts, strict=True)
        found = cls({name: laid_out(part, value) for (name, value), part in each})
        found.row = row
        return found


def _in_a_row(value: Tensor) -> Tensor:
    order = in_memory(value)
    return (value if order is None else value.permute(order)).reshape(-1)


def matched(vector: Params, like: Params) -> Params:
    """The same vector, in one row where the other is."""
    if not isinstance(like, Flat) or isinstance(vector, Flat):
        return vector
    return Flat.of({name: _as_laid_out(vector[name], value) for name, value in like.items()})


def _as_laid_out(value: Tensor, like: Tensor) -> Tensor:
    return value if value.stride() == like.stride() else torch.empty_like(like).copy_(value)


def _each(name: str, *lists: Any, **options: Any) -> Any:
    """One of torch's operations on lists of tensors; on single tensors by its plain form.

    The form for lists works on pieces of many thousand numbers, so one tensor is faster without.
    """
    if len(lists[0]) > 1:
        return getattr(torch, f"_foreach_{name}")(*lists, **options)
    single = (part[0] if isinstance(part, list) else part for part in lists)
    return [getattr(torch.Tensor, name)(*single, **options)]


def _named(like: Params, values: Sequence[Tensor]) -> Params:
    if isinstance(like, Flat):
        return Flat.around(values[0], like)
    return dict(zip(like, values, strict=True))


def _list(a: Params) -> list[Tensor]:
    """The tensors to work on: all of them, or the row that holds them."""
    return [a.row] if isinstance(a, Flat) else list(a.values())


def _values(vector: Params, like: Params) -> list[Tensor]:
    """The tensors of a vector beside those of another."""
    if not isinstance(like, Flat):
        return [vector[name] for name in like]
    one = matched(vector, like)
    assert isinstance(one, Flat)
    return [one.row]


def add(a: Params, b: Params, alpha: float | Tensor = 1.0) -> Params:
    """`a + alpha b`; alpha is a number or a tensor, as for `add_`."""
    if isinstance(alpha, Tensor):
        pairs = zip(_list(a), _values(b, a), strict=True)
        return _named(a, [one.addcmul(other, over(alpha, other)) for one, other in pairs])  # type: ignore[arg-type]
    return _named(a, _each("add", _list(a), _values(b, a), alpha=alpha))


def shift(a: Params, value: float | Tensor) -> Params:
    """`a + value`, elementwise; the value is a number, or one for each net."""
    if _differs(value):
        return {name: one + over(value, one) for name, one in a.items()}
    return _named(a, _each("add", _list(a), value))


def over(factor: float | Tensor, like: Tensor) -> float | Tensor:
    """One number for each net of a stack, (num,), in a shape that goes with the nets' tensors.

    Numbers that all nets share are left as they are.
    """
    if isinstance(factor, Tensor) and factor.ndim:
        return factor.reshape(-1, *[1] * (like.ndim - 1))
    return factor


def _differs(factor: float | Tensor) -> bool:
    """Whether each net of a stack has a number of its own."""
    return isinstance(factor, Tensor) and factor.ndim > 0


def scale(a: Params, factor: float | Tensor) -> Params:
    """`factor a`; the factor is a number, or one for each net."""
    if _differs(factor):
        return {name: value * over(factor, value) for name, value in a.items()}
    return _named(a, _each("mul", _list(a), factor)) if a else {}


def scale_(a: Params, factor: float | Tensor) -> Params:
    """`a ← factor a`; the factor is a number, or one for each net."""
    if _differs(factor):
        for value in a.values():
            value.mul_(over(factor, value))
    elif a:
        _each("mul_", _list(a), factor)
    return a


def add_(a: Params, b: Params, alpha: float | Tensor = 1.0) -> Params:
    """`a ← a + alpha b`; alpha is a number, a 0-d tensor, or one for each net."""
    if isinstance(alpha, Tensor):
        for one, other in zip(_list(a), _values(b, a), strict=True):
            one.addcmul_(other, over(alpha, other))  # type: ignore[arg-type]
    else:
        _each("add_", _list(a), _values(b, a), alpha=alpha)
    return a


def shift_(a: Params, value: float | Tensor) -> Params:
    """`a ← a + value`, elementwise; the value is a number or a tensor, as for `add_`."""
    if isinstance(value, Tensor):
        # The call for all at once would ask a GPU what the value is.
        for one in _list(a):
            one.add_(over(value, one))
        return a
    _each("add_", _list(a), value)
    return a


def lerp_(a: Params, b: Params, weight: float | Tensor) -> Params:
    """`a ← (1 − weight) a + weight b`; the weight is a number or a 0-d tensor."""
    if isinstance(weight, Tensor):
        for one, other in zip(_list(a), _values(b, a), strict=True):
            one.lerp_(other, weight)
    else:
        _each("lerp_", _list(a), _values(b, a), weight)
    return a


def addcdiv_(a: Params, b: Params, c: Params, value: float | Tensor = 1.0) -> Params:
    """`a ← a + value b / c`, elementwise; the value is a number or a tensor, as for `add_`."""
    if isinstance(value, Tensor):
        ratio = _each("div", _values(b, a), _values(c, a))
        return add_(a, _named(a, ratio), alpha=value)
    _each("addcdiv_", _list(a), _values(b, a), _values(c, a), value=value)
    return a


def mul_(a: Params, b: Params) -> Params:
    """`a ← a ∘ b`."""
    _each("mul_", _list(a), _values(b, a))
    return a


def div_(a: Params, b: Params) -> Params:
    """`a ← a / b`, elementwise."""
    _each("div_", _list(a), _values(b, a))
    return a


def mul(a: Params, b: Params) -> Params:
    """`a ∘ b`."""
    return _named(a, _each("mul", _list(a), _values(b, a)))


def div(a: Params, b: Params) -> Params:
    """`a / b`, elementwise."""
    return _named(a, _each("div", _list(a), _values(b, a)))


def addcmul(a: Params, b: Params, c: Params, value: float = 1.0) -> Params:
    """`a + value b ∘ c`."""
    lists = _list(a), _values(b, a), _values(c, a)
    return _named(a, _each("addcmul", *lists, value=value))


def addcmul_(a: Params, b: Params, c: Params, value: float | Tensor = 1.0) -> Params:
    """`a ← a + value b ∘ c`; the value is a number or a tensor, as for `add_`."""
    if isinstance(value, Tensor):
        return add_(a, _named(a, _each("mul", _values(b, a), _values(c, a))), alpha=value)
    _each("addcmul_", _list(a), _values(b, a), _values(c, a), value=value)
    return a


def lerp(a: Params, b: Params, weight: float | Tensor) -> Params:
    """`(1 − weight) a + weight b`; the weight is a number or a 0-d tensor."""
    if isinstance(weight, Tensor):
        pairs = zip(_list(a), _values(b, a), strict=True)
        return _named(a, [one.lerp(other, weight) for one, other in pairs])
    return _named(a, _each("lerp", _list(a), _values(b, a), weight))


def reciprocal(a: Params) -> Params:
    """`1 / a`, elementwise."""
    return _named(a, _each("reciprocal", _list(a)))


def sqrt(a: Params) -> Params:
    """`√a`, elementwise."""
    values = _list(a)
    if any(value.device.type != "cpu" for value in values):
        return _named(a, _each("sqrt", values))
    # Twice as fast there as the root itself, and zero for zero too.
    found = _each("rsqrt", values)
    _each("reciprocal_", found)
    return _named(a, found)


def rsqrt(a: Params) -> Params:
    """`1/√a`, elementwise."""
    return _named(a, _each("rsqrt", _list(a)))


def clamp_(a: Params, bound: float | Tensor) -> Params:
    """`a` kept within ±bound, elementwise; the bound is a number or a 0-d tensor."""
    if isinstance(bound, Tensor):
        for one in _list(a):
            torch.minimum(torch.maximum(one, -bound, out=one), bound, out=one)
        return a
    _each("clamp_max_", _list(a), bound)
    _each("clamp_min_", _list(a), -bound)
    return a


def dot(a: Params, b: Params) -> Tensor:
    """`⟨a, b⟩`, a 0-d tensor."""
    return torch.stack([torch.vdot(a[k].reshape(-1), b[k].reshape(-1)) for k in a]).sum()


def total(a: Params) -> Tensor:
    """The sum of all entries, a 0-d tensor."""
    return torch.stack([v.sum() for v in a.values()]).sum()


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
        # Each weight gets memory of its own, which fused arithmetic wants.
        return {k: part.reshape(v.shape) for (k, v), part in zip(a.items(), blocks, strict=True)}
    flat = randomness.normal(numel(a), generator, dtype=dtype, device=device)
    if isinstance(a, Flat):
        return Flat.around(flat, a)
    parts = flat.split([value.numel() for value in a.values()])
    return {k: laid_out(part, v) for (k, v), part in zip(a.items(), parts, strict=True)}


def several_randn_like(a: Params, draws: int, generators: Generators) -> Params:
    """The numbers of as many calls of `randn_like` for a stack, {name: (num, draws, *shape)}."""
    like = next(iter(a.values()))
    sizes = [value[0].numel() for value in a.values()]
    rows = generators.several(draws, sum(sizes), like.dtype)
    parts = zip(a.items(), rows.split(sizes, dim=2), strict=True)
    return {k: part.reshape(len(like), draws, *v.shape[1:]) for (k, v), part in parts}


def laid_out(flat: Tensor, like: Tensor) -> Tensor:
    """A view of one row of numbers that lies in memory as another tensor does, gaps aside.

    >>> kernel = torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last)
    >>> laid_out(torch.zeros(96), kernel).stride() == kernel.stride()
    True
    """
    order = in_memory(like)
    if order is None:
        return flat.view(like.shape)
    return flat.view([like.shape[axis] for axis in order]).permute(inverse(order))


def in_memory(tensor: Tensor) -> list[int] | None:
    """The axes in the order in which they lie in memory, as of kernels with their channels last.

    None if that is their own order, or if there are gaps.
    """
    if tensor.is_contiguous():
        return None
    order = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    return order if tensor.permute(order).is_contiguous() else None


def inverse(order: Sequence[int]) -> list[int]:
    """The order that undoes another one."""
    return sorted(range(len(order)), key=order.__getitem__)


def apart(a: Params, others: Iterable[Tensor] = ()) -> Params:
    """Each with memory of its own: a sum hands one gradient to all its terms."""
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
