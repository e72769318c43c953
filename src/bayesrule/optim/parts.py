"""The belief of an optimiser, kept tensor by tensor in the optimiser's state.

Where torch keeps state by parameter, freezing, unfreezing and adding parameters need no care.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule.matrices import DiagonalMatrix
from bayesrule.posteriors import Gaussian, GaussianFamily
from bayesrule.rules import Memory, Rule
from bayesrule.tensors import tree
from bayesrule.types import Params

Groups = list[dict[str, Any]]
OptimizerState = dict[Tensor, dict[str, Any]]
Grads = Mapping[str, Tensor | None]


@dataclass(frozen=True)
class Part:
    """Trainable parameters of one group, device and age, which move together.

    Inside the optimiser a parameter's name is its place, "0", "1", ..., over all groups.
    """

    group: dict[str, Any]
    device: torch.device
    stream: int
    step: int
    params: Params

    def belief(
        self, state: OptimizerState, family: GaussianFamily, rule: Rule, weight: float
    ) -> tuple[Gaussian, Memory]:
        """The belief and the rule's memory, put together from the state of each parameter."""
        mean = {name: _mean(p, state.get(p, {}).get("mean")) for name, p in self.params.items()}
        if self.step == 0:
            prior = self.group["prior_precision"]
            first = family.init(mean, weight=weight, prior_precision=prior)
            return first, rule.init(family, mean, weight)
        memory: Memory = {}
        for key in state[next(iter(self.params.values()))].keys() - {"step", "mean"}:
            values = {name: state[p][key] for name, p in self.params.items()}
            name, _, is_matrix = key.partition("/")
            memory[name] = DiagonalMatrix(values) if is_matrix else values
        return Gaussian(mean, memory.pop("precision")), memory

    def keep(self, state: OptimizerState, posterior: Gaussian, memory: Memory) -> None:
        """Takes belief and memory apart again; the weights move to the mean."""
        for name, p in self.params.items():
            p.copy_(posterior.mean[name])
            state[p]["step"] = self.step + 1
            if p.dtype != posterior.mean[name].dtype:
                state[p]["mean"] = posterior.mean[name]
        for path, value in tree.leaves({"precision": posterior.precision, **memory}):
            key, _, name = path.rpartition("/")
            state[self.params[name]][key] = value


def parts_of(groups: Groups, state: OptimizerState) -> list[Part]:
    """The trainable parameters, in parts; every group and device has its own random stream."""
    streams: dict[tuple[int, torch.device], int] = {}
    parts: dict[tuple[int, int], Part] = {}
    everything = numbered(groups)
    for place, group in enumerate(groups):
        for name, p in itertools.islice(everything, len(group["params"])):
            stream = streams.setdefault((place, p.device), len(streams))
            if p.requires_grad:
                step = state.get(p, {}).get("step", 0)
                new = Part(group, p.device, stream, step, {})
                parts.setdefault((stream, step), new).params[name] = p
    return list(parts.values())


def numbered(groups: Groups) -> Iterator[tuple[str, Tensor]]:
    """All parameters with their places."""
    everything = itertools.chain.from_iterable(group["params"] for group in groups)
    return ((str(place), p) for place, p in enumerate(everything))


def label(groups: Groups, name: str) -> str:
    """The name under which a parameter was given, or its place."""
    known = [given for group in groups for given in group.get("param_names", ())]
    return known[int(name)] if known else name


def wide(value: Tensor) -> Tensor:
    """In single precision or better: averages with small rates would not move in half."""
    return value.detach().to(torch.promote_types(value.dtype, torch.float32))


def gradient_of(params: Params, grads: Grads) -> Params:
    """Gradients, wide; zero where there is none."""
    found = {name: (p, grads[name]) for name, p in params.items()}
    return {k: torch.zeros_like(wide(p)) if g is None else wide(g) for k, (p, g) in found.items()}


def set_grads(params: Params, grads: Grads) -> None:
    """Writes `.grad`, in the type of each parameter."""
    for name, p in params.items():
        grad = grads[name]
        p.grad = None if grad is None else grad.to(p.dtype)


def _mean(p: Tensor, kept: Tensor | None) -> Tensor:
    own = wide(p).clone()
    # A half-precision weight is its rounded mean, unless somebody has changed it since.
    return own if kept is None else torch.where(kept.to(p.dtype) == p, kept, own)
