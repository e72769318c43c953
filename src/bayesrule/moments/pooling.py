"""Pooling and interpolation of Gaussians.

Averages are linear: `μ = Σμ/k` and `σ² = Σσ²/k²` with the true divisor of each window. The largest
of several elements is taken to be the one with the largest mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.arithmetic import reduced
from bayesrule.moments.convolution import each
from bayesrule.moments.product import Convolution
from bayesrule.moments.shape import moved
from bayesrule.moments.tensor import GaussianTensor, Innovation, NoRule, rule


def _divided(x: Tensor, num: int, options: Sequence[Any]) -> Tensor | float:
    """One over the divisor of each window, which is smaller at the edges in some modes."""
    kernel, step, pad, ceil, count_padding, divisor = options
    if divisor is not None:
        return 1.0 / divisor
    if not ceil and (count_padding or not any(pad)):
        return 1.0 / torch.Size(kernel).numel()
    pool = _AVERAGES[num]
    ones = x.new_ones(1, *x.shape[-num:])
    return pool(ones, *options) / pool(ones, kernel, step, pad, ceil, count_padding, 1)


_AVERAGES = {2: F.avg_pool2d, 3: F.avg_pool3d}
_BACK = {2: torch.ops.aten.avg_pool2d_backward, 3: torch.ops.aten.avg_pool3d_backward}


def _averaged(num: int) -> Callable[..., GaussianTensor]:
    def apply(
        input: GaussianTensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> GaussianTensor:
        kernel, pad = each(kernel_size, num), each(padding, num)
        step = kernel if stride is None or stride == [] else each(stride, num)
        options = (kernel, step, pad, ceil_mode, count_include_pad, divisor_override)
        x, pool = input.centre, _AVERAGES[num]
        share = _divided(x, num, options)
        if isinstance(share, float) and x.is_cpu and x.dtype == torch.float32 and x.ndim == num + 2:
            return _averaged_by_kernels(num, input, share, options)

        def to_sources(delta: Tensor, eta: Tensor) -> tuple[Innovation]:
            back = _BACK[num]
            return ((back(delta, x, *options), back(eta * share, x, *options)),)

        mean, variance = pool(x, *options), pool(input.variance, *options) * share
        return input.tape.result(f"avg_pool{num}d", mean, variance, (input.node,), to_sources)

    return apply


def _averaged_by_kernels(
    num: int, input: GaussianTensor, share: float, options: Sequence[Any]
) -> GaussianTensor:
    """The same as a convolution of each channel with a constant: several times faster on a CPU."""
    kernel, step, pad = options[:3]
    x = input.centre
    each_alone = Convolution(step, pad, [1] * num, groups=x.shape[1])
    weight = x.new_full((x.shape[1], 1, *kernel), share)
    squared = weight.square()

    def to_sources(delta: Tensor, eta: Tensor) -> tuple[Innovation]:
        return ((each_alone.to_left(delta, x, weight), each_alone.to_left(eta, x, squared)),)

    mean, variance = each_alone.apply(x, weight), each_alone.apply(input.variance, squared)
    return input.tape.result(f"avg_pool{num}d", mean, variance, (input.node,), to_sources)


avg_pool2d = rule(F.avg_pool2d)(_averaged(2))
avg_pool3d = rule(F.avg_pool3d)(_averaged(3))


@rule(F.avg_pool1d)
def avg_pool1d(
    input: GaussianTensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> GaussianTensor:
    """Averages in one dimension: those in two, of a row."""
    kernel, pad = each(kernel_size, 1), each(padding, 1)
    step = kernel if stride is None or stride == () else each(stride, 1)
    row = input.unsqueeze(-2)
    options = [1, *kernel], [1, *step], [0, *pad], ceil_mode, count_include_pad
    return avg_pool2d(row, *options).squeeze(-2)


def _contracted(maps: Sequence[Tensor], x: Tensor) -> Tensor:
    """A matrix (out, in) applied along each of the last axes."""
    for axis, one in enumerate(maps, start=-len(maps)):
        x = (x.movedim(axis, -1) @ one.mT).movedim(-1, axis)
    return x


def _separable(name: str, x: GaussianTensor, maps: Sequence[Tensor]) -> GaussianTensor:
    """A linear map that is one matrix (out, in) for each of the last axes."""
    squares = [one.square() for one in maps]
    turned, turned_squares = [one.mT for one in maps], [one.mT for one in squares]

    def to_sources(delta: Tensor, eta: Tensor) -> tuple[Innovation]:
        return ((_contracted(turned, delta), _contracted(turned_squares, eta)),)

    mean, variance = _contracted(maps, x.centre), _contracted(squares, x.variance)
    return x.tape.result(name, mean, variance, (x.node,), to_sources)


def _eye(size: int, like: Tensor) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)


def _adaptive(num: int) -> Callable[..., GaussianTensor]:
    def apply(input: GaussianTensor, output_size: Any) -> GaussianTensor:
        sizes = input.centre.shape[-num:]
        wanted = [
            given if new is None else new
            for given, new in zip(sizes, each(output_size, num), strict=True)
        ]
        if all(new == 1 for new in wanted):
            return reduced("adaptive_avg_pool", input, range(-num, 0), True, True)
        maps = [
            F.adaptive_avg_pool1d(_eye(given, input.centre), new).mT
            for given, new in zip(sizes, wanted, strict=True)
        ]
        return _separable("adaptive_avg_pool", input, maps)

    return apply


rule(F.adaptive_avg_pool1d)(_adaptive(1))
rule(F.adaptive_avg_pool2d)(_adaptive(2))
rule(F.adaptive_avg_pool3d)(_adaptive(3))


def _largest(num: int, function: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Any]:
    """Max pooling from torch's function that also tells where each maximum stands."""

    def apply(input: GaussianTensor, *args: Any, **kwargs: Any) -> tuple[GaussianTensor, Tensor]:
        kwargs.pop("return_indices", None)
        mean, indices = function(input.centre, *args, **kwargs)
        where, shape = indices.flatten(-num), input.centre.shape

        def back(t: Tensor) -> Tensor:
            flat = t.new_zeros(shape).flatten(-num)
            return flat.scatter_add(-1, where, t.flatten(-num)).reshape(shape)

        def to_sources(delta: Tensor, eta: Tensor) -> tuple[Innovation]:
            return ((back(delta), back(eta)),)

        variance = input.variance.flatten(-num).gather(-1, where).reshape(mean.shape)
        found = input.tape.result("max_pool", mean, variance, (input.node,), to_sources)
        return found, indices

    return apply


def _register_largest(kind: str, num: int) -> None:
    name = f"{kind}{num}d"
    with_indices = getattr(F, f"{name}_with_indices")
    apply = rule(with_indices)(_largest(num, with_indices))
    rule(getattr(F, name))(lambda *args, **kwargs: apply(*args, **kwargs)[0])


for _num in (1, 2, 3):
    _register_largest("max_pool", _num)
    _register_largest("adaptive_max_pool", _num)


_SPREAD = {"linear": 1, "bilinear": 2, "trilinear": 3}


@rule(F.interpolate)
def interpolate(
    input: GaussianTensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> GaussianTensor:
    """Images made larger or smaller: by copies of elements, or by weighted means of neighbours."""
    if mode in ("nearest", "nearest-exact"):

        def copied(t: Tensor) -> Tensor:
            return F.interpolate(t, size, scale_factor, mode, None, recompute_scale_factor)

        return moved("interpolate", input, copied)
    if mode not in _SPREAD or antialias:
        raise NoRule(
            f"No moment rule for interpolation with mode={mode!r}, antialias={antialias}. Known: "
            "nearest, nearest-exact, linear, bilinear, trilinear, without antialias."
        )
    num = _SPREAD[mode]
    sizes = [None] * num if size is None else each(size, num)
    scales = [None] * num if scale_factor is None else each(scale_factor, num)
    maps = []
    for given, new, scale in zip(input.centre.shape[-num:], sizes, scales, strict=True):
        rows = _eye(given, input.centre)[None]
        image = F.interpolate(rows, new, scale, "linear", align_corners, recompute_scale_factor)
        maps.append(image[0].mT)
    return _separable("interpolate", input, maps)
