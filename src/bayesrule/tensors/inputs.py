"""What a module is called with: one tensor, or tensors in nested tuples, lists and dicts.

A tuple holds the arguments of the module in their order, a dict those that go by name; what is
nested deeper reaches the module as it is. Every function here asks first for the common case, one
tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

Inputs = Tensor | tuple[Any, ...] | dict[str, Any]
"""A tensor, arguments in their order, or arguments by name; examples along the first axes."""

LABELS = "labels"
"""Under this name a batch that is one dict has its targets, as those of Hugging Face do."""


def named(x: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All leaves with slash-separated names, those of a dict in the order of the alphabet.

    >>> import torch
    >>> [name for name, _ in named(({"b": torch.zeros(2), "a": torch.zeros(2)}, torch.zeros(2)))]
    ['0/a', '0/b', '1']
    """
    if isinstance(x, Tensor) or not _is_nested(x):
        yield prefix, x
        return
    inside = sorted(x.items()) if isinstance(x, Mapping) else enumerate(x)
    for name, part in inside:
        yield from named(part, f"{prefix}/{name}" if prefix else str(name))


def parts(x: Any) -> list[Any]:
    """All leaves, in the order of their names."""
    return [x] if isinstance(x, Tensor) else [part for _, part in named(x)]


def mapped(x: Any, function: Callable[[Any], Any]) -> Any:
    """The same nest with `function` of each leaf; lists are tuples then, and mappings dicts."""
    if isinstance(x, Tensor) or not _is_nested(x):
        return function(x)
    if isinstance(x, Mapping):
        return {name: mapped(part, function) for name, part in x.items()}
    return tuple(mapped(part, function) for part in x)


def zipped(nests: Sequence[Any], function: Callable[[list[Any]], Any]) -> Any:
    """One nest from several of the same form: `function` of the list of their leaves in each place.

    >>> zipped([(1, {"a": 2}), (3, {"a": 4})], sum)
    (4, {'a': 6})
    """
    if isinstance(nests[0], Mapping):
        return {name: zipped([one[name] for one in nests], function) for name in nests[0]}
    if not isinstance(nests[0], Tensor) and _is_nested(nests[0]):
        return tuple(zipped(each, function) for each in zip(*nests, strict=True))
    return function(list(nests))


def replaced(x: Any, leaves: Mapping[str, Any], prefix: str = "") -> Any:
    """The same nest with other leaves, by the names that `named` gives them."""
    if isinstance(x, Tensor) or not _is_nested(x):
        return leaves[prefix]
    begin = f"{prefix}/" if prefix else ""
    if isinstance(x, Mapping):
        return {name: replaced(part, leaves, f"{begin}{name}") for name, part in x.items()}
    return tuple(replaced(part, leaves, f"{begin}{i}") for i, part in enumerate(x))


def num_examples(x: Inputs) -> int:
    """How many examples a batch of inputs holds."""
    return len(x) if isinstance(x, Tensor) else len(parts(x)[0])


def take(x: Inputs, rows: slice | Tensor | int) -> Any:
    """Some of the examples."""
    return x[rows] if isinstance(x, Tensor) else mapped(x, lambda part: part[rows])


def arguments(x: Inputs) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """What a module is called with: arguments in their order, and by name."""
    if isinstance(x, Tensor):
        return (x,), {}
    return ((), x) if isinstance(x, Mapping) else (x, {})


def pair(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets of a batch: a pair, or one dict with its targets under `labels`.

    >>> pair({"ids": 1, "mask": 2, "labels": 3})
    ({'ids': 1, 'mask': 2}, 3)
    """
    if isinstance(batch, Mapping) and LABELS in batch and len(batch) > 1:
        return {name: part for name, part in batch.items() if name != LABELS}, batch[LABELS]
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    if isinstance(batch, Mapping):
        kind = f"a dict of {', '.join(map(str, batch))}"
    else:
        several = isinstance(batch, tuple | list)
        kind = f"{len(batch)} parts" if several else type(batch).__name__
    raise TypeError(
        f"Datasets and loaders give pairs (x, y), this one gave {kind}. Several inputs go "
        "together as ((x1, x2), y), those with names as ({'name': x1, ...}, y), or as one dict "
        f"with the targets under {LABELS!r}."
    )


def as_pair(data: Any) -> Any:
    """One dict with its targets under `labels` as a pair; other data as they are."""
    return pair(data) if isinstance(data, Mapping) and LABELS in data else data


def streamed(x: Any, batch_size: int) -> Iterator[Any]:
    """Inputs a batch at a time: those of a loader, a Dataset or an iterator; all of others at once.

    Of pairs (x, y), and of dicts with `labels`, the inputs alone.

    >>> import torch
    >>> loader = torch.utils.data.DataLoader([(torch.zeros(2), 1), (torch.ones(2), 0)])
    >>> [x.shape for x in streamed(loader, 8)]
    [torch.Size([1, 2]), torch.Size([1, 2])]
    """
    batches = loader_of(x, batch_size)
    return iter([x]) if batches is None else map(_inputs_alone, batches)


def pairs(data: Any, batch_size: int) -> Iterator[tuple[Any, Any]]:
    """Inputs and targets a batch at a time, from a pair, a Dataset or a loader."""
    batches = loader_of(data, batch_size)
    return map(pair, [data] if batches is None else batches)


def loader_of(data: Any, batch_size: int) -> Iterable[Any] | None:
    """What gives batches one after another; None where the data are all there at once."""
    if isinstance(data, Tensor | Mapping | tuple | list) or hasattr(data, "__array__"):
        return None
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return DataLoader(data, batch_size)
    return data if isinstance(data, Iterable) and not isinstance(data, str | bytes) else None


def _inputs_alone(batch: Any) -> Any:
    """The inputs of a batch that a loader gave, with or without targets."""
    if isinstance(batch, Mapping):
        return {name: part for name, part in batch.items() if name != LABELS}
    if not isinstance(batch, tuple | list):
        return batch
    x = batch[0] if len(batch) == 1 else pair(batch)[0]
    # Several inputs come out of a loader as a list.
    return tuple(x) if isinstance(x, list) else x


def _is_nested(x: Any) -> bool:
    """Whether x holds inputs, and is not one: a list of numbers is an array."""
    if isinstance(x, Mapping | tuple):
        return True
    return isinstance(x, list) and bool(x) and _holds_tensors(x[0])


def _holds_tensors(x: Any) -> bool:
    if isinstance(x, Tensor):
        return x.ndim > 0
    return isinstance(x, Mapping) or (
        isinstance(x, list | tuple) and bool(x) and _holds_tensors(x[0])
    )
