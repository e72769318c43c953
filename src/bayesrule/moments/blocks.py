"""Elementwise arithmetic a block at a time, so that what lies between stays in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

_BLOCK = 1 << 16


def in_blocks(
    function: Callable[..., Sequence[Tensor]], *inputs: Tensor, num: int, writes: bool = False
) -> tuple[Tensor, ...]:
    """`function(*inputs)`, elementwise, which gives `num` tensors: the same numbers, in blocks.

    A dozen passes over a large tensor cost as many trips to memory on a CPU; block by block they
    cost one. Small tensors, other devices, and tensors that are traced, mapped or differentiated go
    through whole.
    A function that `writes` takes `out=`, the tensors for its results.
    """
    if not _worth_it(inputs):
        return tuple(function(*inputs))
    results = tuple(torch.empty_like(inputs[0]) for _ in range(num))
    rows = zip(*(t.view(-1).split(_BLOCK) for t in (*inputs, *results)), strict=True)
    for row in rows:
        given, outs = row[: len(inputs)], row[len(inputs) :]
        if writes:
            function(*given, out=outs)
            continue
        for out, value in zip(outs, function(*given), strict=True):
            out.copy_(value)
    return results


def differentiated(*inputs: Tensor) -> bool:
    """Whether autograd follows what is done with any of the tensors, and nothing may be written."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in inputs)


def _worth_it(inputs: Sequence[Tensor]) -> bool:
    first = inputs[0]
    if first.device.type != "cpu" or first.numel() <= 2 * _BLOCK:
        return False
    if any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in inputs):
        return False
    if differentiated(*inputs):
        return False
    alike = all(t.shape == first.shape and t.dtype == first.dtype for t in inputs)
    return alike and all(t.is_contiguous() for t in inputs) and _get_current_dispatch_mode() is None
