"""Convolutions over one and two axes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from bayesrule.curvature.layers._base import Layer, working_memory
from bayesrule.moments.product import each, padded
from bayesrule.tensors.abilities import derived

# Working memory on a CPU, in numbers: the patches and rows of a few examples stay in the cache.
_BUDGET = 1 << 20


def square_kernel_suits(a: Tensor) -> bool:
    """Whether Triton works for these inputs, and products may be rounded to TF32.

    torch rounds convolutions so by default, see `torch.backends.cudnn.allow_tf32`.
    """
    rounds = a.is_cuda and a.dtype != torch.float64 and torch.backends.cudnn.allow_tf32
    return rounds and _triton_works(a.device)


@cache
def _triton_works(device: torch.device) -> bool:
    """Whether Triton is installed and able to compile the kernel."""
    if find_spec("triton") is None or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    from bayesrule.curvature.layers import square_kernel

    a, g = (torch.zeros(1, 1, 1, 1, device=device) for _ in range(2))
    options: dict[str, Any] = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
    try:
        square_kernel.weight_squares(a, g, (1, 1), **options)
    except Exception:  # It may need a C compiler, or other versions.
        return False
    return True


@dataclass(frozen=True)
class ConvLayer(Layer):
    """`F.conv1d` and `F.conv2d`: inputs (n, C, *), output gradients (n, O, *)."""

    weight: Tensor
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def kernel(self) -> tuple[int, ...]:
        """The size of the kernel."""
        return tuple(self.weight.shape[2:])

    def _patches(self, a: Tensor, positions: torch.Size) -> Tensor:
        """The patches under the kernel, (n, groups, C/groups·k, positions)."""
        pad = [amount for size in reversed(self.padding) for amount in (size, size)]
        padded = functional.pad(a, pad).contiguous() if any(pad) else a.contiguous()
        within = [s * d for s, d in zip(padded.stride()[2:], self.dilation, strict=True)]
        between = [s * t for s, t in zip(padded.stride()[2:], self.stride, strict=True)]
        # A view with overlapping windows; copying it into rows is many times faster than unfold.
        view = padded.as_strided(
            (*a.shape[:2], *self.kernel, *positions), (*padded.stride()[:2], *within, *between)
        )
        return view.reshape(len(a), self.groups, -1, positions.numel())

    def _rows(self, a: Tensor, g: Tensor) -> Tensor:
        """The weight gradients of some examples, (n, groups, O/groups, C/groups·k)."""
        outputs = g.reshape(len(g), self.groups, g.shape[1] // self.groups, -1)
        return outputs @ self._patches(a, g.shape[2:]).mT

    def weight_rows(self, g: Tensor) -> Tensor:
        return self._rows(self.input, g).reshape(len(g), *self.weight.shape)

    def bias_rows(self, g: Tensor) -> Tensor:
        return g.flatten(start_dim=2).sum(2)

    @derived
    def forms_rows(self) -> bool:
        small = len(self.input) * self.weight.numel() <= _BUDGET
        return small and not self._in_one_kernel

    @property
    def _in_one_kernel(self) -> bool:
        """Whether a kernel sums the squares without forming rows."""
        return self.groups == 1 and square_kernel_suits(self.input)

    def weight_squares(self, g: Tensor) -> Tensor:
        if not self._in_one_kernel:
            return self.weight_sums(g, gradient=False)[0]
        from bayesrule.curvature.layers import square_kernel

        return square_kernel.weight_squares(
            *(self.input, g, self.kernel),
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
        )

    def weight_sums(self, g: Tensor, *, gradient: bool = True) -> tuple[Tensor, Tensor]:
        """The sums over examples of the squared rows and, if `gradient`, of the rows."""
        if self._few_channels_many_positions(g):
            rows = self._backward_rows(g)
            total = rows.sum(0) if gradient else rows[0]
            return rows.square_().sum(0), total
        patch = self.weight[0].numel() * self.groups
        largest = patch * max(g.shape[1] // self.groups, g[0, 0].numel())
        chunk = max(1, working_memory(g, _BUDGET) // largest)
        squares, total = torch.zeros_like(self.weight), torch.zeros_like(self.weight)
        for a, part in zip(self.input.split(chunk), g.split(chunk), strict=True):
            rows = self._rows(a, part).reshape(-1, *self.weight.shape)
            if gradient:
                total += rows.sum(0)
            squares += rows.square_().sum(0)
        return squares, total

    @derived
    def is_product(self) -> bool:
        return self.groups == 1

    def products(self, g: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        slopes = g.flatten(start_dim=3).mT
        largest = max(len(g) * self.weight.numel(), self.weight[0].numel() * slopes.shape[2])
        chunk = max(1, working_memory(g, 4 * _BUDGET) // largest)
        for a, part in zip(self.input.split(chunk), slopes.split(chunk, dim=1), strict=True):
            yield self._patches(a, g.shape[3:])[:, 0].mT, part

    def _few_channels_many_positions(self, g: Tensor) -> bool:
        """Whether torch's own backward pass, example by example, beats patches (as measured)."""
        small = g[0, 0].numel() >= 4 * g.shape[1] and self.weight[0, 0].numel() > 1
        return g.device.type == "cpu" and small and self.weight.shape[1] >= 8 and self.groups == 1

    def _backward_rows(self, g: Tensor) -> Tensor:
        """The weight gradients of all examples, by vmap over torch's own backward pass."""
        output_padding = (0,) * len(self.kernel)
        options = self.stride, self.padding, self.dilation, False, output_padding, self.groups
        only_weight = False, True, False

        def row(a: Tensor, slope: Tensor) -> Tensor:
            tensors = slope.unsqueeze(0), a.unsqueeze(0), self.weight, None
            return torch.ops.aten.convolution_backward(*tensors, *options, only_weight)[1]

        return vmap(row)(self.input, g)


def convolution(
    out: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Layer | None:
    steps, gaps = each(stride, weight.ndim - 2), each(dilation, weight.ndim - 2)
    pads = padded(padding, weight, gaps)
    if pads is None or input.ndim != weight.ndim:
        return None
    return ConvLayer(input.detach(), weight, bias, tuple(steps), tuple(pads), tuple(gaps), groups)
