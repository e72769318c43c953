"""The loop that people write, on one small problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesrule.optim import IVON, BayesianOptimizer

N, BATCH = 40, 8
X = torch.randn(N, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()
BATCHES = [(X[i : i + BATCH], Y[i : i + BATCH]) for i in range(0, N, BATCH)]


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """The same small network each time, without touching the global random state."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)
    generator = torch.Generator().manual_seed(1)
    for p in model.parameters():
        p.data = torch.randn(p.shape, dtype=torch.float64, generator=generator).to(dtype) / 2
    return model


def backward(model: nn.Module, batch: tuple[Tensor, Tensor], factor: float = 1.0) -> Tensor:
    x, y = batch
    x = x.to(next(model.parameters()).dtype)
    loss = F.cross_entropy(model(x).double(), y) * factor
    loss.backward()
    return loss.detach()


def train(model: nn.Module, optimizer: BayesianOptimizer, steps: int, blocks: int = 1) -> None:
    for i in range(steps):
        for _ in range(blocks):
            with optimizer.sampled_params():
                optimizer.zero_grad()
                backward(model, BATCHES[i % len(BATCHES)])
        optimizer.step()


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {k: v.detach().clone() for k, v in model.named_parameters()}


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor], **tolerance: float) -> None:
    exact = tolerance or {"rtol": 0.0, "atol": 0.0}
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], msg=lambda m, n=name: f"{n}: {m}", **exact)


CLOSE = {"rtol": 1e-12, "atol": 1e-12}
Build = Callable[[nn.Module], BayesianOptimizer]


def ivon(model: nn.Module, **options: Any) -> IVON:
    return IVON(model.named_parameters(), **{"num_data": N, "rate": 0.1, "lr": 0.2} | options)
