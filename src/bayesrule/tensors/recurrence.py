"""The loop over layers and directions of torch's recurrent modules, for any kind of tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

OneDirection = Callable[[Any, list[Any], Sequence[Any], bool], tuple[Any, Any]]
"""Turns inputs, first states, weights and whether time runs backwards into outputs, last states."""


@dataclass(frozen=True)
class Recurrence:
    """The arguments of `torch.lstm` and its like that describe the layers, in torch's order."""

    params: Sequence[Any]
    has_biases: bool
    num_layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool = False

    def run(self, x: Any, states: Sequence[Any], step: OneDirection) -> tuple[Any, list[Any]]:
        """The last layer's outputs, and the last states of each layer and direction.

        `x` has the axes that `step` takes; `states` have layers and directions first.
        """
        per_layer, directions = 4 if self.has_biases else 2, 1 + self.bidirectional
        ends: list[Any] = []
        for layer in range(self.num_layers):
            if layer and self.train and self.dropout:
                x = functional.dropout(x, self.dropout)
            hidden = []
            for number in range(layer * directions, (layer + 1) * directions):
                weights = self.params[number * per_layer : (number + 1) * per_layer]
                first = [state[number] for state in states]
                out, last = step(x, first, weights, number % directions == 1)
                hidden.append(out)
                ends.append(last)
            x = torch.cat(hidden, -1) if self.bidirectional else hidden[0]
        return x, ends
