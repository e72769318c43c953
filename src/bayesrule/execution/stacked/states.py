"""Stacks the states of many nets along the first axis, and takes stacks apart again."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.tensors import tree
from bayesrule.tensors.network import Network, forked_randomness
from bayesrule.types import State

# What torch's optimisers know of the number of steps, which all nets share.
_OPTIMISER, _COUNTS = "rule/optimiser/", ("step", "mu_product", "eta", "mu")


def together(states: Sequence[State]) -> State:
    """One state whose tensors, and seeds, have the nets along their first axis."""
    tensors = [tree.tensors(state) for state in states]

    def stacked(name: str, old: Any) -> Any:
        if name == "seed":
            return torch.tensor([state.seed for state in states])
        if not isinstance(old, Tensor):
            return old
        if name.startswith(_OPTIMISER) and name.rpartition("/")[2] in _COUNTS:
            return old.clone()
        return torch.stack([of_net[name] for of_net in tensors])

    return tree.rebuild(states[0], stacked)


def single(state: State, which: int) -> State:
    """The ordinary state of one of the nets."""
    # 0-d tensors are counts that all nets share.
    net = tree.map_tensors(state, lambda v: v[which].clone() if v.ndim else v.clone())
    return replace(net, seed=int(net.seed))


def seeds_of(state: State) -> list[int]:
    """The seeds of the nets."""
    assert isinstance(state.seed, Tensor)
    return state.seed.tolist()


def initialised(model: nn.Module, seed: int) -> Network:
    """A copy of a module, initialised by its layers' `reset_parameters`."""
    fresh = copy.deepcopy(model)
    device = next(fresh.parameters()).device
    with forked_randomness(device, seed), torch.no_grad():
        for name, module in fresh.named_modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
            elif any(True for _ in module.parameters(recurse=False)):
                raise TypeError(
                    f"Layer {name!r} ({type(module).__name__}) has weights but no "
                    "reset_parameters, so it cannot be started anew. Make the nets yourself and "
                    "stack their states: stack.stack([learner.init() for learner in learners])."
                )
    return Network(fresh)
