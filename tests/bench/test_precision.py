"""The number formats of benchmarks: what is set, and that it comes back."""

from contextlib import nullcontext

import pytest
import torch

from benchmarks.precision import fast_math, half


def test_a_cpu_has_plain_float32() -> None:
    with fast_math("cpu") as name, half("cpu", True):
        assert name == "float32"
        assert torch.mm(torch.ones(1, 1), torch.ones(1, 1)).dtype == torch.float32


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_a_gpu_has_bfloat16_only_where_it_is_wanted() -> None:
    found = half("cuda", True)
    assert isinstance(found, torch.autocast)
    assert (found.device, found.fast_dtype) == ("cuda", torch.bfloat16)
    # A graph that was captured while casts were kept would read them later.
    assert not found._cache_enabled
    assert isinstance(half("cuda", False), nullcontext)


def test_settings_from_before_come_back() -> None:
    before = torch.backends.cudnn.benchmark
    with fast_math("cuda") as name:
        assert name == "TF32"
        assert torch.backends.cudnn.benchmark
        assert torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.benchmark == before
