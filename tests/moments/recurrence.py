"""Recurrent modules gone through on Gaussians, for the tests of cells and layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.moments import Activations, LocallyLinear, Tape
from bayesrule.tensors.network import Network

B, T, IN, H = 2, 4, 3, 5
LINEAR = LocallyLinear()
OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "batch_first": True},
    {"num_layers": 2, "bidirectional": True},
    {"bias": False},
    {"bidirectional": True, "batch_first": True, "bias": False},
]
LAYERS = [(kind, options) for kind in (nn.LSTM, nn.GRU, nn.RNN) for options in OPTIONS]
LAYERS.append((nn.RNN, {"nonlinearity": "relu"}))
CELLS = [nn.LSTMCell, nn.GRUCell, nn.RNNCell]


def flat(tree: Any) -> list[Any]:
    if isinstance(tree, tuple | list):
        return [leaf for part in tree for leaf in flat(part)]
    return [tree]


def mapped(tree: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(tree, tuple | list):
        return type(tree)(mapped(part, function) for part in tree)
    return function(tree)


class Went:
    """A module gone through on Gaussians of one variance (or none), and what was found."""

    def __init__(
        self,
        module: nn.Module,
        args: Any,
        *,
        weights: float | None = 0.0,
        inputs: float | None = 0.0,
        activations: Activations = LINEAR,
        training: bool = False,
    ) -> None:
        self.tape = Tape(activations, record=True)

        def leaf(x: Tensor, variance: float | None) -> Tensor:
            if variance is None:
                return x.detach()
            return self.tape.leaf(x.detach(), torch.full_like(x, variance))

        named = dict(module.named_parameters())
        self.weights = {k: leaf(v, weights) for k, v in named.items()}
        self.args = mapped(args, lambda x: leaf(x, inputs))
        with torch.no_grad():
            found = Network(module)(self.weights, {}, self.args, training=training)
        self.results = flat(found)

    def back(self, deltas: list[Tensor], etas: list[Tensor]) -> None:
        for x, delta, eta in zip(self.results[1:], deltas[1:], etas[1:], strict=True):
            x.node.learn(delta, eta)
        self.tape.back(self.results[0], deltas[0], etas[0])

    @property
    def sources(self) -> list[Any]:
        return [*flat(self.args), *self.weights.values()]


def arguments(module: nn.Module) -> Any:
    """Inputs and first states for a layer or a cell."""
    if isinstance(module, nn.RNNBase):
        deep = module.num_layers * (2 if module.bidirectional else 1)
        size = (B, T, IN) if module.batch_first else (T, B, IN)
        x, state = torch.randn(size), (torch.randn(deep, B, H), torch.randn(deep, B, H))
    else:
        x, state = torch.randn(B, IN), (torch.randn(B, H), torch.randn(B, H))
    return (x, state) if isinstance(module, nn.LSTM | nn.LSTMCell) else (x, state[0])


def plain(module: nn.Module, args: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The module's own results, and all that they come from."""
    own = mapped(args, lambda x: x.clone().requires_grad_())
    return flat(module(*own)), [*flat(own), *module.parameters()]


def build(kind: type[nn.Module], options: dict[str, Any]) -> nn.Module:
    return kind(IN, H, **options)
