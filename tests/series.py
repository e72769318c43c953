"""Small modules with carried states, for the tests of series."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.sequences import Online, SeriesStep

NOISE = 0.4


class Walk(nn.Module):
    """`h = a h₋ + x`, `f = c h + b`: a linear state-space model whose noise is that of x."""

    def __init__(self, a: float, c: float) -> None:
        super().__init__()
        self.turn, self.head = nn.Linear(1, 1, bias=False), nn.Linear(1, 1)
        nn.init.constant_(self.turn.weight, a)
        nn.init.constant_(self.head.weight, c)
        nn.init.zeros_(self.head.bias)
        self.turn.weight.requires_grad_(False)
        self.head.weight.requires_grad_(False)

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        state = x if state is None else self.turn(state) + x
        return self.head(state), state


class Forecaster(nn.Module):
    """The usual: a recurrent layer over a short window, and a linear head."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, outputs: int = 1, **options: Any) -> None:
        super().__init__()
        self.body = kind(outputs, 6, batch_first=True, **options)
        self.head = nn.Linear(6, outputs)

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        out, state = self.body(x, state)
        return self.head(out[:, -1]), state


def online(model: nn.Module, gain: float = 1e-9) -> Online:
    likelihood = br.GaussianLikelihood(noise=NOISE)
    return Online(br.tagi(model, likelihood, num_data=10, gain=gain))


class Echo(nn.Module):
    """`f = a y₋ + b`: no state of its own, the last target is its input."""

    def __init__(self, a: float) -> None:
        super().__init__()
        self.head = nn.Linear(1, 1)
        nn.init.constant_(self.head.weight, a)
        nn.init.zeros_(self.head.bias)
        self.head.weight.requires_grad_(False)

    def forward(self, x: Tensor, state: Any = ()) -> tuple[Tensor, Any]:
        return self.head(x), state


def lstm_steps(num: int = 6, learn: bool = True, **options: Any) -> tuple[Online, list[SeriesStep]]:
    """A forecaster along a sine with a gap."""
    torch.manual_seed(0)
    on = online(Forecaster(**options), gain=0.5)
    place, steps = on.init(), []
    for t in range(num):
        x = torch.full((2, 1, 1), 0.0 if t == 0 else math.nan)
        y = torch.tensor([[math.sin(t)], [math.nan if t in (2, 3) else math.cos(t)]])
        place, seen = (on.step if learn else on.observe)(place, (x, y))
        steps.append(seen)
    return on, steps
