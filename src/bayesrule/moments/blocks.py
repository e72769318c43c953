"""Elementwise arithmetic a block at a time, so that what lies between stays in the cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from bayesrule.moments.quadrature import Triple

_BLOCK = 1 << 16


def in_blocks(function: Callable[[Tensor, Tensor], Triple], m: Tensor, s: Tensor) -> Triple:
    """`function(m, s)`, elementwise in both, with the same numbers whatever the blocks.

    A dozen passes over a large tensor cost as many trips to memory on a CPU; block by block they
    cost one. Small tensors, other devices, and tensors that are traced or mapped go through whole.
    """
    if not _worth_it(m, s):
        return function(m, s)
    results = torch.empty_like(m), torch.empty_like(m), torch.empty_like(m)
    rows = (t.view(-1).split(_BLOCK) for t in (m, s, *results))
    for m_block, s_block, *outs in zip(*rows, strict=True):
        for out, value in zip(outs, function(m_block, s_block), strict=True):
            out.copy_(value)
    return results


def _worth_it(m: Tensor, s: Tensor) -> bool:
    large = m.device.type == "cpu" and m.numel() > 2 * _BLOCK and m.shape == s.shape
    if not large or torch._C._functorch.is_functorch_wrapped_tensor(m):
        return False
    plain = m.is_contiguous() and s.is_contiguous() and m.dtype == s.dtype
    return plain and _get_current_dispatch_mode() is None
