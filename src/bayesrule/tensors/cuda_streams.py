"""Kernels that run side by side on a GPU, which those of a small layer do not fill alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

import torch

Result = TypeVar("Result")
_NUM = 16


def side_by_side(work: Callable[[str], Result], names: Sequence[str]) -> dict[str, Result]:
    """The result of `work` for each name, in several streams while a CUDA graph is captured.

    No call may depend on another one. Outside of graphs, starting kernels takes longer than running
    them, so everything stays in one stream.

    >>> side_by_side(len, ["weight", "bias"])
    {'weight': 6, 'bias': 4}
    """
    if not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
        return {name: work(name) for name in names}
    main, results = torch.cuda.current_stream(), {}
    streams = _streams(main.device_index)[: len(names)]
    for stream in streams:
        stream.wait_stream(main)
    for number, name in enumerate(names):
        with torch.cuda.stream(streams[number % len(streams)]):
            results[name] = work(name)
    for stream in streams:
        main.wait_stream(stream)
    return results


@cache
def _streams(device: int) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream(device) for _ in range(_NUM)]
