"""The rules for recurrent modules: `nn.LSTM`, `nn.GRU`, `nn.RNN` and their cells, unmodified.

Each direction of a layer is one node on the tape. After `Tape.back`, the nodes of the last states
that a module returns hold their complete innovations, including those that came through the
module's outputs; smoothing needs these.

`LocallyLinear()` replaces the gates' functions by their tangents, which gives the published
equations. `MomentMatched()` uses their moments, which stay bounded for very uncertain weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.cells import CELLS, Back, Cell, Drive, States
from bayesrule.moments.shape import stack
from bayesrule.moments.tensor import (
    GaussianTensor,
    Innovation,
    Moments,
    NoRule,
    Tape,
    full_parts,
    innovation,
    parts,
    rule,
    tape_of,
)
from bayesrule.tensors.recurrence import Recurrence

Part: TypeAlias = tuple[Any, Tensor | None]
"""Mean and variance; the variance may be None, and both are None for a missing bias."""

_Learned: TypeAlias = tuple[
    Innovation, tuple[Innovation, ...], list[Innovation], tuple[Innovation, ...]
]
"""The innovations of a layer's inputs, first states, weights and last states."""


def _combined(
    function: Callable[[tuple[Tensor, ...]], Tensor], pairs: Sequence[tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Applies `function` to the first tensors of all pairs, and to the second ones."""
    first, second = zip(*pairs, strict=True)
    return function(first), function(second)


def _plus(a: Innovation, b: Innovation) -> Innovation:
    return a[0] + b[0], a[1] + b[1]


class _Map:
    """The affine map from inputs or hidden states to the gates, and back for innovations."""

    def __init__(self, cell: Cell, weight: Part, bias: Part) -> None:
        (self.weight, self.weight_variance), (self.bias, self.bias_variance) = weight, bias
        blocks = self.weight.chunk(cell.gates)
        pairs = [blocks[a] * blocks[b] for a, b in cell.crosses]
        # Input variances times squared weights give the gates' variances; times products of two
        # gates' weights they give the gates' covariances.
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
        products = F.linear(spread, self.squares[: self.forwards])
        by_inputs, shared = products.tensor_split([self.gates], -1)
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


class _Direction:
    """One direction of one layer."""

    def __init__(self, cell: Cell, weights: Sequence[Part], *, backwards: bool) -> None:
        self.cell, self.backwards, self.num_weights = cell, backwards, len(weights)
        no_bias: Part = (None, None)
        w_ih, w_hh, b_ih, b_hh = [*weights, no_bias, no_bias][:4]
        self.from_x, self.from_h = _Map(cell, w_ih, b_ih), _Map(cell, w_hh, b_hh)
        self.backs: list[Back] = []
        self.former: list[Tensor] = []

    def forward(self, x: Part, state: States, tape: Tape) -> tuple[Moments, States]:
        """The hidden states of a sequence (T, B, in), and the last states."""
        self.x, times = x[0], range(len(x[0]))
        self.times = times[::-1] if self.backwards else times
        drive = self.from_x.drive(x)
        shared = drive.shared
        blocks = self.from_h.weight.unflatten(0, (self.cell.gates, -1))
        loops = torch.stack([block.diagonal() for block in blocks])
        hidden: list[Moments] = [state[0]] * len(times)
        for t in self.times:
            by_x = Drive(drive.mean[t], drive.variance[t], None if shared is None else shared[t])
            former = state[0]
            by_h = self.from_h.drive(former)
            state, back = self.cell.step(tape.activations, by_x, by_h, state, loops)
            hidden[t] = state[0]
            if tape.nodes is not None:
                self.backs.append(back)
                self.former.append(former[0])
        return _combined(torch.stack, hidden), state

    def back(self, on_hidden: Innovation, on_last: tuple[Innovation, ...]) -> _Learned:
        """Innovations of the hidden states (T, B, H) and of the last states, back through time."""
        on_state, steps = on_last, []
        for t, back in zip(reversed(self.times), reversed(self.backs), strict=True):
            on_h = _plus(on_state[0], (on_hidden[0][t], on_hidden[1][t]))
            step = back((on_h, *on_state[1:]))
            steps.append(step)
            on_h, direct = self.from_h.to_inputs(step.h, step.cross_h), step.former[0]
            on_cell = (former for former in step.former[1:] if former is not None)
            on_state = (on_h if direct is None else _plus(on_h, direct), *on_cell)
        steps.reverse()
        on_x = _combined(torch.stack, [step.x for step in steps])
        on_h = _combined(torch.stack, [step.h for step in steps])
        cross = [step.cross_x for step in steps if step.cross_x is not None]
        inputs, x = self.from_x.to_inputs(on_x, torch.stack(cross) if cross else None), self.x
        if self.backwards:
            inputs, x = (inputs[0].flip(0), inputs[1].flip(0)), x.flip(0)
        w_ih, b_ih = self.from_x.to_weights(x, on_x)
        w_hh, b_hh = self.from_h.to_weights(torch.stack(self.former), on_h)
        weights = [w_ih, w_hh, b_ih, b_hh][: self.num_weights]
        return inputs, on_state, weights, steps[-1].state


def _layer(
    name: str, tape: Tape, x: Any, states: Sequence[Any], weights: Sequence[Any], *, backwards: bool
) -> list[GaussianTensor]:
    """One direction of one layer: the hidden states (T, B, H) of a sequence, and the last states.

    After `Tape.back` the nodes of the last states hold their complete innovations.
    """
    mean, variance, node = parts(x)
    first = [full_parts(state) for state in states]
    weight_parts = [parts(weight) for weight in weights]
    direction = _Direction(CELLS[name], [part[:2] for part in weight_parts], backwards=backwards)
    start = tuple((mean, variance) for mean, variance, _ in first)
    hidden, last = direction.forward((mean, variance), start, tape)

    def to_sources(learned: list[Innovation]) -> list[Innovation]:
        on_hidden, *on_last = learned
        on_x, on_first, on_weights, on_ends = direction.back(on_hidden, tuple(on_last))
        for end, (delta, eta) in zip(ends, on_ends, strict=True):
            assert end.node is not None
            end.node.delta, end.node.eta = delta, eta
        # The states hold the tape and the tape holds this function, a cycle that would stay in
        # memory.
        ends.clear()
        return [on_x, *on_first, *on_weights]

    sources = [node, *(part[2] for part in (*first, *weight_parts))]
    hidden_states, *ends = tape.results(name, [hidden, *last], sources, to_sources)
    return [hidden_states, *ends]


def _together(tape: Tape, ends: Sequence[list[GaussianTensor]]) -> list[GaussianTensor]:
    """Stacks the last states of all layers, (L·D, B, H), for each kind of state."""
    kinds = list(zip(*ends, strict=True))
    whole = [stack(kind) for kind in kinds]

    def settle() -> None:
        for state, kind in zip(whole, kinds, strict=True):
            assert state.node is not None
            state.node.delta, state.node.eta = _combined(torch.stack, [innovation(x) for x in kind])

    if tape.nodes is not None:
        tape.afterwards.append(settle)
    return whole


def _sequence(name: str, input: Any, hx: Any, *options: Any) -> tuple[Any, ...]:
    """A module on whole sequences: its outputs (T, B, D·H) and its last states (L·D, B, H)."""
    states, call = _states(name, hx), Recurrence(*options)
    tape = tape_of(input, *states, *call.params)

    def direction(
        x: Any, first: list[Any], weights: Sequence[Any], backwards: bool
    ) -> tuple[Any, list[Any]]:
        out, *last = _layer(name, tape, x, first, weights, backwards=backwards)
        return out, last

    x, ends = call.run(input.transpose(0, 1) if call.batch_first else input, states, direction)
    return x.transpose(0, 1) if call.batch_first else x, *_together(tape, ends)


def _states(name: str, hx: Any) -> list[Any]:
    """The hidden state and, for an LSTM, the cell state; raises NoRule for unsupported calls."""
    states = list(hx) if isinstance(hx, tuple | list) else [hx]
    # Packed sequences pass batch sizes, which are integers, in the place of the states.
    if not states[0].is_floating_point():
        raise NoRule(
            f"No moment rule for packed sequences ('{name}'). Pad the sequences and give NaN as "
            "the targets of what was padded, or take sequences of one length at a time."
        )
    if states[0].shape[-1] != states[-1].shape[-1]:
        raise NoRule(
            f"No moment rule for an LSTM with proj_size={states[0].shape[-1]}. Build it with "
            "proj_size=0 and put a Linear layer behind it."
        )
    return states


def _one_step(
    name: str, input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> Any:
    """One step of `nn.LSTMCell`, `nn.GRUCell` or `nn.RNNCell`: the new states."""
    weights = [w_ih, w_hh] if b_ih is None else [w_ih, w_hh, b_ih, b_hh]
    states = _states(name, hx)
    tape, x = tape_of(input, *states, *weights), input.unsqueeze(0)
    _, *last = _layer(name, tape, x, states, weights, backwards=False)
    return tuple(last) if len(last) > 1 else last[0]


for _name in CELLS:
    rule(getattr(torch, _name))(partial(_sequence, _name))
    rule(getattr(torch, f"{_name}_cell"))(partial(_one_step, _name))
