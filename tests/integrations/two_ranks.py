"""What two processes learn together, each from half of a batch, for `test_hugging_face.py`."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bayesrule.optim import IVON

X = torch.arange(24.0).reshape(8, 3) / 10.0
Y = X.sum(1, keepdim=True)
STEPS = 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def ivon(model: nn.Module) -> IVON:
    return IVON(model.named_parameters(), num_data=len(X), lr=0.1, rate=0.1)


def loss(model: nn.Module, rows: slice) -> Tensor:
    return (model(X[rows]) - Y[rows]).square().mean()


def arguments(**options: Any) -> SimpleNamespace:
    """Those of a trainer that the callback asks for."""
    config = SimpleNamespace(gradient_accumulation_kwargs=None)
    others = {"gradient_accumulation_steps": 1, "deepspeed": None, "fsdp": None}
    return SimpleNamespace(accelerator_config=config, world_size=2, **{**others, **options})


def work(rank: int, folder: Path) -> None:
    from bayesrule.integrations.hugging_face import BayesianCallback

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    inside = network()
    model, optimizer, callback = DistributedDataParallel(inside), ivon(inside), BayesianCallback()
    callback.on_train_begin(arguments(), None, None, optimizer=optimizer)
    for _ in range(STEPS):
        callback.on_step_begin(None, None, None)
        loss(model, slice(4 * rank, 4 * rank + 4)).backward()
        optimizer.step()
        optimizer.zero_grad()
    belief = optimizer.posterior
    torch.save({"mean": belief.mean, "variance": belief.variance()}, folder / f"{rank}.pt")
    torch.distributed.barrier()
    # At the end of the model torch joins a thread of the group with the GIL held, and that thread
    # may be waiting for the GIL: so neither is brought to an end.
    os._exit(0)
