"""Operations that only move elements: reshaping, transposing, converting, repeating.

Each element of a result is one element of its source, so means and variances move alike.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter, methodcaller
from typing import Any

import torch
from torch import Tensor

from bayesrule.moments.tensor import GaussianTensor, Map, NoRule, mapped, parts, rule


def adjoint(move: Map, shape: torch.Size) -> Map:
    """The adjoint of a linear map from tensors of a shape, by autograd at zero."""

    def back(t: Tensor) -> Tensor:
        return torch.func.vjp(move, t.new_zeros(shape))[1](t)[0]

    return back


def moved(name: str, x: GaussianTensor, move: Map, back: Map | None = None) -> GaussianTensor:
    """`move` applied to means and variances alike; `back` is its adjoint, by autograd if None."""
    to_x = back or adjoint(move, x.centre.shape)
    return mapped(name, x, move(x.centre), move(x.variance), to_x, to_x)


def both(name: str) -> list[Any]:
    """The tensor method and the torch function of a name, or the one of them that exists."""
    candidates = (getattr(home, name, None) for home in (Tensor, torch))
    return [one for one in candidates if one is not None]


def _reshaped(name: str) -> Callable[..., GaussianTensor]:
    """The rule of a method that keeps the order of the elements."""

    def apply(input: GaussianTensor, *args: Any, **kwargs: Any) -> GaussianTensor:
        before = input.centre.shape
        reshape = methodcaller(name, *args, **kwargs)
        return moved(name, input, reshape, lambda t: t.reshape(before))

    return apply


for _name in ("reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "ravel"):
    rule(*both(_name))(_reshaped(_name))
# A view of a Gaussian may be of strided memory (channels last), where only reshape works.
rule(Tensor.view)(_reshaped("reshape"))


@rule(Tensor.view_as, Tensor.reshape_as)
def reshape_as(input: GaussianTensor, other: Tensor) -> GaussianTensor:
    before, shape = input.centre.shape, other.shape
    return moved("reshape", input, lambda t: t.reshape(shape), lambda t: t.reshape(before))


def _own_inverse(name: str) -> Callable[..., GaussianTensor]:
    """The rule of a method that undoes itself when it is called twice."""

    def apply(input: GaussianTensor, *args: Any, **kwargs: Any) -> GaussianTensor:
        turn = methodcaller(name, *args, **kwargs)
        return moved(name, input, turn, turn)

    return apply


for _name in ("transpose", "swapaxes", "swapdims", "t", "adjoint", "flip", "fliplr", "flipud"):
    rule(*both(_name))(_own_inverse(_name))


def _transposed(name: str) -> Callable[..., GaussianTensor]:
    """The rule of an attribute that is the transposed tensor."""
    turn = attrgetter(name)
    return lambda input, *_: moved(name, input, turn, turn)


for _name in ("T", "mT", "H", "mH"):
    rule(getattr(Tensor, _name).__get__)(_transposed(_name))


@rule(*both("permute"))
def permute(input: GaussianTensor, *dims: Any, **kwargs: Any) -> GaussianTensor:
    """Axes in another order."""
    axes = kwargs.get("dims", dims[0] if dims and not isinstance(dims[0], int) else dims)
    order = [axis % input.centre.ndim for axis in axes]
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return moved("permute", input, lambda t: t.permute(order), lambda t: t.permute(inverse))


@rule(*both("movedim"), *both("moveaxis"))
def movedim(input: GaussianTensor, source: Any, destination: Any) -> GaussianTensor:
    """Axes moved to other positions."""
    there, back = (source, destination), (destination, source)
    return moved("movedim", input, lambda t: t.movedim(*there), lambda t: t.movedim(*back))


@rule(Tensor.expand, Tensor.expand_as, Tensor.broadcast_to, torch.broadcast_to)
def expand(input: GaussianTensor, *sizes: Any, **kwargs: Any) -> GaussianTensor:
    """Repeated along axes of length one; the copies are taken as independent of each other."""
    before, shape = input.centre.shape, (*sizes, *kwargs.values())
    if isinstance(shape[0], Tensor):
        shape = tuple(shape[0].shape)
    return moved("expand", input, lambda t: t.expand(*shape), lambda t: t.sum_to_size(before))


@rule(Tensor.contiguous, Tensor.clone, torch.clone)
def contiguous(
    input: GaussianTensor, memory_format: torch.memory_format | None = None
) -> GaussianTensor:
    """The same Gaussians; they never change in place, so that no copy is needed."""
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        return input
    convert = methodcaller("contiguous", memory_format=memory_format)
    return moved("contiguous", input, convert, lambda t: t)


@rule(Tensor.detach, torch.detach)
def detach(input: GaussianTensor) -> GaussianTensor:
    """The same Gaussians; no innovation goes back through them."""
    return GaussianTensor(input.centre.detach(), input.variance.detach(), input.tape, None)


def _converted(name: str) -> Callable[..., GaussianTensor]:
    """The rule of a method that changes the type or the device."""

    def apply(input: GaussianTensor, *args: Any, **kwargs: Any) -> GaussianTensor:
        plain = [parts(one)[0] for one in args]
        named = {key: parts(one)[0] for key, one in kwargs.items()}
        convert = methodcaller(name, *plain, **named)
        mean = convert(input.centre)
        if mean is input.centre:
            return input
        if not mean.is_floating_point():
            raise NoRule(
                f"A Gaussian tensor cannot become {mean.dtype}: Gaussians are real numbers. "
                "Use a floating type."
            )
        like = input.centre
        return moved(name, input, convert, lambda t: t.to(like.device, like.dtype))

    return apply


for _name in ("to", "type_as", "float", "double", "half", "bfloat16", "cpu", "cuda"):
    rule(getattr(Tensor, _name))(_converted(_name))


def _formed(name: str) -> Callable[..., Tensor]:
    """The rule of a function that only asks for shape and type: the result is a plain tensor."""
    function = both(name)[-1]
    return lambda input, *args, **kwargs: function(input.centre, *args, **kwargs)


for _kind in ("zeros", "ones", "empty", "full", "rand", "randn"):
    rule(getattr(torch, f"{_kind}_like"))(_formed(f"{_kind}_like"))
for _kind in ("zeros", "ones", "empty", "full", "tensor"):
    rule(getattr(Tensor, f"new_{_kind}"))(_formed(f"new_{_kind}"))
