"""Sums of squared per-example gradients of a convolution on a GPU, in one kernel.

`Σ_n (Σ_t g_nt a_ntᵀ)²`: each program works on one tile of the weight. For one example after another
it adds up the products over positions t in registers and squares the sum there, so no gradient of a
single example is ever written to memory. Patches are read directly from a copy of the input with a
border of zeros and channels last.

Inputs and output gradients are read in float16, which has the 11 bits of precision of TF32, after
division of each channel by its largest value; products are added up in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

try:
    import triton
    import triton.language as tl

    _program = triton.jit
except ModuleNotFoundError:  # Callers check for Triton before they use the kernel.

    def _program(function: T) -> T:
        return function


# float16 keeps its full precision from 6e-5 on, and sums of 256² stay far below the largest
# float32.
_LARGEST, _SMALLEST = 256.0, 1e-30
# This many programs keep a large GPU busy.
_PROGRAMS = 1024
# The number of tiles in flight: one is read while another is worked on.
_STAGES = 2


class Tiles(NamedTuple):
    """The tile sizes: (out, patch) of the weight, and the positions that are read at a time."""

    out: int
    patch: int
    positions: int

    @classmethod
    def of(cls, out: int, patch: int, positions: int) -> Tiles:
        """Suitable tiles for a weight (out, patch) that is used at this many positions."""
        return cls(_between(16, out, 64), _between(16, patch, 128), _between(16, positions, 64))

    def bytes(self, passes: int) -> int:
        """The shared memory of this many passes, in bytes."""
        return 2 * passes * _STAGES * self.positions * (self.out + self.patch)


def _between(least: int, size: int, most: int) -> int:
    """The smallest power of two that is at least `size`, within bounds."""
    return min(most, max(least, triton.next_power_of_2(size)))


def weight_squares(
    a: Tensor,
    g: Tensor,
    kernel: Sequence[int],
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    tiles: Tiles | None = None,
) -> Tensor:
    """`Σ_n` of the squared weight gradients, (O, C, *kernel), for a (n, C, *) and g (n, O, *)."""
    if len(kernel) == 1:
        # A sequence is an image of one row.
        flat = weight_squares(
            *(a.unsqueeze(2), g.unsqueeze(2), (1, *kernel)),
            stride=(1, *stride),
            padding=(0, *padding),
            dilation=(1, *dilation),
            tiles=tiles,
        )
        return flat.squeeze(2)
    inputs, input_unit = _halves(a, padding)
    slopes, slope_unit = _halves(g, (0, 0))
    squares = _summed(inputs, slopes, kernel, stride, dilation, tiles)
    unit = torch.outer(slope_unit, input_unit).square_().reshape(g.shape[1], 1, 1, a.shape[1])
    return squares.mul_(unit).permute(0, 3, 1, 2)


def _halves(x: Tensor, padding: Sequence[int]) -> tuple[Tensor, Tensor]:
    """A copy (n, H, W, C) in float16 with a border of zeros, and the unit of each channel, (C,)."""
    unit = x.abs().amax((0, 2, 3)).float().clamp_min(_SMALLEST) / _LARGEST
    (n, channels, height, width), (above, left) = x.shape, padding
    size = n, height + 2 * above, width + 2 * left, channels
    halves = torch.zeros(size, dtype=torch.float16, device=x.device)
    within = halves[:, above : above + height, left : left + width]
    torch.div(x.permute(0, 2, 3, 1), unit, out=within)
    return halves, unit


def _summed(
    inputs: Tensor,
    slopes: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    tiles: Tiles | None,
) -> Tensor:
    """The sum for inputs (n, H, W, C) and slopes (n, h, w, O), as (O, *kernel, C)."""
    n, rows, columns, out = slopes.shape
    channels = inputs.shape[3]
    patch, positions = math.prod(kernel) * channels, rows * columns
    tile = tiles or Tiles.of(out, patch, positions)
    grid = triton.cdiv(out, tile.out), triton.cdiv(patch, tile.patch)
    # Examples are divided among programs, whose sums are added in a fixed order.
    parts = min(n, max(1, _PROGRAMS // (grid[0] * grid[1])))
    sums = torch.empty(parts, out, *kernel, channels, device=inputs.device)
    passes = triton.cdiv(positions, tile.positions)
    _kernel[*grid, parts](
        *(inputs, slopes, sums, n, parts, out, patch, positions, columns),
        *(inputs.stride(0), inputs.stride(1), channels, kernel[1]),
        *(*stride, *dilation),
        OUT=tile.out,
        PATCH=tile.patch,
        POSITIONS=tile.positions,
        PASSES=passes,
        UNROLLED=passes <= 4 and tile.bytes(passes) <= _room(inputs.device),
        num_warps=8 if tile.out * tile.patch > 8192 else 4,
        num_stages=_STAGES,
    )
    return sums[0] if parts == 1 else sums.sum(0)


def _room(device: torch.device) -> int:
    """The shared memory of a program, in bytes; Triton's interpreter has no limit."""
    if device.type != "cuda":
        return 2**30
    gpu = torch.cuda.get_device_properties(device)
    return int(getattr(gpu, "shared_memory_per_block_optin", gpu.shared_memory_per_block))


@_program
def _kernel(  # type: ignore[no-untyped-def]
    inputs,
    slopes,
    found,
    n,
    parts,
    out,
    patch,
    positions,
    columns,
    example_step,
    row_step,
    channels,
    kernel_columns,
    stride_y,
    stride_x,
    dilation_y,
    dilation_x,
    OUT: tl.constexpr,
    PATCH: tl.constexpr,
    POSITIONS: tl.constexpr,
    PASSES: tl.constexpr,
    UNROLLED: tl.constexpr,
):
    o = tl.program_id(0) * OUT + tl.arange(0, OUT)
    k = tl.program_id(1) * PATCH + tl.arange(0, PATCH)
    part = tl.program_id(2)
    place = k // channels
    down, right = place // kernel_columns * dilation_y, place % kernel_columns * dilation_x
    within = down * row_step + right * channels + k % channels
    squares = tl.zeros((OUT, PATCH), tl.float32)
    for example in range(part, n, parts):
        a = inputs + tl.cast(example, tl.int64) * example_step
        g = slopes + tl.cast(example, tl.int64) * positions * out
        total = tl.zeros((OUT, PATCH), tl.float32)
        # A loop of few passes is unrolled if its buffers fit: the next example is then read during
        # this one.
        if UNROLLED:
            for number in tl.static_range(PASSES):
                t = number * POSITIONS + tl.arange(0, POSITIONS)
                at = t // columns * stride_y * row_step + t % columns * stride_x * channels
                total += _product(a, g, t, at, o, k, within, positions, out, patch)
        else:
            for number in range(PASSES):
                t = number * POSITIONS + tl.arange(0, POSITIONS)
                at = t // columns * stride_y * row_step + t % columns * stride_x * channels
                total += _product(a, g, t, at, o, k, within, positions, out, patch)
        squares += total * total
    place = tl.cast(part, tl.int64) * out * patch + o[:, None] * patch + k[None, :]
    tl.store(found + place, squares, mask=(o < out)[:, None] & (k < patch)[None, :])


@_program
def _product(a, g, t, at, o, k, within, positions, out, patch):  # type: ignore[no-untyped-def]
    """`Σ_t g_t a_tᵀ` over some positions, (OUT, PATCH)."""
    within_image = (t < positions)[:, None]
    slope = tl.load(
        g + t[:, None] * out + o[None, :], mask=within_image & (o < out)[None, :], other=0.0
    )
    patches = tl.load(
        a + at[:, None] + within[None, :], mask=within_image & (k < patch)[None, :], other=0.0
    )
    return tl.dot(tl.trans(slope), patches)
