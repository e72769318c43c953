"""Operations that keep every element but its place: reshaping, turning, converting, repeating.

Each element of a result is one element of its source, so means and variances move alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayesrule.moments.tensor import GaussianTensor, Innovation, NoRule, parts, rule

Move = Callable[[Tensor], Tensor]
"""A linear map of plain tensors."""


def adjoint(move: Move, shape: torch.Size) -> Move:
    """The adjoint of a linear map from tensors of a shape, found by running it on zeros."""

    def back(t: Tensor) -> Tensor:
        return torch.func.vjp(move, t.new_zeros(shape))[1](t)[0]

    return back


def moved(name: str, x: GaussianTensor, move: Move, back: Move | None = None) -> GaussianTensor:
    """`move` applied to means and variances alike; `back` is its adjoint, found if not given."""
    to_x = back or adjoint(move, x.centre.shape)

    def to_sources(delta: Tensor, eta: Tensor) -> tuple[Innovation]:
        return ((to_x(delta), to_x(eta)),)

    return x.tape.result(name, move(x.centre), move(x.variance), (x.node,), to_sources)


def both(name: str) -> list[Any]:
    """A function of tensors as their method, as torch's own, or as both, as far as there is one."""
    places = (getattr(place, name, None) for place in (Tensor, torch))
    return [one for one in places if one is not None]


def _reshaped(name: str) -> Callable[..., GaussianTensor]:
    """Methods that keep the order of the elements."""

    def apply(input: GaussianTensor, *args: Any, **kwargs: Any) -> GaussianTensor:
        before = input.centre.shape
        return moved(
            name, input, lambda t: getattr(t, name)(*args, **kwargs), lambda t: t.reshape(before)
        )

    return apply


for _name in ("reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "ravel"):
    rule(*both(_name))(_reshaped(_name))
# A view of a Gaussian may be of strided memory (channels last), where only reshape works.
rule(Tensor.view)(_reshaped("reshape"))


@rule(Tensor.view_as, Tensor.reshape_as)
def reshape_as(input: GaussianTensor, other: Tensor) -> GaussianTensor:
    before = input.centre.shape
    shape = other.shape
    return moved("reshape", input, lambda t: t.reshape(shape), lambda t: t.reshape(before))


def _turned(name: str) -> Callable[..., GaussianTensor]:
    """Methods that undo themselves when called twice."""

    def apply(input: GaussianTensor, *args: Any, **kwargs: Any) -> GaussianTensor:
        def turn(t: Tensor) -> Tensor:
            return getattr(t, name)(*args, **kwargs)

        return moved(name, input, turn, turn)

    return apply


for _name in ("transpose", "swapaxes", "swapdims", "t", "adjoint", "flip", "fliplr", "flipud"):
    rule(*both(_name))(_turned(_name))


def _mirrored(name: str) -> Callable[[GaussianTensor], GaussianTensor]:
    """Attributes that are a transposed tensor."""

    def apply(input: GaussianTensor, *_: Any) -> GaussianTensor:
        def turn(t: Tensor) -> Tensor:
            return getattr(t, name)

        return moved(name, input, turn, turn)

    return apply


for _name in ("T", "mT", "H", "mH"):
    rule(getattr(Tensor, _name).__get__)(_mirrored(_name))


@rule(*both("permute"))
def permute(input: GaussianTensor, *dims: Any, **kwargs: Any) -> GaussianTensor:
    """Axes in another order."""
    given = kwargs.get("dims", dims[0] if dims and not isinstance(dims[0], int) else dims)
    order = [d % input.centre.ndim for d in given]
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return moved("permute", input, lambda t: t.permute(order), lambda t: t.permute(inverse))


@rule(*both("movedim"), *both("moveaxis"))
def movedim(input: GaussianTensor, source: Any, destination: Any) -> GaussianTensor:
    """Axes in other places."""
    return moved(
        "movedim",
        input,
        lambda t: t.movedim(source, destination),
        lambda t: t.movedim(destination, source),
    )


@rule(Tensor.expand, Tensor.expand_as, Tensor.broadcast_to, torch.broadcast_to)
def expand(input: GaussianTensor, *sizes: Any, **kwargs: Any) -> GaussianTensor:
    """Repeated along axes of length one; the copies are taken as independent of each other."""
    before, given = input.centre.shape, (*sizes, *kwargs.values())
    if isinstance(given[0], Tensor):
        given = tuple(given[0].shape)
    return moved("expand", input, lambda t: t.expand(*given), lambda t: t.sum_to_size(before))


@rule(Tensor.contiguous, Tensor.clone, torch.clone)
def contiguous(
    input: GaussianTensor, memory_format: torch.memory_format | None = None
) -> GaussianTensor:
    """The same Gaussians; they never change in place, so that no copy is needed."""
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        return input
    return moved(
        "contiguous", input, lambda t: t.contiguous(memory_format=memory_format), lambda t: t
    )


@rule(Tensor.detach, torch.detach)
def detach(input: GaussianTensor) -> GaussianTensor:
    """The same Gaussians, with nothing learned of what they came from."""
    return GaussianTensor(input.centre.detach(), input.variance.detach(), input.tape, None)


def _converted(name: str) -> Callable[..., GaussianTensor]:
    """Methods that change the type or the device."""

    def apply(input: GaussianTensor, *args: Any, **kwargs: Any) -> GaussianTensor:
        plain = [parts(one)[0] for one in args]
        known = {key: parts(one)[0] for key, one in kwargs.items()}

        def convert(t: Tensor) -> Tensor:
            return getattr(t, name)(*plain, **known)

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
    """Functions that ask a tensor for its form and not for its values give plain tensors."""

    def apply(input: GaussianTensor, *args: Any, **kwargs: Any) -> Tensor:
        place = torch if hasattr(torch, name) else Tensor
        return getattr(place, name)(input.centre, *args, **kwargs)

    return apply


for _kind in ("zeros", "ones", "empty", "full"):
    rule(getattr(torch, f"{_kind}_like"))(_formed(f"{_kind}_like"))
    rule(getattr(Tensor, f"new_{_kind}"))(_formed(f"new_{_kind}"))
for _name in ("rand_like", "randn_like"):
    rule(getattr(torch, _name))(_formed(_name))
rule(Tensor.new_tensor)(_formed("new_tensor"))
