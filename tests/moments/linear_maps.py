"""Linear rules held against the dense Jacobian of the same function on plain tensors.

    check_linear(lambda x: x.flip(0), (2, 3))
    check_linear(lambda x, y: torch.cat([x, y]), (2, 3), (4, 3))

For `y = f(x) = A x + b` with independent Gaussians x: `E y = f(E x)`, `Var y = A² Var x`,
`δ_x = Aᵀ δ_y` and `η_x = (A²)ᵀ η_y`, all exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close

from bayesrule.moments import GaussianTensor, MomentMatched, Tape

Function = Callable[..., Any]


def leaves(
    *shapes: Sequence[int], seed: int = 0, constant_statistics: bool = False
) -> list[GaussianTensor]:
    """Gaussian tensors of one recorded pass, in float64."""
    generator = torch.Generator().manual_seed(seed)
    tape = Tape(MomentMatched(constant_statistics), record=True)

    def drawn(shape: Sequence[int]) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    return [tape.leaf(drawn(shape), drawn(shape).exp()) for shape in shapes]


def learned(x: GaussianTensor) -> tuple[Tensor, Tensor]:
    """What was learned of a leaf."""
    assert x.node is not None
    zeros = torch.zeros_like(x.centre)
    return (
        zeros if x.node.delta is None else x.node.delta,
        zeros if x.node.eta is None else x.node.eta,
    )


@torch.no_grad()
def check_linear(function: Function, *shapes: Sequence[int]) -> GaussianTensor:
    """A rule says of Gaussians what linear algebra says; returns its result."""
    inputs = leaves(*shapes)
    result = function(*inputs)
    assert isinstance(result, GaussianTensor)
    means = tuple(x.centre for x in inputs)
    assert_close(result.centre, function(*means), rtol=1e-12, atol=1e-12)
    assert result.shape == result.centre.shape == result.variance.shape
    maps = [_matrix(function, means, k) for k in range(len(means))]
    pairs = list(zip(maps, inputs, strict=True))
    variance = sum(a.square() @ x.variance.flatten() for a, x in pairs)
    assert_close(result.variance.flatten(), variance, rtol=1e-11, atol=1e-12)
    generator = torch.Generator().manual_seed(1)
    shape = result.centre.shape
    delta, eta = torch.randn(2, *shape, dtype=torch.float64, generator=generator)
    result.tape.back(result, delta, eta)
    for a, x in pairs:
        found = learned(x)
        assert_close(found[0].flatten(), a.mT @ delta.flatten(), rtol=1e-11, atol=1e-12)
        assert_close(found[1].flatten(), a.square().mT @ eta.flatten(), rtol=1e-11, atol=1e-12)
        assert found[0].shape == found[1].shape == x.shape
    return result


def _matrix(function: Function, means: Sequence[Tensor], k: int) -> Tensor:
    """The dense Jacobian (outputs, inputs) in the k-th input."""
    # One row at a time: not all of torch's backward functions can be stacked.
    found = torch.func.jacrev(function, argnums=k, chunk_size=1)(*means)
    return found.reshape(-1, means[k].numel())
