"""Elementwise arithmetic one block at a time, so that intermediate results stay in the cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

_BLOCK = 1 << 16


def in_blocks(
    function: Callable[..., Sequence[Tensor]], *inputs: Tensor, num: int, writes: bool = False
) -> tuple[Tensor, ...]:
    """`function(*inputs)`, an elementwise function with `num` results, computed in blocks.

    On a CPU a dozen operations on a large tensor read and write memory a dozen times; block by
    block they do so once. Small tensors, other devices, and tensors that are traced, mapped or
    differentiated are not split. A function that `writes` takes tensors for its results as `out=`.
    """
    if not _worth_it(inputs):
        return tuple(function(*inputs))
    results = tuple(torch.empty_like(inputs[0]) for _ in range(num))
    rows = zip(*(t.view(-1).split(_BLOCK) for t in (*inputs, *results)), strict=True)
    for row in rows:
        block, outs = row[: len(inputs)], row[len(inputs) :]
        if writes:
            function(*block, out=outs)
            continue
        for out, value in zip(outs, function(*block), strict=True):
            out.copy_(value)
    return results


def differentiated(*inputs: Tensor) -> bool:
    """Whether autograd records operations on any of the tensors, so that none may be in place."""
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
