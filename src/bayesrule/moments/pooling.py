"""Pooling of Gaussians."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.tensor import GaussianTensor, Innovation, rule


@rule(F.avg_pool2d)
def avg_pool2d(
    input: GaussianTensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> GaussianTensor:
    """`μ = Σμ/k`, `σ² = Σσ²/k²`."""
    kernel = [kernel_size] * 2 if isinstance(kernel_size, int) else list(kernel_size)
    step = kernel if stride is None else [stride] * 2 if isinstance(stride, int) else list(stride)
    pad = [padding] * 2 if isinstance(padding, int) else list(padding)
    options = (kernel, step, pad, ceil_mode, count_include_pad, divisor_override)
    share = 1.0 / (kernel[0] * kernel[1])
    x = input.centre

    def back(result: Tensor) -> Tensor:
        return torch.ops.aten.avg_pool2d_backward(result, x, *options)

    def pull(delta: Tensor, eta: Tensor) -> tuple[Innovation]:
        return ((back(delta), back(eta) * share),)

    mean = F.avg_pool2d(x, *options)
    variance = F.avg_pool2d(input.variance, *options) * share
    return input.way.result("avg_pool2d", mean, variance, (input.node,), pull)
