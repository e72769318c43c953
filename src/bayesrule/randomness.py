"""Normal numbers in bulk."""

from __future__ import annotations

import numpy as np
import torch
from torch import Generator, Tensor

# Below this many numbers the way around by numpy costs more than it saves.
_BULK = 1 << 14
# Half a step of the grid, so that it lies evenly around zero and never at an end.
_MIDDLE = torch.tensor(2.0**-24)


def normal(size: int, generator: Generator, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`size` standard normal numbers.

    torch's generator on the CPU is a Mersenne twister that works on one core. In bulk and single
    precision, the bits come from numpy's SFC64, seeded by that generator, and are made normal by
    the inverse error function on all cores: `√2 erf⁻¹(u)`, u uniform on a grid of 2²⁴ in (−1, 1).
    """
    if device.type != "cpu" or dtype != torch.float32 or size < _BULK:
        return torch.empty(size, dtype=dtype, device=device).normal_(generator=generator)
    seed = int(torch.randint(1 << 62, (), generator=generator))
    bits = torch.from_numpy(np.random.SFC64(seed).random_raw(-(-size // 2)))
    whole = bits.view(torch.int32)[:size].bitwise_right_shift_(8)
    # Each integer becomes a number in its own place: no second array is touched.
    grid = bits.view(dtype)[:size].copy_(whole)
    return torch.add(_MIDDLE, grid, alpha=2.0**-23, out=grid).erfinv_().mul_(2.0**0.5)
