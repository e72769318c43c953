"""The number format that benchmarks use on a GPU, said in their results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch


@contextmanager
def fast_math(device: str) -> Iterator[str]:
    """TF32 products and tuned convolutions on a GPU, plain float32 elsewhere; gives its name.

    What is compared within a run has the same precision; the settings from before come back.
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
    """Products and convolutions in bfloat16 on a GPU where it is wanted, as `torch.autocast` does.

    Casts are not kept, since a CUDA graph that is captured in between would read them later.
    """
    if not (wanted and device.startswith("cuda")):
        return nullcontext()
    return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)
