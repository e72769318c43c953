"""Kernels that run beside each other on a GPU: none of a small layer fills it alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

import torch

Found = TypeVar("Found")
_NUM = 16


def side_by_side(work: Callable[[str], Found], names: Sequence[str]) -> dict[str, Found]:
    """What some work finds for each name; in a CUDA graph that is captured, in several streams.

    No work may use what another finds. Outside of graphs starting kernels takes longer than
    running them, so all stay in one stream.

    >>> side_by_side(len, ["weight", "bias"])
    {'weight': 6, 'bias': 4}
    """
    if not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
        return {name: work(name) for name in names}
    main, found = torch.cuda.current_stream(), {}
    streams = _streams(main.device_index)[: len(names)]
    for stream in streams:
        stream.wait_stream(main)
    for number, name in enumerate(names):
        with torch.cuda.stream(streams[number % len(streams)]):
            found[name] = work(name)
    for stream in streams:
        main.wait_stream(stream)
    return found


@cache
def _streams(device: int) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(_NUM)]
