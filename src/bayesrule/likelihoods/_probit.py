"""MacKay's approximation of a sigmoid or softmax averaged over Gaussian outputs."""

from __future__ import annotations

import math

from torch import Tensor


def shrink(variance: Tensor) -> Tensor:
    """`κ = 1 / √(1 + π s / 8)`: a sigmoid averaged over N(m, s) is close to that of κ m.

    MacKay (1992).
    """
    return (1.0 + math.pi / 8.0 * variance).rsqrt()
