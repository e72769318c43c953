"""Pooling and interpolation of Gaussians.

Averages are linear: `μ = Σμ/k` and `σ² = Σσ²/k²` with the true divisor k of each window. Max
pooling passes on the element with the largest mean while innovations are recorded, and uses the
moments of the maximum otherwise (`Activations.expected_maxima`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.arithmetic import average
from bayesrule.moments.maxima import NOTHING, largest
from bayesrule.moments.product import convolution, each, product
from bayesrule.moments.shape import moved
from bayesrule.moments.tensor import GaussianTensor, NoRule, mapped, rule

Pool: TypeAlias = Callable[..., tuple[Tensor, Tensor]]
"""Max pooling that also returns the indices of maxima."""

_ROWS = 1 << 15
"""How many windows are processed at once."""


def _average_pool(
    num: int,
    input: GaussianTensor,
    kernel_size: Any,
    stride: Any = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> GaussianTensor:
    """Average pooling in `num` dimensions."""
    kernel, pad = each(kernel_size, num), each(padding, num)
    step = kernel if stride in (None, [], ()) else each(stride, num)
    options = [kernel, step, pad, ceil_mode, count_include_pad, divisor_override]
    if num == 1:  # a row is an image of height one
        options[:3] = [1, *kernel], [1, *step], [0, *pad]
        return _average_pool(2, input.unsqueeze(-2), *options).squeeze(-2)  # type: ignore
    name, x = f"avg_pool{num}d", input.centre
    pool, pool_back = getattr(F, name), getattr(torch.ops.aten, f"{name}_backward")
    share = _one_over_divisor(x, num, options)
    if isinstance(share, float) and x.is_cpu and x.dtype == torch.float32 and x.ndim == num + 2:
        # As a convolution of each channel with a constant, this is several times faster on a CPU.
        weight = x.new_full((x.shape[1], 1, *kernel), share)
        op = convolution(step, pad, [1] * num, False, [0] * num, x.shape[1])
        return product(op, input, weight)

    def back(t: Tensor) -> Tensor:
        return pool_back(t, x, *options)

    mean, variance = pool(x, *options), pool(input.variance, *options) * share
    return mapped(name, input, mean, variance, back, lambda eta: back(eta * share))


def _one_over_divisor(x: Tensor, num: int, options: Sequence[Any]) -> Tensor | float:
    """One over the divisor of each window, which is smaller at the edges in some modes."""
    kernel, step, pad, ceil, count_padding, divisor = options
    if divisor is not None:
        return 1.0 / divisor
    if not ceil and (count_padding or not any(pad)):
        return 1.0 / math.prod(kernel)
    pool = getattr(F, f"avg_pool{num}d")
    ones = x.new_ones(1, *x.shape[-num:])
    return pool(ones, *options) / pool(ones, kernel, step, pad, ceil, count_padding, 1)


def _contracted(maps: Sequence[Tensor], x: Tensor) -> Tensor:
    """Applies one matrix (out, in) along each of the last axes."""
    for axis, matrix in enumerate(maps, start=-len(maps)):
        x = (x.movedim(axis, -1) @ matrix.mT).movedim(-1, axis)
    return x


def _separable(name: str, x: GaussianTensor, maps: Sequence[Tensor]) -> GaussianTensor:
    """The linear map that applies one matrix (out, in) along each of the last axes."""
    squares = [matrix.square() for matrix in maps]
    mean, variance = _contracted(maps, x.centre), _contracted(squares, x.variance)
    back, back_squares = (
        partial(_contracted, [matrix.mT for matrix in matrices]) for matrices in (maps, squares)
    )
    return mapped(name, x, mean, variance, back, back_squares)


def _eye(size: int, like: Tensor) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)


def _adaptive(num: int, input: GaussianTensor, output_size: Any) -> GaussianTensor:
    """Averages over windows chosen to give an output of a certain size."""
    before = input.centre.shape[-num:]
    requested = zip(before, each(output_size, num), strict=True)
    after = [old if new is None else new for old, new in requested]
    if all(new == 1 for new in after):
        return average(input, range(-num, 0), keepdim=True)
    sizes = zip(before, after, strict=True)
    maps = [F.adaptive_avg_pool1d(_eye(old, input.centre), new).mT for old, new in sizes]
    return _separable("adaptive_avg_pool", input, maps)


def _along(axis: int, pool: Pool, sizes: torch.Size, *args: Any, **kwargs: Any) -> Tensor:
    """The positions along an axis in each window, (windows, k), padded with −1.

    Torch itself gives them: among zeros with ones at one position, the maximum is one in exactly
    the windows that contain this position.
    """
    num, place = sizes[axis], [1] * len(sizes)
    place[axis] = num
    ones = torch.eye(num).reshape(num, 1, *place).expand(num, 1, *sizes)
    held = pool(ones, *args, **kwargs)[0].movedim(axis - len(sizes), 1).flatten(2).amax(-1)
    held, order = held.sort(stable=True, dim=0, descending=True)
    return torch.where(held > 0, order, -1)[: int(held.sum(0).max())].mT


def _windows(pool: Pool, sizes: torch.Size, *args: Any, **kwargs: Any) -> Tensor:
    """The flat index of each element of each window, (windows, k), or −1 outside the image."""
    flat = torch.zeros(1, 1, dtype=torch.long)
    for axis, size in enumerate(sizes):
        along = _along(axis, pool, sizes, *args, **kwargs)[None, :, None, :]
        before = flat[:, None, :, None]
        joined = torch.where((along < 0) | (before < 0), -1, before * size + along)
        flat = joined.flatten(2).flatten(0, 1)
    return flat


def _expected(
    num: int, function: Pool, input: GaussianTensor, after: torch.Size, *args: Any, **kwargs: Any
) -> GaussianTensor:
    """Max pooling by the moments of the maximum of each window."""
    shape = input.centre.shape
    places = _windows(function, shape[-num:], *args, **kwargs).to(input.centre.device)
    outside, where = places < 0, places.clamp_min(0).flatten()

    def windows(t: Tensor, fill: float) -> Tensor:
        elements = t.flatten(-num).index_select(-1, where).unflatten(-1, places.shape)
        return elements.masked_fill(outside, fill)

    moments = windows(input.centre, NOTHING), windows(input.variance, 0.0)
    rows = zip(*(t.flatten(0, -2).split(_ROWS) for t in moments), strict=True)
    mean, variance, slopes = map(torch.cat, zip(*(largest(*row) for row in rows), strict=True))
    slopes = slopes.reshape(moments[0].shape)

    def back(factor: Tensor, t: Tensor) -> Tensor:
        spread = (factor * t.flatten(-num).unsqueeze(-1)).flatten(-2)
        flat = t.new_zeros(shape).flatten(-num)
        return flat.index_add(-1, where, spread).reshape(shape)

    adjoints = partial(back, slopes), partial(back, slopes.square())
    return mapped("max_pool", input, mean.reshape(after), variance.reshape(after), *adjoints)


def _largest(
    num: int,
    function: Pool,
    with_indices: bool,
    input: GaussianTensor,
    *args: Any,
    return_indices: bool = False,
    **kwargs: Any,
) -> Any:
    """Max pooling; `function` is torch's own that also returns the indices of maxima."""
    mean, indices = function(input.centre, *args, **kwargs)
    tape = input.tape
    expected = tape.activations.expected_maxima or tape.nodes is None
    if expected and not tape.activations.by_tangent:
        result = _expected(num, function, input, mean.shape, *args, **kwargs)
        return (result, indices) if with_indices else result
    where, shape = indices.flatten(-num), input.centre.shape

    def back(t: Tensor) -> Tensor:
        flat = t.new_zeros(shape).flatten(-num)
        return flat.scatter_add(-1, where, t.flatten(-num)).reshape(shape)

    variance = input.variance.flatten(-num).gather(-1, where).reshape(mean.shape)
    result = mapped("max_pool", input, mean, variance, back, back)
    return (result, indices) if with_indices else result


for _num in (1, 2, 3):
    rule(getattr(F, f"avg_pool{_num}d"))(partial(_average_pool, _num))
    rule(getattr(F, f"adaptive_avg_pool{_num}d"))(partial(_adaptive, _num))
    for _name in (f"max_pool{_num}d", f"adaptive_max_pool{_num}d"):
        _function = getattr(F, f"{_name}_with_indices")
        rule(_function)(partial(_largest, _num, _function, True))
        rule(getattr(F, _name))(partial(_largest, _num, _function, False))


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
    """Resizes images by copying elements or by weighted means of neighbours."""
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
