"""An optimiser's posterior, stored parameter by parameter in the optimiser's state.

torch stores state by parameter, so freezing, unfreezing and adding parameters just work.
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
    """Trainable parameters of one group, device and number of steps, which move together.

    Inside the optimiser, a parameter's name is its position "0", "1", ... over all groups.
    """

    group: dict[str, Any]
    device: torch.device
    stream: int
    step: int
    params: Params

    def belief(
        self, state: OptimizerState, family: GaussianFamily, rule: Rule, weight: float
    ) -> tuple[Gaussian, Memory]:
        """The posterior and the rule's memory, assembled from the state of each parameter."""
        mean = {name: _mean(p, state.get(p, {}).get("mean")) for name, p in self.params.items()}
        if self.step == 0:
            prior = self.group["prior_precision"]
            posterior = family.init(mean, weight=weight, prior=prior)
            return posterior, rule.init(family, posterior, weight)
        memory: Memory = {}
        for key in state[next(iter(self.params.values()))].keys() - {"step", "mean"}:
            values = {name: state[p][key] for name, p in self.params.items()}
            name, _, is_matrix = key.partition("/")
            memory[name] = DiagonalMatrix(values) if is_matrix else values
        return Gaussian(mean, memory.pop("precision")), memory

    @torch.no_grad()
    def set_weights(self, weights: Params) -> None:
        """Sets the weights to the mean, or to a draw.

        This writes in place, so that a backward pass after the block is an autograd error instead
        of a gradient at the wrong weights.
        """
        for name, p in self.params.items():
            p.copy_(weights[name])

    def keep(self, state: OptimizerState, posterior: Gaussian, memory: Memory) -> None:
        """Stores posterior and memory by parameter, and sets the weights to the mean."""
        self.set_weights(posterior.mean)
        for name, p in self.params.items():
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
    params = numbered(groups)
    for index, group in enumerate(groups):
        for name, p in itertools.islice(params, len(group["params"])):
            stream = streams.setdefault((index, p.device), len(streams))
            if p.requires_grad:
                step = state.get(p, {}).get("step", 0)
                new = Part(group, p.device, stream, step, {})
                parts.setdefault((stream, step), new).params[name] = p
    return list(parts.values())


def numbered(groups: Groups) -> Iterator[tuple[str, Tensor]]:
    """All parameters with their positions as names."""
    params = itertools.chain.from_iterable(group["params"] for group in groups)
    return ((str(index), p) for index, p in enumerate(params))


def label_of(groups: Groups, name: str) -> str:
    """The caller's name for a parameter, or its position without one."""
    labels = [label for group in groups for label in group.get("param_names", ())]
    return labels[int(name)] if labels else name


def wide(value: Tensor) -> Tensor:
    """Single precision or better: in half precision, averages with small rates would not change."""
    return value.detach().to(torch.promote_types(value.dtype, torch.float32))


def gradient_of(params: Params, grads: Grads) -> Params:
    """Gradients in single precision or better; zero where there is none."""
    return {
        name: torch.zeros_like(wide(p)) if (grad := grads[name]) is None else wide(grad)
        for name, p in params.items()
    }


def set_grads(params: Params, grads: Grads) -> None:
    """Writes `.grad`, in the dtype of each parameter."""
    for name, p in params.items():
        grad = grads[name]
        p.grad = None if grad is None else grad.to(p.dtype)


def _mean(p: Tensor, stored: Tensor | None) -> Tensor:
    current = wide(p).clone()
    # A half-precision weight is its rounded mean, unless the caller has changed it since.
    return current if stored is None else torch.where(stored.to(p.dtype) == p, stored, current)
