"""Batches: every example once, in an order that follows from seed and epoch alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from bayesrule.training.batches import LoaderBatches, TensorBatches, as_batches

X = torch.arange(20.0).reshape(10, 2)
Y = torch.arange(10)
PAIRS = TensorDataset(X, Y)


def order(batches: Any) -> list[int]:
    """The targets in the order in which they come."""
    return [int(v) for _, y in batches for v in y]


class Several(Dataset):
    """Two inputs for each target."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> tuple[tuple[Tensor, Tensor], int]:
        return (torch.tensor([float(i)]), torch.tensor([2.0 * i, 3.0 * i])), i


class Noisy(Dataset):
    """Adds noise from torch's global generator, as augmentation does."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.rand(2), i


@pytest.mark.parametrize(
    "data",
    [(X, Y), [X, Y], (X.numpy(), Y.numpy()), (X.tolist(), Y.tolist()), PAIRS],
    ids=["tensors", "list of two", "numpy", "lists", "dataset"],
)
def test_pairs_of_all_kinds_become_batches(data: Any) -> None:
    source = as_batches(data, 4)
    assert isinstance(source, TensorBatches)
    assert len(source) == 3
    batches = list(source.epoch(0, seed=0))
    assert [len(y) for _, y in batches] == [4, 4, 2]
    assert sorted(order(batches)) == list(range(10))
    for x, y in batches:
        assert torch.equal(torch.as_tensor(x)[:, 0], 2.0 * y)


def test_each_epoch_and_seed_has_an_order_of_its_own_that_comes_again() -> None:
    source = as_batches((X, Y), 4)
    first = order(source.epoch(0, seed=0))
    assert first != list(range(10))
    assert first != order(source.epoch(1, seed=0))
    assert first != order(source.epoch(0, seed=1))
    assert first == order(as_batches((X, Y), 4).epoch(0, seed=0))


def test_all_gives_each_example_once_as_it_lies() -> None:
    assert order(as_batches((X, Y), 4).all()) == list(range(10))


def test_several_inputs_stay_together() -> None:
    for source in (as_batches(Several(), 4), as_batches(DataLoader(Several(), 4), 1)):
        for x, y in source.epoch(0, seed=0):
            assert isinstance(x, tuple)
            assert [tuple(part.shape[1:]) for part in x] == [(1,), (2,)]
            assert torch.equal(x[1][:, 1], 3.0 * y)


# What makes a loader draw its order, in all the ways that torch offers.
SHUFFLES: dict[str, Callable[[], dict[str, Any]]] = {
    "global generator": lambda: {"shuffle": True},
    "own generator": lambda: {"shuffle": True, "generator": torch.Generator()},
    "sampler's generator": lambda: {"sampler": RandomSampler(PAIRS, generator=torch.Generator())},
    "counts epochs": lambda: {"sampler": DistributedSampler(PAIRS, num_replicas=1, rank=0)},
}


@pytest.mark.parametrize("kind", SHUFFLES)
def test_a_loader_shuffles_by_seed_and_epoch_alone(kind: str) -> None:
    def make() -> DataLoader:
        return DataLoader(PAIRS, 4, **SHUFFLES[kind]())

    source = as_batches(make(), 1)
    assert isinstance(source, LoaderBatches)
    assert len(source) == 3
    first, second = order(source.epoch(0, seed=0)), order(source.epoch(1, seed=0))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    # A fresh loader in the middle of a run, wherever the global state is: as after an interruption.
    torch.rand(5)
    assert order(as_batches(make(), 1).epoch(1, seed=0)) == second
    # The last pass over all the data does not depend on what went before either.
    assert order(source.all()) == order(as_batches(make(), 1).all())


def test_what_a_dataset_draws_follows_from_seed_and_epoch() -> None:
    source = as_batches(DataLoader(Noisy(), 2), 1)
    first = [x for x, _ in source.epoch(0, seed=0)]
    torch.rand(3)
    again = [x for x, _ in source.epoch(0, seed=0)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    other = [x for x, _ in source.epoch(1, seed=0)]
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1])


def test_the_global_random_state_is_left_alone_between_batches() -> None:
    torch.manual_seed(0)
    expected = torch.rand(6)
    torch.manual_seed(0)
    found = [torch.rand(1) for _ in LoaderBatches(DataLoader(Noisy(), 1)).epoch(0, seed=0)]
    assert torch.equal(torch.cat(found), expected)
    torch.manual_seed(0)
    found = [torch.rand(1) for _ in as_batches((X, Y), 2).epoch(0, seed=0)]
    assert torch.equal(torch.cat(found), expected[:5])


def test_any_sized_iterable_of_pairs_is_a_loader() -> None:
    batches = [(X[:5], Y[:5]), (X[5:8], Y[5:8]), (X[8:], Y[8:])]
    assert order(as_batches(batches, 1).epoch(3, seed=0)) == list(range(10))


class Endless(IterableDataset):
    """A stream without a length."""

    def __iter__(self) -> Iterator[Any]:
        yield X[0], Y[0]


@pytest.mark.parametrize(
    ("data", "size", "error", "message"),
    [
        ((X, Y[:9]), 4, ValueError, "10 inputs but 9 targets"),
        (((X, X[:8]), Y), 4, ValueError, "8 and 10 inputs but 10 targets"),
        ((X[:0], Y[:0]), 4, ValueError, "no examples"),
        (TensorDataset(X[:0], Y[:0]), 4, ValueError, "no examples"),
        ((X, Y), 0, ValueError, "batch_size is a whole number of at least 1, got 0"),
        ((X, Y), 2.5, ValueError, "batch_size is a whole number of at least 1, got 2.5"),
        (TensorDataset(X, X, Y), 4, TypeError, r"pairs \(x, y\), this one gave 3 parts"),
        (7, 4, TypeError, "Training data is .* got int"),
        (iter([(X, Y)]), 4, TypeError, "Training data is .* got list_iterator"),
        (Endless(), 4, TypeError, "Training data is .* got Endless"),
    ],
)
def test_bad_data_is_named(data: Any, size: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        as_batches(data, size)


@pytest.mark.parametrize(
    ("loader", "found"),
    [(DataLoader(TensorDataset(X, X, Y)), "3 parts"), (DataLoader(X), "Tensor")],  # type: ignore[arg-type]
)
def test_a_loader_of_something_else_is_named(loader: Any, found: str) -> None:
    with pytest.raises(TypeError, match=rf"pairs \(x, y\), this one gave {found}"):
        next(as_batches(loader, 4).epoch(0, seed=0))


def test_numpy_targets_keep_their_type() -> None:
    source = as_batches((np.zeros((4, 2), np.float32), np.arange(4, dtype=np.int32)), 2)
    x, y = next(source.epoch(0, seed=0))
    assert (x.dtype, y.dtype) == (torch.float32, torch.int32)
