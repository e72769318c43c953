"""Sums of squared per-example gradients of a convolution on a GPU, in one kernel.

`Σ_n (Σ_t g_nt a_ntᵀ)²`: each program works on one tile of the weight. For one example after another
it adds up the products over positions t in registers and squares the sum there, so no gradient of a
single example is ever written to memory. Patches are read directly from a copy of the input with a
border of zeros and channels last.

Inputs and output gradients are read in float16, which has the 11 bits of precision of TF32, after
division of each channel by its largest value; products are added up in float32. Two more kernels
find the largest values and write these copies, each in one pass.
"""

# Triton finds the types of its programs' parameters itself, and takes annotations for its own.
# mypy: disable-error-code="no-untyped-def"

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


# This many programs keep a large GPU busy.
_PROGRAMS = 1024
# The number of tiles in flight: others are read while one is worked on.
_STAGES = 3
# The numbers that a program reads at a time when it looks for the largest, or writes copies.
_BLOCK = 4096


class Tiles(NamedTuple):
    """The tile sizes: (out, patch) of the weight, and the positions that are read at a time."""

    out: int
    patch: int
    positions: int

    @classmethod
    def of(cls, out: int, patch: int, positions: int) -> Tiles:
        """Suitable tiles for a weight (out, patch) that is used at this many positions."""
        return cls(*(_between(16, size, 64) for size in (out, patch, positions)))


class _Halves(NamedTuple):
    """A copy (n, H, W, C) in float16 with a border of zeros, divided by each channel's unit.

    The unit follows from the largest value of the channel, `largest` (C,), see `_unit`.
    """

    values: Tensor
    largest: Tensor

    @classmethod
    def of(cls, x: Tensor, padding: Sequence[int]) -> _Halves:
        """The copy of x (n, C, h, w)."""
        (n, channels, height, width), (above, left) = x.shape, padding
        block = _between(1, channels, 64)
        sizes = {"ROWS": _BLOCK // block, "COLUMNS": block}
        blocks = triton.cdiv(channels, block)
        largest = torch.zeros(channels, device=x.device)
        each = triton.cdiv(n * height * width, _PROGRAMS * sizes["ROWS"])
        parts = triton.cdiv(n * height * width, each * sizes["ROWS"])
        shape = n, channels, height, width
        _find_largest[parts, blocks](x, largest, *shape, *x.stride(), EACH=each, **sizes)
        padded = n, height + 2 * above, width + 2 * left, channels
        values = torch.empty(padded, dtype=torch.float16, device=x.device)
        rows = triton.cdiv(math.prod(padded[:3]), sizes["ROWS"])
        _copy[rows, blocks](x, largest, values, *shape, above, left, *x.stride(), **sizes)
        return cls(values, largest)


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
    (inputs, input_largest), (slopes, slope_largest) = _Halves.of(a, padding), _Halves.of(g, (0, 0))
    n, rows, columns, out = slopes.shape
    channels = inputs.shape[3]
    patch, positions = math.prod(kernel) * channels, rows * columns
    tile = tiles or Tiles.of(out, patch, positions)
    grid = triton.cdiv(out, tile.out), triton.cdiv(patch, tile.patch)
    # Examples are divided among programs, whose sums are added in a fixed order.
    parts = min(n, max(1, _PROGRAMS // (grid[0] * grid[1])))
    sums = torch.empty(parts, out, *kernel, channels, device=inputs.device)
    _add_squares[*grid, parts](
        *(inputs, slopes, input_largest, slope_largest, sums, n, parts, out, patch, positions),
        *(columns, inputs.stride(0), inputs.stride(1), channels, kernel[1], *stride, *dilation),
        OUT=tile.out,
        PATCH=tile.patch,
        POSITIONS=tile.positions,
        PASSES=triton.cdiv(positions, tile.positions),
        num_warps=8 if tile.out * tile.patch > 8192 else 4,
        num_stages=_STAGES,
    )
    return (sums[0] if parts == 1 else sums.sum(0)).permute(0, 3, 1, 2)


@_program
def _unit(largest):
    """What a channel is divided by: float16 keeps its full precision from 6e-5 on, so up to 256.

    Sums of squares of 256² stay far below the largest float32.
    """
    return tl.maximum(largest, 1e-30) / 256.0


@_program
def _find_largest(
    x,
    largest,
    n,
    channels,
    height,
    width,
    example_step,
    channel_step,
    row_step,
    column_step,
    EACH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The largest size of a value of each channel."""
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    found = tl.zeros((ROWS, COLUMNS), tl.float32)
    for number in range(EACH):
        place = (tl.program_id(0) * EACH + number) * ROWS + tl.arange(0, ROWS)
        at = tl.cast(place // (height * width), tl.int64) * example_step
        at += place // width % height * row_step + place % width * column_step
        within = (place < n * height * width)[:, None] & (c < channels)[None, :]
        values = tl.load(x + at[:, None] + c[None, :] * channel_step, mask=within, other=0.0)
        found = tl.maximum(found, tl.abs(values.to(tl.float32)))
    tl.atomic_max(largest + c, tl.max(found, 0), mask=c < channels)


@_program
def _copy(
    x,
    largest,
    copied,
    n,
    channels,
    height,
    width,
    above,
    left,
    example_step,
    channel_step,
    row_step,
    column_step,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Values divided by their channel's unit, within a border of zeros, channels last."""
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    rows, columns = height + 2 * above, width + 2 * left
    row, column = place // columns % rows - above, place % columns - left
    within = (place < n * rows * columns)[:, None] & (c < channels)[None, :]
    image = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    at = tl.cast(place // (rows * columns), tl.int64) * example_step
    at += row * row_step + column * column_step
    values = tl.load(
        x + at[:, None] + c[None, :] * channel_step, mask=within & image[:, None], other=0.0
    )
    unit = _unit(tl.load(largest + c, mask=c < channels, other=0.0))
    to = tl.cast(place, tl.int64)[:, None] * channels + c[None, :]
    tl.store(copied + to, (values.to(tl.float32) / unit[None, :]).to(tl.float16), mask=within)


@_program
def _add_squares(
    inputs,
    slopes,
    input_largest,
    slope_largest,
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
):
    """The sum of squares over the examples of a part, for one tile of the weight."""
    o = tl.program_id(0) * OUT + tl.arange(0, OUT)
    k = tl.program_id(1) * PATCH + tl.arange(0, PATCH)
    part = tl.program_id(2)
    place = k // channels
    down, right = place // kernel_columns * dilation_y, place % kernel_columns * dilation_x
    within = down * row_step + right * channels + k % channels
    squares = tl.zeros((OUT, PATCH), tl.float32)
    total = tl.zeros((OUT, PATCH), tl.float32)
    # One loop over examples and their positions, so that the next example is read during this one.
    for number in range((n - part + parts - 1) // parts * PASSES):
        example = tl.cast(part + number // PASSES * parts, tl.int64)
        t = number % PASSES * POSITIONS + tl.arange(0, POSITIONS)
        image = (t < positions)[:, None]
        slope = tl.load(
            slopes + example * positions * out + t[:, None] * out + o[None, :],
            mask=image & (o < out)[None, :],
            other=0.0,
        )
        at = t // columns * stride_y * row_step + t % columns * stride_x * channels
        patches = tl.load(
            inputs + example * example_step + at[:, None] + within[None, :],
            mask=image & (k < patch)[None, :],
            other=0.0,
        )
        total = tl.dot(tl.trans(slope), patches, total)
        if number % PASSES == PASSES - 1:
            squares += total * total
            total = tl.zeros((OUT, PATCH), tl.float32)
    row = _unit(tl.load(slope_largest + o, mask=o < out, other=0.0))
    column = _unit(tl.load(input_largest + k % channels, mask=k < patch, other=0.0))
    unit = row[:, None] * column[None, :]
    to = tl.cast(part, tl.int64) * out * patch + o[:, None] * patch + k[None, :]
    tl.store(found + to, squares * (unit * unit), mask=(o < out)[:, None] & (k < patch)[None, :])
