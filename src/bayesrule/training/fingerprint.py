"""What tells one training from another: data, settings, net and first weights."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.learner import Learner
from bayesrule.rules import Rule
from bayesrule.tensors import tree

Facts = dict[str, Any]
# Of larger data evenly spaced rows are looked at.
MOST_BYTES = 8 * 2**20
_STEPS = (0, 1, 10, 100, 1000, 10_000)
_DEPTH = 8


def digest(tensors: Iterable[Tensor]) -> str:
    """A short hash of types, shapes and values; of large tensors, of rows spread over them.

    >>> digest([torch.zeros(3)]) == digest([torch.zeros(3)]) != digest([torch.zeros(4)])
    True
    """
    found, given = hashlib.sha256(), list(tensors)
    for tensor in given:
        found.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        rows = _spread(tensor.detach(), MOST_BYTES // len(given))
        found.update(rows.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def _spread(tensor: Tensor, most: int) -> Tensor:
    """Rows of a tensor, from the first to the last, of no more bytes than `most`."""
    tensor = tensor.resolve_conj().resolve_neg()
    size = tensor.numel() * tensor.element_size()
    if size <= most or len(tensor) < 2:
        return tensor
    keep = max(2, len(tensor) * most // size)
    return tensor[torch.arange(keep, device=tensor.device) * (len(tensor) - 1) // (keep - 1)]


def settings(learner: Learner) -> Facts:
    """All options of a learner and its parts, each under a name, and the modules of its net."""
    parts = {
        "posterior": learner.family,
        "expectation": learner.expectation,
        "curvature": learner.curvature,
        "rule": learner.rule,
        "likelihood": learner.likelihood,
        "prior": learner.prior,
        "final_curvature": learner.final_curvature,
    }
    return {
        "parts": learner.parts(),
        "likelihood": type(learner.likelihood).__name__,
        "num_data": learner.num_data,
        "prior_precision": learner.prior_precision,
        "temperature": learner.temperature,
        "empirical_prior": learner.empirical_prior,
        "shared_draws": learner.shared_draws,
        # The class of a whole part is told by its words: it may depend on the device.
        "options": {name: dict(_options(part)) for name, part in parts.items()},
        "rates": _rates(learner.rule),
        "net": {name: _described(module) for name, module in learner.model.named_modules()},
    }


def _rates(rule: Rule) -> dict[str, str]:
    """What a rule's schedules give: they may be functions without a name."""
    found = {}
    for step in _STEPS:
        # A schedule of one's own may know no step after its last.
        with contextlib.suppress(Exception):
            found[f"step {step}"] = str([float(rate) for rate in rule.rates(step)])
    return found


def _options(part: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """The options of a part, by dotted names, and those of the parts that it is made of."""
    for key, value in _inner(part).items():
        full = f"{name}.{key}" if name else str(key)
        if isinstance(value, Tensor):
            yield full, digest([value])
        elif _inner(value) and depth < _DEPTH:
            yield full, type(value).__name__
            yield from _options(value, full, depth + 1)
        else:
            yield full, _plain(value)


def _inner(part: Any) -> dict[str, Any]:
    """What a part is made of: fields, entries, or the attributes of a class without a print."""
    unprinted = type(part).__repr__ is object.__repr__
    return dict(tree.children(part)) or (
        vars(part) if unprinted and hasattr(part, "__dict__") else {}
    )


def _described(module: nn.Module) -> str:
    """A module without its children: class, options and mode."""
    own = {k: v for k, v in vars(module).items() if not k.startswith("_") and _is_simple(v)}
    named = ", ".join(f"{name}={_plain(value)}" for name, value in sorted(own.items()))
    return f"{type(module).__name__}({module.extra_repr()}; {named})"


def _is_simple(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_simple, value))
    return value is None or isinstance(value, str | int | float) or callable(value)


def _plain(value: Any) -> str:
    """How a value prints, without where it lies in memory."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
