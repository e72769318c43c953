"""A network run on Gaussian weights, forwards and back."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.moments.tensor import Activations, GaussianTensor, NoRule, Pass
from bayesrule.network import Inputs, Network
from bayesrule.types import Params


class Propagation:
    """One pass of a batch through a network with Gaussian weights."""

    def __init__(self, network: Network, activations: Activations, *, record: bool = True) -> None:
        self.network = network
        self.way = Pass(activations, record=record)
        self.weights: dict[str, GaussianTensor] = {}
        self.inputs: tuple[Any, ...] = ()

    def forward(
        self, mean: Params, variance: Params, buffers: Params, x: Inputs, *, training: bool
    ) -> GaussianTensor:
        """The Gaussian outputs; a weight without a variance is taken as known."""
        leaf = self.way.leaf
        self.weights = {k: leaf(mean[k], v) for k, v in variance.items() if k in mean}
        self.inputs = tuple(self._placed(one) for one in (x if isinstance(x, tuple) else (x,)))
        given = self.inputs[0] if len(self.inputs) == 1 else self.inputs
        try:
            outputs = self.network({**mean, **self.weights}, buffers, given, training=training)
        except NoRule as problem:
            layer = _layer(problem.__traceback__, self.network.model)
            raise NoRule(f"{problem}{layer}") from problem
        if not isinstance(outputs, GaussianTensor):
            raise TypeError(
                "The network's output does not depend on its uncertain weights in a way that "
                f"moment propagation can see: it is a {type(outputs).__name__}."
            )
        return outputs

    def _placed(self, x: Tensor) -> Tensor:
        return self.way.leaf(x.centre, x.variance) if isinstance(x, GaussianTensor) else x

    def back(self, outputs: GaussianTensor, delta: Tensor, eta: Tensor) -> tuple[Params, Params]:
        """The innovations of all weights, zero for those that the outputs do not depend on."""
        self.way.back(outputs, delta, eta)
        return self._learned(0), self._learned(1)

    def _learned(self, which: int) -> Params:
        found = {}
        for name, weight in self.weights.items():
            assert weight.node is not None
            value = (weight.node.delta, weight.node.eta)[which]
            found[name] = torch.zeros_like(weight.centre) if value is None else value
        return found


def _layer(trace: TracebackType | None, model: nn.Module) -> str:
    """The innermost module of a traceback, in words."""
    names = {id(module): name for name, module in model.named_modules()}
    found = ""
    while trace is not None:
        module = trace.tb_frame.f_locals.get("self")
        if id(module) in names and names[id(module)]:
            found = f" (Layer '{names[id(module)]}', {type(module).__name__}.)"
        trace = trace.tb_next
    return found
