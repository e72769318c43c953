"""Operations that only move elements about: reshaping, indexing, joining, splitting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayesrule.moments.tensor import GaussianTensor, Innovation, rule


def moved(
    name: str, x: GaussianTensor, move: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]
) -> GaussianTensor:
    """`move` applied to means and variances alike; `back` is its adjoint."""

    def pull(delta: Tensor, eta: Tensor) -> tuple[Innovation]:
        return ((back(delta), back(eta)),)

    return x.way.result(name, move(x.centre), move(x.variance), (x.node,), pull)


def _reshaped(name: str) -> Callable[..., GaussianTensor]:
    """Methods that keep the order of the elements."""

    def apply(x: GaussianTensor, *args: Any, **kwargs: Any) -> GaussianTensor:
        before = x.centre.shape
        return moved(
            name, x, lambda t: getattr(t, name)(*args, **kwargs), lambda t: t.reshape(before)
        )

    return apply


for _name in ("reshape", "flatten", "unflatten", "squeeze", "unsqueeze"):
    rule(getattr(Tensor, _name), getattr(torch, _name))(_reshaped(_name))
# A view of a Gaussian may be of strided memory (channels last), where only reshape works.
rule(Tensor.view)(_reshaped("reshape"))
