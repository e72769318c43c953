"""A stack of nets beside the same nets alone, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesrule import Learner
from bayesrule.execution.stacked.stack import Stacked
from bayesrule.tensors import tree
from bayesrule.types import State

NUM, ROWS = 3, 6
Build = Callable[[int], Learner]
Data = Callable[[int], tuple[Any, Tensor]]


def real(seed: int, outputs: int = 1) -> tuple[Tensor, Tensor]:
    """Data of its own for each net."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(NUM, ROWS, 3, generator=generator)
    return x, torch.randn(NUM, ROWS, outputs, generator=generator)


def equal(found: State, expected: State, rtol: float = 1e-10) -> None:
    """Whether all that two states hold agrees."""
    a, b = dict(tree.leaves(found)), dict(tree.leaves(expected))
    assert a.keys() == b.keys()
    for name, value in a.items():
        torch.testing.assert_close(value, b[name], rtol=rtol, atol=1e-10, msg=name)


def own_rows(part: Any, which: int, size: int) -> Any:
    """The examples of one net."""
    if isinstance(part, tuple):
        return tuple(own_rows(one, which, size) for one in part)
    return part[which, :size]


def follow(
    build: Build,
    data: Data = real,
    *,
    num_data: Sequence[int] = (20, 20, 20),
    sizes: Sequence[int] = (ROWS, ROWS, ROWS),
    steps: int = 4,
    tolerance: float = 1e-10,
) -> State:
    """Some steps of a stack beside those of its nets; every other batch is not full."""
    learners = [build(n) for n in num_data]
    stack = Stacked(learners[0], NUM, num_data=num_data)
    state = stack.init([3, 4, 11])
    singles = stack.unstack(state)
    for step in range(steps):
        own = sizes if step % 2 else [ROWS] * NUM
        x, y = data(step)
        pairs = [
            learner.step(one, (own_rows(x, i, own[i]), y[i, : own[i]]))
            for i, (learner, one) in enumerate(zip(learners, singles, strict=True))
        ]
        for i, size in enumerate(own):
            if y.is_floating_point():  # what fills up is never looked at
                x[i, size:], y[i, size:] = math.nan, math.nan
        state, info = stack.step(state, (x, y), sizes=own)
        singles = [one for one, _ in pairs]
        for name in ("loss", "kl", "elbo"):
            expected = torch.stack([getattr(found, name) for _, found in pairs])
            found = getattr(info, name)
            torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    for one, single in zip(stack.unstack(state), singles, strict=True):
        assert all(value.isfinite().all() for value in one.posterior.mean.values())
        equal(one, single, tolerance)
    return state
