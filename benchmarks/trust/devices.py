"""Checkpoints of every method, written on one device and loaded on another."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.app.provenance import machine, versions
from bayesrule.learner import Learner
from bayesrule.likelihoods import GaussianLikelihood
from bayesrule.methods import METHODS, Need, record
from bayesrule.training import checkpoint
from bayesrule.types import Batch, State

STEPS = 3


def run(devices: Sequence[str]) -> dict[str, Any]:
    """By method and ordered pair of devices: how far a loaded posterior is off.

    `largest_difference` is of means and of standard deviations, relative to the largest of each;
    after loading, `STEPS` more steps are taken.
    """
    pairs = [
        (one, other) for one in devices for other in devices if len(devices) == 1 or one != other
    ]
    results = [
        {"method": name, "from": source, "to": target, **_moved(name, source, target)}
        for name in METHODS
        for source, target in pairs
    ]
    return {
        "benchmark": "devices",
        "results": results,
        "versions": versions(),
        "machine": machine(),
    }


def _moved(name: str, source: str, target: str) -> dict[str, Any]:
    model = _net(name)
    before = _stepped(name, model, source)
    learner = _learner(name, model, target)
    with tempfile.TemporaryDirectory() as folder:
        file = checkpoint.save(Path(folder) / "state.safetensors", before)
        loaded, _ = checkpoint.load(file, learner.init(), checkpoint.other_form(learner))
    difference = max(
        _difference(before.posterior.mean, loaded.posterior.mean),
        _difference(before.posterior.variance(), loaded.posterior.variance()),
    )
    state = loaded
    for _ in range(STEPS):
        state, info = learner.step(state, _batch(target))
    return {"largest_difference": difference, "loss_after": float(info.loss)}


def _net(name: str) -> nn.Module:
    torch.manual_seed(0)
    if Need.LINEAR_MODEL in record(name).needs:
        return nn.Linear(6, 1)
    activation = nn.Softplus() if Need.SMOOTH_ACTIVATIONS in record(name).needs else nn.ReLU()
    return nn.Sequential(nn.Linear(6, 20), activation, nn.Linear(20, 1))


def _batch(device: str) -> Batch:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(32, 6, generator=random)
    return x.to(device), x[:, :1].sin().to(device)


def _learner(name: str, model: nn.Module, device: str) -> Learner:
    placed = copy.deepcopy(model).to(device)
    return METHODS[name](placed, GaussianLikelihood(noise=0.5), num_data=320)


def _stepped(name: str, model: nn.Module, device: str) -> State:
    learner = _learner(name, model, device)
    state = learner.init()
    for _ in range(STEPS):
        state, _ = learner.step(state, _batch(device))
    return learner.finish(state, [_batch(device)])


def _difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(
        float(
            (value.cpu() - other[name].cpu()).abs().max() / value.abs().max().clamp_min(1e-12).cpu()
        )
        for name, value in one.items()
    )
