"""Batches for training, in an order that seed and epoch alone determine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule.likelihoods._uncertain import observed
from bayesrule.tensors import distributed, seeds, tree
from bayesrule.tensors.inputs import (
    Inputs,
    as_pair,
    loader_of,
    mapped,
    named,
    pair,
    parts,
    take,
    zipped,
)
from bayesrule.tensors.unfit import whole_number
from bayesrule.training.fingerprint import digest
from bayesrule.types import Batch

# Shuffling has its own random stream, apart from those of the learner's steps.
_SHUFFLE = 4095
_EMPTY = "There are no examples to learn from."


@dataclass(frozen=True)
class TensorBatches:
    """Tensors in memory, reshuffled each epoch; each rank takes its share of every batch."""

    x: Inputs
    y: Tensor
    batch_size: int

    def __len__(self) -> int:
        return -(-len(self.y) // self.batch_size)

    def order(self, epoch: int, seed: int) -> Tensor:
        """All row numbers, in the order of an epoch."""
        generator = seeds.generator("cpu", seed, epoch, _SHUFFLE)
        return torch.randperm(len(self.y), generator=generator)

    def epoch(self, epoch: int, seed: int) -> Iterator[Batch]:
        """The batches of an epoch."""
        for rows in self.order(epoch, seed).split(self.batch_size):
            yield self._rows(_share(rows))

    def all(self) -> Iterator[Batch]:
        """Every example once, in any order."""
        for part in _share(torch.arange(len(self.y))).split(self.batch_size):
            yield self._rows(part)

    def sizes(self) -> tuple[int, ...]:
        """The values that `num_data` may have: the number of examples."""
        return (len(self.y),)

    def facts(self) -> dict[str, str]:
        """Hashes that identify these data."""
        inputs = digest(parts(self.x))
        if isinstance(self.x, dict):
            inputs += f" of {', '.join(name for name, _ in named(self.x))}"
        return {"training inputs": inputs, "training targets": digest(_numbers(self.y))}

    def not_finite(self) -> str | None:
        """Where the first non-finite number is, in words; None if all are finite."""
        return _not_finite((self.x, self.y))

    def _rows(self, rows: Tensor) -> Batch:
        rows = rows.to(self.y.device)
        return take(self.x, rows), self.y[rows]


def _numbers(tensor: Tensor) -> tuple[Tensor, ...]:
    """The values of a tensor, then the variances and weights that it carries."""
    values, carried = observed(tensor, {})
    return values, *carried.values()


def _share(rows: Tensor) -> Tensor:
    """This rank's share of the rows, or all of them where there are fewer rows than ranks.

    Sums over the ranks are divided by the examples counted, so repeated examples change nothing.
    """
    return distributed.share(rows) if len(rows) >= distributed.world_size() else rows


@dataclass(frozen=True)
class LoaderBatches:
    """The user's own loader; seed and epoch determine all that it draws from torch."""

    loader: Any

    def __len__(self) -> int:
        return len(self.loader)

    def epoch(self, epoch: int, seed: int) -> Iterator[Batch]:
        key = seeds.key(seed, epoch, _SHUFFLE)
        sampler: Any = getattr(self.loader, "sampler", None)
        batch_sampler: Any = getattr(self.loader, "batch_sampler", None)
        nested: Any = getattr(batch_sampler, "sampler", None)
        # Each of these may hold a generator or count epochs.
        for part in (self.loader, sampler, batch_sampler, nested):
            if isinstance(getattr(part, "generator", None), torch.Generator):
                part.generator.manual_seed(key)
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)
        return _seeded(self._pairs(), key)

    def all(self) -> Iterator[Batch]:
        # The order of a sum shows in its last bits, so it must not depend on earlier epochs.
        return self.epoch(0, seed=0)

    def sizes(self) -> tuple[int, ...]:
        """The values that `num_data` may have, where known: size of the data, size of an epoch."""
        if not hasattr(self.loader, "dataset"):
            return ()
        sized: tuple[Any, Any] = self.loader.dataset, getattr(self.loader, "sampler", None)
        num_data, drawn = (len(part) if hasattr(part, "__len__") else None for part in sized)
        epoch = None if drawn is None else drawn * distributed.world_size()
        return tuple(size for size in (num_data, epoch) if size is not None)

    def facts(self) -> dict[str, str]:
        """What identifies these data: their type, their size and a hash of some examples."""
        data = getattr(self.loader, "dataset", self.loader)
        tensors = getattr(data, "tensors", None)
        hashes = [digest(tensors)] if tensors else [_sample_digest(data) for _ in range(2)]
        size = f"{type(data).__name__} of {len(data) if hasattr(data, '__len__') else '?'}"
        # Examples that are made at random differ from one reading to the next.
        return {"training data": f"{size}, {hashes[0] if hashes[0] == hashes[-1] else 'random'}"}

    def not_finite(self) -> str | None:
        """Where the first non-finite number is, in words; None if all are finite."""
        for number, batch in enumerate(self.all()):
            if place := _not_finite(batch):
                return f"{place} of batch {number}"
        return None

    def _pairs(self) -> Iterator[Batch]:
        for batch in self.loader:
            x, y = pair(batch)
            # A loader collates several inputs into a list.
            yield (tuple(x) if isinstance(x, list) else x), y


Batches = TensorBatches | LoaderBatches
"""A source of batches that can be walked through again and again."""


def _sample_digest(data: Any, most: int = 16) -> str | None:
    """A hash of evenly spaced examples, at most `most`; None where they cannot be read."""
    try:
        last = len(data) - 1
        with torch.random.fork_rng(devices=[]):
            rows = [data[row] for row in sorted({i * last // (most - 1) for i in range(most)})]
        return digest(tree.tensors({str(i): _as_dict(row) for i, row in enumerate(rows)}).values())
    except Exception:
        return None


def _as_dict(example: Any) -> Any:
    """An example with arrays and numbers as tensors, and with tuples and lists as dicts."""
    if isinstance(example, tuple | list):
        return {str(i): _as_dict(part) for i, part in enumerate(example)}
    if isinstance(example, dict):
        return {str(name): _as_dict(part) for name, part in example.items()}
    return torch.as_tensor(example)


def _not_finite(batch: Any) -> str | None:
    """Where the first non-finite number of a batch is, in words."""
    for name, tensors in zip(("inputs", "targets"), batch, strict=True):
        for part in parts(tensors):
            values = _numbers(torch.as_tensor(part))[0]
            bad = (~values.isfinite()).nonzero()
            if len(bad):
                row, *indices = bad[0].tolist()
                column = f", column {', '.join(map(str, indices))}" if indices else ""
                value = float(values[tuple(bad[0])])
                return f"The training {name} have {value} in row {row}{column}"
    return None


def is_pair(data: Any) -> bool:
    """Whether data may be (x, y)."""
    return isinstance(data, tuple | list) and len(data) == 2


def _seeded(batches: Iterator[Batch], seed: int) -> Iterator[Batch]:
    """The same batches, drawn under a random state of their own; the global one stays as it is."""
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
    data = as_pair(data)
    if is_pair(data):
        x, y = data
        inputs, targets = mapped(x, torch.as_tensor), torch.as_tensor(y)
        sizes = {len(part) for part in parts(inputs)}
        if sizes != {len(targets)}:
            counts = " and ".join(str(size) for size in sorted(sizes))
            raise ValueError(f"{counts} inputs but {len(targets)} targets.")
        if not len(targets):
            raise ValueError(_EMPTY)
        return TensorBatches(inputs, targets, whole_number("batch_size", batch_size))
    if isinstance(data, torch.utils.data.Dataset) and hasattr(data, "__len__"):
        pairs = [pair(data[i]) for i in range(len(data))]
        if not pairs:
            raise ValueError(_EMPTY)
        x, y = (zipped(part, _stack) for part in zip(*pairs, strict=True))
        return as_batches((x, y), batch_size)
    if isinstance(data, Iterable) and hasattr(data, "__len__"):
        _refuse_endless(data)
        return LoaderBatches(data)
    raise TypeError(
        "Training data is (x, y), a torch Dataset or a DataLoader of (x, y) batches, got "
        f"{type(data).__name__}."
    )


def _refuse_endless(loader: Any) -> None:
    """Raises for a loader of a stream, which does not know its length."""
    try:
        len(loader)
    except TypeError as problem:
        raise TypeError(
            f"The loader cannot say how many batches it has ({problem}), so there are no epochs. "
            "Give the stream a __len__, or take the steps yourself with learner.step."
        ) from problem


def gathered(data: Any) -> Any:
    """A Dataset or a loader as one pair (x, y) in memory; other data unchanged."""
    if is_pair(data) or loader_of(data, 1) is None:
        return data
    source = as_batches(data, 1)
    if isinstance(source, TensorBatches):
        return source.x, source.y
    inputs, targets = zip(*source.all(), strict=True)
    return zipped(inputs, torch.cat), torch.cat([torch.as_tensor(y) for y in targets])


def _stack(values: list[Any]) -> Tensor:
    return torch.stack([torch.as_tensor(value) for value in values])
