"""Products of a linear layer on CPUs where another of torch's libraries is faster."""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


def quick_products() -> AbstractContextManager[object]:
    """Linear layers without gradients by oneDNN on a CPU of AMD, elsewhere as they are.

    torch takes MKL for products in single precision, which leaves more than half of what such a
    CPU can do unused. The numbers are the same up to rounding.
    """
    return _OneDNN() if _amd() and _has_product() else nullcontext()


@cache
def _amd() -> bool:
    """Whether the CPU calls itself one of AMD."""
    listed = Path("/proc/cpuinfo")
    said = listed.read_text(encoding="utf-8") if listed.exists() else platform.processor()
    return "AuthenticAMD" in said


@cache
def _has_product() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class _OneDNN(TorchFunctionMode):
    """Takes the calls of linear layers over."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is functional.linear and not kwargs and _suits(*args):
            x, weight, bias = (*args, None)[:3]
            return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return func(*args, **(kwargs or {}))


def _suits(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether all are plain numbers in single precision on a CPU, and nothing asks for slopes."""
    given = [x, weight] if bias is None else [x, weight, bias]
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or not x.numel():
        return False
    return all(
        type(one) in (Tensor, torch.nn.Parameter)
        and one.dtype == torch.float32
        and one.device.type == "cpu"
        for one in given
    )
