"""Roots of all layers found in one go, as on a GPU, are those that each layer finds itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bayesrule.matrices.factors import inverse_root, inverse_root_unseen, inverse_roots
from bayesrule.matrices.kronecker import Kronecker
from bayesrule.matrices.kronecker_layer import FactoredLayer


def positive(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    half = torch.randn(*shape, shape[-1], generator=generator, dtype=torch.float64)
    return half @ half.mT + torch.eye(shape[-1], dtype=torch.float64)


@pytest.mark.parametrize("nets", [(), (1,), (4,)])
def test_blocks_beside_an_identity(nets: tuple[int, ...]) -> None:
    matrices = [positive(*nets, size, seed=size) for size in (3, 1, 7)]
    for one, root in zip(matrices, inverse_roots(matrices, "them"), strict=True):
        torch.testing.assert_close(root, inverse_root(one, "it"), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(root @ root.mT, one.inverse(), rtol=1e-10, atol=1e-10)


def test_one_that_has_no_cholesky_factor_leaves_the_others_as_they_are() -> None:
    flat = torch.ones(2, 3, 3, dtype=torch.float64)
    good = positive(2, 5)
    roots = inverse_roots([flat - 1e-14 * torch.eye(3, dtype=torch.float64), good], "them")
    assert all(bool(root.isfinite().all()) for root in roots)
    torch.testing.assert_close(roots[1], inverse_root(good, "it"), rtol=1e-12, atol=1e-12)


def test_layers() -> None:
    params = {
        name: torch.zeros(shape, dtype=torch.float64)
        for name, shape in {"a": (3, 2), "b": (5, 3), "c": (1, 5)}.items()
    }
    matrix = Kronecker().identity(params, 2.0).damped(0.5)
    apart = Kronecker().identity(params, 2.0).damped(0.5)
    layers = [layer for layer in matrix.layers.values() if isinstance(layer, FactoredLayer)]
    assert not any("root" in vars(layer) for layer in layers)
    FactoredLayer.find_roots(layers)
    assert all("root" in vars(layer) for layer in layers)
    noise = {name: torch.randn_like(value) for name, value in params.items()}
    for name, value in apart.solve(noise).items():
        torch.testing.assert_close(matrix.solve(noise)[name], value)
    for name, value in apart.inv_sqrt(noise).items():
        torch.testing.assert_close(matrix.inv_sqrt(noise)[name], value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_a_look_at_the_numbers(dtype: torch.dtype) -> None:
    matrix = positive(4, 6).to(dtype)
    root = inverse_root_unseen(matrix)
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {}
    torch.testing.assert_close(root, inverse_root(matrix, "it"), **close)
    # Of rank one and a little negative: still finite, and large where nothing is known.
    flat = torch.ones(3, 3, dtype=dtype)
    flat -= 3 * torch.finfo(dtype).eps * torch.eye(3, dtype=dtype)
    found = inverse_root_unseen(torch.stack([flat, matrix[0, :3, :3]]))
    assert bool(found.isfinite().all())
    assert (found[0] @ found[0].mT).diagonal().min() > 100
