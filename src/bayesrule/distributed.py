"""Data-parallel training on torch.distributed: the one place where machines meet.

Under `torchrun`, call `setup()` once and give each rank its own part of every batch; a learner then
sums its derivatives over the ranks by itself.
"""

from __future__ import annotations

import os
from typing import TypeVar

import torch
from torch import Tensor, distributed

from bayesrule import tree

T = TypeVar("T")


def is_active() -> bool:
    """Whether a process group exists."""
    return distributed.is_available() and distributed.is_initialized()


def rank() -> int:
    """The number of this process, 0 where there is only one."""
    return distributed.get_rank() if is_active() else 0


def world_size() -> int:
    """How many processes work together."""
    return distributed.get_world_size() if is_active() else 1


def is_main() -> bool:
    """Whether this process writes files and prints."""
    return rank() == 0


def setup(backend: str | None = None) -> torch.device:
    """Joins the group that `torchrun` describes in the environment; returns this rank's device.

    Without torchrun's variables nothing is joined, so a script runs alone as it is.
    """
    gpu = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    if "RANK" in os.environ and not is_active():
        if gpu:
            torch.cuda.set_device(device)
        distributed.init_process_group(backend or ("nccl" if gpu else "gloo"))
    return device


def share(x: Tensor) -> Tensor:
    """This rank's part of a global batch: every world_size-th example."""
    return x[rank() :: world_size()]


def sum_over_ranks(local: T) -> T:
    """All tensors of a nested object, summed over the ranks; one call for each dtype."""
    if world_size() == 1:
        return local
    return _all_reduce(local)


def mean_over_ranks(local: T) -> T:
    """All floating tensors of a nested object, averaged over the ranks."""
    count = world_size()
    if count == 1:
        return local
    total = _all_reduce(local)
    return tree.map_tensors(total, lambda v: v / count if v.is_floating_point() else v // count)


def barrier() -> None:
    """Waits until every rank is here."""
    if is_active():
        distributed.barrier()


def _all_reduce(local: T) -> T:
    tensors = {name: v for name, v in tree.leaves(local) if isinstance(v, Tensor)}
    summed: dict[str, Tensor] = {}
    for dtype in sorted({v.dtype for v in tensors.values()}, key=str):
        names = [name for name, v in tensors.items() if v.dtype == dtype]
        flat = torch.cat([tensors[name].reshape(-1) for name in names])
        distributed.all_reduce(flat)
        parts = flat.split([tensors[name].numel() for name in names])
        for name, part in zip(names, parts, strict=True):
            summed[name] = part.reshape(tensors[name].shape)
    return tree.rebuild(local, lambda name, old: summed.get(name, old))
