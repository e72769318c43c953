"""Batches for training: in an order that follows from the seed and the epoch alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from bayesrule import distributed, seeds
from bayesrule.network import Inputs, num_examples, take
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
            mine = distributed.share(rows) if len(rows) >= distributed.world_size() else rows
            yield take(self.x, mine.to(self.y.device)), self.y[mine.to(self.y.device)]

    def all(self) -> Iterator[Batch]:
        rows = distributed.share(torch.arange(len(self.y)))
        for part in rows.split(self.batch_size):
            yield take(self.x, part.to(self.y.device)), self.y[part.to(self.y.device)]


@dataclass(frozen=True)
class LoaderBatches:
    """A loader of the user's own; its generator, where it has one, is seeded for each epoch."""

    loader: Any

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, epoch: int, seed: int) -> Iterator[Batch]:
        generator = getattr(self.loader, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seeds.key(seed, epoch, _SHUFFLE))
        yield from self.all()

    def all(self) -> Iterator[Batch]:
        for x, y in self.loader:
            yield x, y


def as_batches(data: Any, batch_size: int) -> Batches:
    """Batches from `(x, y)`, from a map-style dataset, or from a loader of batches.

    >>> source = as_batches((torch.zeros(10, 2), torch.zeros(10)), batch_size=4)
    >>> len(source), [len(y) for _, y in source.epoch(0, seed=0)]
    (3, [4, 4, 2])
    """
    if isinstance(data, tuple | list) and len(data) == 2:
        x, y = data
        inputs = tuple(torch.as_tensor(p) for p in x) if isinstance(x, tuple) else torch.as_tensor(x)
        targets = torch.as_tensor(y)
        if num_examples(inputs) != len(targets):
            raise ValueError(f"{num_examples(inputs)} inputs but {len(targets)} targets.")
        if not len(targets):
            raise ValueError("There are no examples to learn from.")
        return TensorBatches(inputs, targets, _whole(batch_size))
    if isinstance(data, torch.utils.data.Dataset) and hasattr(data, "__getitem__"):
        xs, ys = zip(*(data[i] for i in range(len(data))), strict=True)  # type: ignore[arg-type]
        return as_batches((_stack(xs), _stack(ys)), batch_size)
    if isinstance(data, Iterable) and hasattr(data, "__len__"):
        return LoaderBatches(data)
    raise TypeError(
        "Training data is (x, y), a torch Dataset or a DataLoader of (x, y) batches, got "
        f"{type(data).__name__}."
    )


def _stack(values: Iterable[Any]) -> Tensor:
    return torch.stack([torch.as_tensor(value) for value in values])


def _whole(batch_size: int) -> int:
    if not (isinstance(batch_size, int) and batch_size >= 1):
        raise ValueError(f"batch_size is a whole number of at least 1, got {batch_size!r}.")
    return batch_size
