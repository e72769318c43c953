"""Pooling and interpolation of Gaussians.

Averages are linear: `μ = Σμ/k` and `σ² = Σσ²/k²` with the true divisor of each window. The largest
of several elements is taken to be the one with the largest mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.arithmetic import reduced
from bayesrule.moments.convolution import each
from bayesrule.moments.product import convolution, product
from bayesrule.moments.shape import moved
from bayesrule.moments.tensor import GaussianTensor, NoRule, mapped, rule

_AVERAGES = {2: F.avg_pool2d, 3: F.avg_pool3d}
_BACK = {2: torch.ops.aten.avg_pool2d_backward, 3: torch.ops.aten.avg_pool3d_backward}


def _average_pool(num: int) -> Callable[..., GaussianTensor]:
    """The rule of average pooling in `num` dimensions."""

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
        step = kernel if stride in (None, [], ()) else each(stride, num)
        rest = ceil_mode, count_include_pad, divisor_override
        if num > 1:
            return _averaged(input, num, (kernel, step, pad, *rest))
        # A row is an image of height one.
        options = [1, *kernel], [1, *step], [0, *pad], *rest
        return _averaged(input.unsqueeze(-2), 2, options).squeeze(-2)  # type: ignore

    return apply


for _num in (1, 2, 3):
    rule(getattr(F, f"avg_pool{_num}d"))(_average_pool(_num))


def _averaged(x: GaussianTensor, num: int, options: Sequence[Any]) -> GaussianTensor:
    """Averages over windows, with torch's options in its order."""
    centre, pool = x.centre, _AVERAGES[num]
    share = _one_over_divisor(centre, num, options)
    plain = centre.is_cpu and centre.dtype == torch.float32 and centre.ndim == num + 2
    if isinstance(share, float) and plain:
        return _averaged_by_kernels(x, num, share, options)

    def back(t: Tensor) -> Tensor:
        return _BACK[num](t, centre, *options)

    mean, variance = pool(centre, *options), pool(x.variance, *options) * share
    return mapped(f"avg_pool{num}d", x, mean, variance, back, lambda eta: back(eta * share))


def _one_over_divisor(x: Tensor, num: int, options: Sequence[Any]) -> Tensor | float:
    """One over the divisor of each window, which is smaller at the edges in some modes."""
    kernel, step, pad, ceil, count_padding, divisor = options
    if divisor is not None:
        return 1.0 / divisor
    if not ceil and (count_padding or not any(pad)):
        return 1.0 / torch.Size(kernel).numel()
    pool = _AVERAGES[num]
    ones = x.new_ones(1, *x.shape[-num:])
    return pool(ones, *options) / pool(ones, kernel, step, pad, ceil, count_padding, 1)


def _averaged_by_kernels(
    x: GaussianTensor, num: int, share: float, options: Sequence[Any]
) -> GaussianTensor:
    """The same as a convolution of each channel with a constant: several times faster on a CPU."""
    kernel, step, pad = options[:3]
    channels = x.centre.shape[1]
    weight = x.centre.new_full((channels, 1, *kernel), share)
    return product(convolution(step, pad, [1] * num, groups=channels), x, weight)


def _contracted(maps: Sequence[Tensor], x: Tensor) -> Tensor:
    """A matrix (out, in) applied along each of the last axes."""
    for axis, one in enumerate(maps, start=-len(maps)):
        x = (x.movedim(axis, -1) @ one.mT).movedim(-1, axis)
    return x


def _separable(name: str, x: GaussianTensor, maps: Sequence[Tensor]) -> GaussianTensor:
    """A linear map that is one matrix (out, in) for each of the last axes."""
    squares = [one.square() for one in maps]
    back, back_squares = ([one.mT for one in matrices] for matrices in (maps, squares))
    mean, variance = _contracted(maps, x.centre), _contracted(squares, x.variance)
    to_x, to_x_squares = partial(_contracted, back), partial(_contracted, back_squares)
    return mapped(name, x, mean, variance, to_x, to_x_squares)


def _eye(size: int, like: Tensor) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)


def _adaptive(num: int) -> Callable[..., GaussianTensor]:
    """The rule of averages over windows that give an output of a certain size."""

    def apply(input: GaussianTensor, output_size: Any) -> GaussianTensor:
        before = input.centre.shape[-num:]
        asked = zip(before, each(output_size, num), strict=True)
        after = [old if new is None else new for old, new in asked]
        if all(new == 1 for new in after):
            return reduced("adaptive_avg_pool", input, range(-num, 0), True, True)
        maps = [
            F.adaptive_avg_pool1d(_eye(old, input.centre), new).mT
            for old, new in zip(before, after, strict=True)
        ]
        return _separable("adaptive_avg_pool", input, maps)

    return apply


for _num in (1, 2, 3):
    rule(getattr(F, f"adaptive_avg_pool{_num}d"))(_adaptive(_num))


def _largest(
    num: int, function: Callable[..., tuple[Tensor, Tensor]], *, with_indices: bool
) -> Callable[..., Any]:
    """The rule of max pooling, from torch's function that also returns the indices of maxima."""

    def apply(input: GaussianTensor, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("return_indices", None)
        mean, indices = function(input.centre, *args, **kwargs)
        where, shape = indices.flatten(-num), input.centre.shape

        def back(t: Tensor) -> Tensor:
            flat = t.new_zeros(shape).flatten(-num)
            return flat.scatter_add(-1, where, t.flatten(-num)).reshape(shape)

        variance = input.variance.flatten(-num).gather(-1, where).reshape(mean.shape)
        result = mapped("max_pool", input, mean, variance, back, back)
        return (result, indices) if with_indices else result

    return apply


for _name in ("max_pool", "adaptive_max_pool"):
    for _num in (1, 2, 3):
        _function = getattr(F, f"{_name}{_num}d_with_indices")
        rule(_function)(_largest(_num, _function, with_indices=True))
        rule(getattr(F, f"{_name}{_num}d"))(_largest(_num, _function, with_indices=False))


_INTERPOLATED = {"linear": 1, "bilinear": 2, "trilinear": 3}


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
    if mode not in _INTERPOLATED or antialias:
        raise NoRule(
            f"No moment rule for interpolation with mode={mode!r}, antialias={antialias}. Known: "
            "nearest, nearest-exact, linear, bilinear, trilinear, without antialias."
        )
    num = _INTERPOLATED[mode]
    sizes = [None] * num if size is None else each(size, num)
    scales = [None] * num if scale_factor is None else each(scale_factor, num)
    maps = []
    for old, new, scale in zip(input.centre.shape[-num:], sizes, scales, strict=True):
        rows = _eye(old, input.centre)[None]
        image = F.interpolate(rows, new, scale, "linear", align_corners, recompute_scale_factor)
        maps.append(image[0].mT)
    return _separable("interpolate", input, maps)
