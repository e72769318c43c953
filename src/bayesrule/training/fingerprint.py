"""What identifies a training: data, settings, net and initial weights."""

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
# Of larger data, evenly spaced rows are hashed.
MOST_BYTES = 8 * 2**20
_STEPS = (0, 1, 10, 100, 1000, 10_000)
_DEPTH = 8


def digest(tensors: Iterable[Tensor]) -> str:
    """A short hash of types, shapes and values; of large tensors, only evenly spaced rows count.

    >>> digest([torch.zeros(3)]) == digest([torch.zeros(3)]) != digest([torch.zeros(4)])
    True
    """
    sha256, tensors = hashlib.sha256(), list(tensors)
    for tensor in tensors:
        sha256.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        rows = _spread(tensor.detach(), MOST_BYTES // len(tensors))
        sha256.update(rows.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return sha256.hexdigest()[:16]


def _spread(tensor: Tensor, most: int) -> Tensor:
    """Evenly spaced rows of a tensor from first to last, at least two, of about `most` bytes."""
    tensor = tensor.resolve_conj().resolve_neg()
    size = tensor.numel() * tensor.element_size()
    if size <= most or len(tensor) < 2:
        return tensor
    keep = max(2, len(tensor) * most // size)
    return tensor[torch.arange(keep, device=tensor.device) * (len(tensor) - 1) // (keep - 1)]


def settings(learner: Learner) -> Facts:
    """The options of a learner and of its parts by name, and the modules of its net."""
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
        # A part's own class is left out: it may depend on the device. `parts` says it in words.
        "options": {name: dict(_options(part)) for name, part in parts.items()},
        "rates": _rates(learner.rule),
        "net": {name: _described(module) for name, module in learner.model.named_modules()},
    }


def _rates(rule: Rule) -> dict[str, str]:
    """A rule's learning rates at some steps, since a schedule may be a function without a name."""
    rates = {}
    for step in _STEPS:
        # A user's schedule may fail beyond its last step.
        with contextlib.suppress(Exception):
            rates[f"step {step}"] = str([float(rate) for rate in rule.rates(step)])
    return rates


def _options(part: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """The options of a part and of its inner parts, by dotted names."""
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
    """The fields of a dataclass, entries of a dict, or attributes of a class without a repr."""
    unprinted = type(part).__repr__ is object.__repr__
    return dict(tree.children(part)) or (
        vars(part) if unprinted and hasattr(part, "__dict__") else {}
    )


def _described(module: nn.Module) -> str:
    """A module without its children: class, options and mode."""
    options = {k: v for k, v in vars(module).items() if not k.startswith("_") and _is_simple(v)}
    listed = ", ".join(f"{name}={_plain(value)}" for name, value in sorted(options.items()))
    return f"{type(module).__name__}({module.extra_repr()}; {listed})"


def _is_simple(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_simple, value))
    return value is None or isinstance(value, str | int | float) or callable(value)


def _plain(value: Any) -> str:
    """The repr of a value, without its address in memory."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
