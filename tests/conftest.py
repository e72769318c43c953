"""One core for each process of the suite: they run side by side, and rounding follows threads."""

import os
import signal
from collections.abc import Iterator

os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
# A shell starts what it runs in the background with interrupts ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples each time: what a change breaks is its own.
settings.register_profile("same", derandomize=True, deadline=None, database=None)
settings.load_profile("same")


@pytest.fixture
def double_precision() -> Iterator[None]:
    """Exact tests need float64; the default is restored afterwards."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)
