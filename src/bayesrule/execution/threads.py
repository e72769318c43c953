"""How many cores torch takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_LOCK, _BEFORE = threading.Lock(), list[int]()


@contextmanager
def one_core() -> Iterator[None]:
    """Keeps torch on one core inside the block.

    Small tensors gain nothing from several cores. If other processes need these cores, too, small
    nets even take many times as long, because the threads wait for each other in every operation.
    Blocks may be nested and run in several threads of a process.
    """
    with _LOCK:
        # The first block notes how many threads to restore; those inside it note one.
        _BEFORE.append(torch.get_num_threads())
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _LOCK:
            torch.set_num_threads(_BEFORE.pop())
