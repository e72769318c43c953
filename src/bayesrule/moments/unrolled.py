"""Recurrent cells along whole sequences: Gaussians forwards, innovations back through time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.cells import Back, Cell, Drive, Moments, States, StepInnovations
from bayesrule.moments.tensor import Innovation

Part: TypeAlias = tuple[Tensor, Tensor | None]
"""Mean and variance; None where there is no variance."""


def _combined(
    function: Callable[[tuple[Tensor, ...]], Tensor], pairs: Sequence[tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """`function` of the first tensors of all pairs, and of the second ones."""
    first, second = zip(*pairs, strict=True)
    return function(first), function(second)


_beside = partial(torch.cat, dim=-1)


class _Map:
    """The affine map from inputs or hidden states to the gates, and back for innovations."""

    def __init__(self, cell: Cell, weight: Part, bias: Part | None) -> None:
        self.weight, self.weight_variance = weight
        self.bias = None if bias is None else bias[0]
        self.bias_variance = None if bias is None else bias[1]
        blocks = self.weight.chunk(cell.gates)
        pairs = [blocks[a] * blocks[b] for a, b in cell.crosses]
        # The variances of inputs are multiplied with squares of weights for the gates' variances,
        # and with products of the weights of two gates for their covariances.
        self.squares = torch.cat([self.weight.square(), *pairs])
        self.gates = len(self.weight)
        self.forwards = self.gates + cell.forward_crosses * len(blocks[0])

    def drive(self, x: Part) -> Drive:
        """The gates' moments from inputs (..., in)."""
        mean, spread = x
        result = F.linear(mean, self.weight, self.bias)
        variance: Any = 0.0
        if self.weight_variance is not None:
            second = mean.square() if spread is None else mean.square() + spread
            variance = F.linear(second, self.weight_variance, self.bias_variance)
        elif self.bias_variance is not None:
            variance = self.bias_variance
        if spread is None:
            return Drive(result, torch.zeros_like(result) + variance, None)
        both = F.linear(spread, self.squares[: self.forwards])
        by_inputs, shared = both.tensor_split([self.gates], -1)
        return Drive(result, by_inputs + variance, shared)

    def to_inputs(self, innovation: Innovation, cross: Tensor | None) -> Innovation:
        """`δ_j = Σ G w̄ δ`, `η_j = Σ (Σ_gates G w̄)² η`."""
        delta, eta = innovation
        terms = eta if cross is None else torch.cat([eta, cross], -1)
        return delta @ self.weight, terms @ self.squares

    def to_weights(self, inputs: Tensor, innovation: Innovation) -> list[Innovation]:
        """The innovations of the weight and of the bias, from all steps (T, B, ·)."""
        x = inputs.flatten(0, -2)
        delta, eta = (part.flatten(0, -2) for part in innovation)
        return [(delta.mT @ x, eta.mT @ x.square()), (delta.sum(0), eta.sum(0))]


@dataclass(frozen=True)
class _Learned:
    """The innovations of a layer's inputs, first states, weights and last states."""

    inputs: Innovation
    first: tuple[Innovation, ...]
    weights: list[Innovation]
    last: tuple[Innovation, ...]


class _Direction:
    """One direction of one layer."""

    def __init__(self, cell: Cell, weights: Sequence[Part], *, backwards: bool) -> None:
        self.cell, self.backwards, self.bias = cell, backwards, len(weights) > 2
        self.from_x = _Map(cell, weights[0], weights[2] if self.bias else None)
        self.from_h = _Map(cell, weights[1], weights[3] if self.bias else None)
        self.backs: list[Back] = []
        self.former: list[Tensor] = []
        self.x = torch.empty(0)

    def _order(self, num: int) -> list[int]:
        return list(range(num))[:: -1 if self.backwards else 1]

    def forward(self, x: Part, state: States, *, record: bool) -> tuple[Moments, States]:
        """The hidden states of a sequence (T, B, in), and the last states."""
        self.x = x[0]
        drive = self.from_x.drive(x)
        shared = drive.shared
        size = self.cell.gates, -1
        loops = torch.stack([w.diagonal() for w in self.from_h.weight.unflatten(0, size)])
        hidden: list[Moments] = [state[0]] * len(x[0])
        for t in self._order(len(x[0])):
            here = Drive(drive.mean[t], drive.variance[t], None if shared is None else shared[t])
            former = state[0]
            state, back = self.cell.step(here, self.from_h.drive(former), state, loops)
            hidden[t] = state[0]
            if record:
                self.backs.append(back)
                self.former.append(former[0])
        return _combined(torch.stack, hidden), state

    def back(self, on_hidden: Innovation, on_last: tuple[Innovation, ...]) -> _Learned:
        """Innovations of the hidden states (T, B, H) and of the last states, back through time."""
        on_state, steps = on_last, []
        order = self._order(len(self.backs))
        for t, back in zip(reversed(order), reversed(self.backs), strict=True):
            on_h = _plus(on_state[0], (on_hidden[0][t], on_hidden[1][t]))
            steps.append(back((on_h, *on_state[1:])))
            on_state = self._former(steps[-1])
        steps.reverse()
        on_x = _combined(torch.stack, [step.x for step in steps])
        on_h = _combined(torch.stack, [step.h for step in steps])
        cross = [step.cross_x for step in steps if step.cross_x is not None]
        inputs, x = self.from_x.to_inputs(on_x, torch.stack(cross) if cross else None), self.x
        if self.backwards:
            inputs, x = (inputs[0].flip(0), inputs[1].flip(0)), x.flip(0)
        w_ih, b_ih = self.from_x.to_weights(x, on_x)
        w_hh, b_hh = self.from_h.to_weights(torch.stack(self.former), on_h)
        weights = [w_ih, w_hh, b_ih, b_hh] if self.bias else [w_ih, w_hh]
        return _Learned(inputs, on_state, weights, steps[-1].state)

    def _former(self, step: StepInnovations) -> tuple[Innovation, ...]:
        """The innovations of the states before a step."""
        on_h = self.from_h.to_inputs(step.h, step.cross_h)
        direct = step.former[0]
        rest = tuple(one for one in step.former[1:] if one is not None)
        return (on_h if direct is None else _plus(on_h, direct), *rest)


def _plus(a: Innovation, b: Innovation) -> Innovation:
    return a[0] + b[0], a[1] + b[1]


class Stack:
    """All layers and directions of a module, on plain means and variances, without a tape."""

    def __init__(
        self,
        cell: Cell,
        weights: Sequence[Part],
        *,
        biased: bool,
        bidirectional: bool = False,
        dropout: float = 0.0,
    ) -> None:
        size, self.directions, self.dropout = 4 if biased else 2, 1 + bidirectional, dropout
        groups = [weights[i : i + size] for i in range(0, len(weights), size)]
        self.layers = [
            _Direction(cell, group, backwards=number % self.directions == 1)
            for number, group in enumerate(groups)
        ]
        self.masks: list[Tensor] = []

    def forward(
        self, x: Part, states: Sequence[Moments], *, record: bool
    ) -> tuple[Moments, list[Moments]]:
        """The last layer's hidden states (T, B, D·H) and all last states (L·D, B, H)."""
        ends: list[States] = []
        for start in range(0, len(self.layers), self.directions):
            if start and self.dropout:
                x = self._dropped(x)
            hidden = []
            for number in range(start, start + self.directions):
                first = tuple((mean[number], variance[number]) for mean, variance in states)
                out, last = self.layers[number].forward(x, first, record=record)
                hidden.append(out)
                ends.append(last)
            x = _combined(_beside, hidden) if len(hidden) > 1 else hidden[0]
        assert x[1] is not None
        return (x[0], x[1]), [_combined(torch.stack, one) for one in zip(*ends, strict=True)]

    def _dropped(self, x: Part) -> Part:
        mask = F.dropout(torch.ones_like(x[0]), self.dropout)
        self.masks.append(mask)
        assert x[1] is not None
        return x[0] * mask, x[1] * mask.square()

    def back(
        self, on_hidden: Innovation, on_last: Sequence[Innovation]
    ) -> tuple[Innovation, list[Innovation], list[Innovation], list[Innovation]]:
        """Innovations of inputs, first states, weights and last states."""
        learned: list[_Learned] = []
        for start in range(len(self.layers) - self.directions, -1, -self.directions):
            halves = zip(*(part.chunk(self.directions, -1) for part in on_hidden), strict=True)
            here = []
            for number, half in zip(range(start, start + self.directions), halves, strict=True):
                ends = tuple((delta[number], eta[number]) for delta, eta in on_last)
                here.append(self.layers[number].back(half, ends))
            learned = here + learned
            on_hidden = reduce(_plus, (each.inputs for each in here))
            if start and self.masks:
                mask = self.masks.pop()
                on_hidden = on_hidden[0] * mask, on_hidden[1] * mask.square()
        first, last = (
            [_combined(torch.stack, one) for one in zip(*states, strict=True)]
            for states in ([each.first for each in learned], [each.last for each in learned])
        )
        return on_hidden, first, [one for each in learned for one in each.weights], last
