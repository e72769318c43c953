"""Data-parallel training on torch.distributed; all communication between ranks is here.

Under `torchrun`, call `setup()` once and give each rank its own part of every batch. Learners sum
their derivatives over the ranks by themselves.
"""

from __future__ import annotations

import atexit
import os
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from bayesrule.tensors import tree

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
    """Joins the process group that `torchrun` set up in the environment; returns the rank's device.

    Without torchrun's variables it joins nothing, so the same script also runs alone.
    """
    gpu = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if gpu else torch.device("cpu")
    if "RANK" in os.environ and not is_active():
        if gpu:
            torch.cuda.set_device(device)
        distributed.init_process_group(backend or ("nccl" if gpu else "gloo"))
        # A group that still exists when Python exits may abort the process.
        atexit.register(_leave)
    return device


def _leave() -> None:
    if is_active():
        distributed.destroy_process_group()


def share(x: Tensor) -> Tensor:
    """This rank's part of a global batch: every world_size-th example."""
    return x[rank() :: world_size()]


def sum_over_ranks(local: T) -> T:
    """All tensors of a nested object, summed over the ranks; one call for each dtype."""
    if world_size() == 1:
        return local
    # Objects whose tensors cannot simply be added, such as low-rank matrices, convert themselves.
    return _each(_all_reduce(_each(local, "before_sum")), "after_sum")


def count_over_ranks(count: int, device: torch.device) -> int:
    """A number of examples, summed over the ranks."""
    if world_size() == 1:
        return count
    return int(_all_reduce(torch.tensor(count, device=device)))


def mean_over_ranks(local: T) -> T:
    """A nested object averaged over the ranks.

    Floating-point tensors are averaged, all others (counters, masks) come from the first rank.
    """
    if world_size() == 1:
        return local
    tensors = tree.tensors(local)
    # In float64 the mean of equal float32 numbers is exact, so frozen weights do not drift.
    wide = {k: v.double() for k, v in tensors.items() if v.is_floating_point()}
    new = {k: (v / world_size()).to(tensors[k].dtype) for k, v in _all_reduce(wide).items()}
    new |= from_first_rank({k: v for k, v in tensors.items() if k not in wide})
    return tree.rebuild(local, lambda name, old: new.get(name, old))


def from_first_rank(nested: T) -> T:
    """A nested object with the first rank's tensors, sent as bytes: one call for all types."""
    tensors = tree.tensors(nested)
    if not (tensors and is_active()):
        return nested
    flat = torch.cat([v.contiguous().reshape(-1).view(torch.uint8) for v in tensors.values()])
    distributed.broadcast(flat, src=0)
    parts = flat.split([v.numel() * v.element_size() for v in tensors.values()])
    # Cloning gives each part the alignment that its type needs.
    shaped = zip(tensors.items(), parts, strict=True)
    new = {k: part.clone().view(v.dtype).reshape(v.shape) for (k, v), part in shaped}
    return tree.rebuild(nested, lambda name, old: new.get(name, old))


def barrier() -> None:
    """Waits until every rank is here."""
    if is_active():
        distributed.barrier()


def _all_reduce(local: T) -> T:
    tensors = tree.tensors(local)
    summed: dict[str, Tensor] = {}
    for dtype in sorted({v.dtype for v in tensors.values()}, key=str):
        names = [name for name, v in tensors.items() if v.dtype == dtype]
        flat = torch.cat([tensors[name].reshape(-1) for name in names])
        distributed.all_reduce(flat)
        parts = flat.split([tensors[name].numel() for name in names])
        for name, part in zip(names, parts, strict=True):
            summed[name] = part.reshape(tensors[name].shape)
    return tree.rebuild(local, lambda name, old: summed.get(name, old))


def _each(nested: Any, method: str) -> Any:
    """A copy of a nested object; each part with this method is replaced by the method's result."""
    convert = getattr(nested, method, None)
    if convert is not None and not isinstance(nested, type):
        return convert(rank(), world_size())
    new = {name: _each(child, method) for name, child in tree.children(nested)}
    return tree.with_children(nested, new)
