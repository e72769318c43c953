"""The number format that benchmarks use on a GPU, which their results state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


@contextmanager
def fast_math(device: str) -> Iterator[str]:
    """Sets TF32 products and tuned convolutions on a GPU, float32 elsewhere; yields the name.

    Everything compared in a run has the same precision; earlier settings are restored.
    """
    if not device.startswith("cuda"):
        yield "float32"
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    try:
        matmul.allow_tf32 = cudnn.allow_tf32 = cudnn.benchmark = True
        yield "TF32"
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before


def half(device: str, wanted: bool) -> AbstractContextManager[object]:
    """Products and convolutions in bfloat16 on a GPU if wanted, by `torch.autocast`.

    Casts are not cached, because a CUDA graph captured in between would read them later.
    """
    if not (wanted and device.startswith("cuda")):
        return nullcontext()
    return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)
