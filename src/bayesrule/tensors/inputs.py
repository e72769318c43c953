"""Inputs of a module: one tensor, or tensors in nested tuples, lists and dicts.

A tuple holds positional arguments of the module, a dict keyword arguments; deeper nesting reaches
the module unchanged. Every function here tests first for the common case, one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

Inputs = Tensor | tuple[Any, ...] | dict[str, Any]
"""A tensor, positional arguments, or keyword arguments; examples are along the first axes."""

LABELS = "labels"
"""The key of the targets in a batch that is one dict, as in Hugging Face's datasets."""


def named(x: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All leaves with slash-separated names; those of a dict in alphabetical order.

    >>> import torch
    >>> [name for name, _ in named(({"b": torch.zeros(2), "a": torch.zeros(2)}, torch.zeros(2)))]
    ['0/a', '0/b', '1']
    """
    if isinstance(x, Tensor) or not _is_nested(x):
        yield prefix, x
        return
    items = sorted(x.items()) if isinstance(x, Mapping) else enumerate(x)
    for name, part in items:
        yield from named(part, f"{prefix}/{name}" if prefix else str(name))


def parts(x: Any) -> list[Any]:
    """All leaves, in the order of their names."""
    return [x] if isinstance(x, Tensor) else [part for _, part in named(x)]


def mapped(x: Any, function: Callable[[Any], Any]) -> Any:
    """Applies `function` to each leaf; lists become tuples, and mappings dicts."""
    if isinstance(x, Tensor) or not _is_nested(x):
        return function(x)
    if isinstance(x, Mapping):
        return {name: mapped(part, function) for name, part in x.items()}
    return tuple(mapped(part, function) for part in x)


def zipped(nests: Sequence[Any], function: Callable[[list[Any]], Any]) -> Any:
    """Merges inputs of one structure: `function` gets the list of leaves at each position.

    >>> zipped([(1, {"a": 2}), (3, {"a": 4})], sum)
    (4, {'a': 6})
    """
    if isinstance(nests[0], Mapping):
        return {name: zipped([nest[name] for nest in nests], function) for name in nests[0]}
    if not isinstance(nests[0], Tensor) and _is_nested(nests[0]):
        return tuple(zipped(children, function) for children in zip(*nests, strict=True))
    return function(list(nests))


def replaced(x: Any, leaves: Mapping[str, Any], prefix: str = "") -> Any:
    """The same structure with other leaves, by the names that `named` gives them."""
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
    """The chosen examples."""
    return x[rows] if isinstance(x, Tensor) else mapped(x, lambda part: part[rows])


def arguments(x: Inputs) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Positional and keyword arguments for the module."""
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
    """Turns one dict with targets under `labels` into a pair; returns other data unchanged."""
    return pair(data) if isinstance(data, Mapping) and LABELS in data else data


def streamed(x: Any, batch_size: int) -> Iterator[Any]:
    """Batches of inputs from a loader, a Dataset or an iterator; other inputs as one batch.

    Of pairs (x, y) and of dicts with `labels` it yields the inputs alone.

    >>> import torch
    >>> loader = torch.utils.data.DataLoader([(torch.zeros(2), 1), (torch.ones(2), 0)])
    >>> [x.shape for x in streamed(loader, 8)]
    [torch.Size([1, 2]), torch.Size([1, 2])]
    """
    batches = loader_of(x, batch_size)
    return iter([x]) if batches is None else map(_inputs_alone, batches)


def pairs(data: Any, batch_size: int) -> Iterator[tuple[Any, Any]]:
    """Batches of inputs and targets, from a pair, a Dataset or a loader."""
    batches = loader_of(data, batch_size)
    return map(pair, [data] if batches is None else batches)


def loader_of(data: Any, batch_size: int) -> Iterable[Any] | None:
    """An iterable of batches; None for data that are all in memory, as one batch."""
    if isinstance(data, Tensor | Mapping | tuple | list) or hasattr(data, "__array__"):
        return None
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        return DataLoader(data, batch_size)
    return data if isinstance(data, Iterable) and not isinstance(data, str | bytes) else None


def _inputs_alone(batch: Any) -> Any:
    """The inputs of a loader's batch, which may or may not have targets."""
    if isinstance(batch, Mapping):
        return {name: part for name, part in batch.items() if name != LABELS}
    if not isinstance(batch, tuple | list):
        return batch
    x = batch[0] if len(batch) == 1 else pair(batch)[0]
    # Loaders return several inputs as a list.
    return tuple(x) if isinstance(x, list) else x


def _is_nested(x: Any) -> bool:
    """Whether x contains inputs instead of being one: a list of numbers is an array."""
    if isinstance(x, Mapping | tuple):
        return True
    return isinstance(x, list) and bool(x) and _holds_tensors(x[0])


def _holds_tensors(x: Any) -> bool:
    if isinstance(x, Tensor):
        return x.ndim > 0
    return isinstance(x, Mapping) or (
        isinstance(x, list | tuple) and bool(x) and _holds_tensors(x[0])
    )
