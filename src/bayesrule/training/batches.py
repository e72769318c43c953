"""Batches for training: in an order that follows from the seed and the epoch alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from bayesrule.tensors import distributed, seeds
from bayesrule.tensors.network import Inputs, num_examples, take
from bayesrule.types import Batch

# A stream of its own, away from those of the learner's steps.
_SHUFFLE = 4095


class Batches(Protocol):
    """A source of batches that can be walked through again and again."""

    def __len__(self) -> int:
        """Batches in an epoch."""

    def epoch(self, epoch: int, seed: int) -> Iterator[Batch]:
        """The batches of an epoch."""

    def all(self) -> Iterator[Batch]:
        """Every example once, in any order."""


@dataclass(frozen=True)
class TensorBatches:
    """Tensors in memory, shuffled anew each epoch; ranks take their share of each batch."""

    x: Inputs
    y: Tensor
    batch_size: int
    shuffle: bool = True

    def __len__(self) -> int:
        return -(-len(self.y) // self.batch_size)

    def epoch(self, epoch: int, seed: int) -> Iterator[Batch]:
        order = torch.arange(len(self.y))
        if self.shuffle:
            order = torch.randperm(
                len(self.y), generator=seeds.generator("cpu", seed, epoch, _SHUFFLE)
            )
        for rows in order.split(self.batch_size):
            yield self._rows(_share(rows))

    def all(self) -> Iterator[Batch]:
        for part in _share(torch.arange(len(self.y))).split(self.batch_size):
            yield self._rows(part)

    def _rows(self, rows: Tensor) -> Batch:
        rows = rows.to(self.y.device)
        return take(self.x, rows), self.y[rows]  # type: ignore[return-value]


def _share(rows: Tensor) -> Tensor:
    """This rank's part; all of it where there are fewer rows than ranks.

    Sums over the ranks are divided by the examples counted, so repeated examples change nothing.
    """
    return distributed.share(rows) if len(rows) >= distributed.world_size() else rows


@dataclass(frozen=True)
class LoaderBatches:
    """A loader of the user's own; all that it draws from torch follows from seed and epoch."""

    loader: Any

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, epoch: int, seed: int) -> Iterator[Batch]:
        key = seeds.key(seed, epoch, _SHUFFLE)
        for part in self._parts():
            if isinstance(getattr(part, "generator", None), torch.Generator):
                part.generator.manual_seed(key)
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        return _seeded(self._pairs(), key)

    def all(self) -> Iterator[Batch]:
        # The order of a sum shows in its last bits, so it too must not depend on what went before.
        return self.epoch(0, seed=0)

    def _pairs(self) -> Iterator[Batch]:
        for batch in self.loader:
            x, y = _pair(batch)
            # Several inputs come out of a loader as a list.
            yield (tuple(x) if isinstance(x, list) else x), y  # type: ignore[misc]

    def _parts(self) -> list[Any]:
        """The loader and its samplers: whatever may hold a generator or count epochs."""
        batch_sampler = getattr(self.loader, "batch_sampler", None)
        nested = getattr(batch_sampler, "sampler", None)
        return [self.loader, getattr(self.loader, "sampler", None), batch_sampler, nested]


def _pair(found: Any) -> tuple[Any, Any]:
    if not (isinstance(found, tuple | list) and len(found) == 2):
        kind = f"{len(found)} parts" if isinstance(found, tuple | list) else type(found).__name__
        raise TypeError(
            f"Datasets and loaders give pairs (x, y), this one gave {kind}. Several inputs go "
            "together as ((x1, x2), y)."
        )
    return found[0], found[1]


def _seeded(batches: Iterator[Batch], seed: int) -> Iterator[Batch]:
    """The same batches, made under a random state of their own; the global one is left as it is."""
    state = torch.Generator().manual_seed(seed).get_state()
    while True:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            batch = next(batches, None)
            state = torch.get_rng_state()
        if batch is None:
            return
        yield batch


def as_batches(data: Any, batch_size: int) -> Batches:
    """Batches from `(x, y)`, from a map-style dataset, or from a loader of batches.

    >>> source = as_batches((torch.zeros(10, 2), torch.zeros(10)), batch_size=4)
    >>> len(source), [len(y) for _, y in source.epoch(0, seed=0)]
    (3, [4, 4, 2])
    """
    if isinstance(data, tuple | list) and len(data) == 2:
        x, y = data
        several = isinstance(x, tuple)
        inputs = tuple(torch.as_tensor(p) for p in x) if several else torch.as_tensor(x)
        targets = torch.as_tensor(y)
        sizes = {len(part) for part in inputs} if several else {num_examples(inputs)}
        if sizes != {len(targets)}:
            found = " and ".join(str(size) for size in sorted(sizes))
            raise ValueError(f"{found} inputs but {len(targets)} targets.")
        if not len(targets):
            raise ValueError("There are no examples to learn from.")
        return TensorBatches(inputs, targets, _whole(batch_size))
    if isinstance(data, torch.utils.data.Dataset) and hasattr(data, "__len__"):
        pairs = [_pair(data[i]) for i in range(len(data))]
        if not pairs:
            raise ValueError("There are no examples to learn from.")
        return as_batches(tuple(_stack(part) for part in zip(*pairs, strict=True)), batch_size)
    if isinstance(data, Iterable) and hasattr(data, "__len__"):
        return LoaderBatches(data)
    raise TypeError(
        "Training data is (x, y), a torch Dataset or a DataLoader of (x, y) batches, got "
        f"{type(data).__name__}."
    )


def _stack(values: tuple[Any, ...]) -> Inputs:
    if isinstance(values[0], tuple):
        return tuple(_stack(part) for part in zip(*values, strict=True))  # type: ignore[misc]
    return torch.stack([torch.as_tensor(value) for value in values])


def _whole(batch_size: int) -> int:
    if not (isinstance(batch_size, int) and batch_size >= 1):
        raise ValueError(f"batch_size is a whole number of at least 1, got {batch_size!r}.")
    return batch_size
