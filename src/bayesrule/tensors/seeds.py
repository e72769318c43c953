"""Random streams that depend only on (seed, step, stream), so that states hold no generator."""

from __future__ import annotations

import torch

_MASK = 0xFFFFFFFF


def generator(device: torch.device | str, seed: int, step: int, stream: int = 0) -> torch.Generator:
    """A fresh generator for one step of one run.

    >>> a, b = generator("cpu", 0, 5), generator("cpu", 0, 5)
    >>> torch.equal(torch.randn(3, generator=a), torch.randn(3, generator=b))
    True
    """
    return torch.Generator(device).manual_seed(key(seed, step, stream))


def key(seed: int, step: int, stream: int = 0) -> int:
    """A 32-bit seed for one step and stream of one run.

    The CPU generator uses 32 bits of its seed, so the key is mixed by bijections of 32-bit numbers:
    within the first million steps of a run, no two (step, stream) pairs share a stream.
    """
    return _mix(_mix(seed + _mix(seed >> 32)) + step * 4096 + stream)


def _mix(x: int) -> int:
    """A bijection of 32-bit integers that spreads neighbours apart (xor-shift and multiply)."""
    x &= _MASK
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _MASK
    return x ^ (x >> 16)
