"""Recurrent modules on Gaussians: `nn.LSTM`, `nn.GRU`, `nn.RNN` and their cells, unmodified.

All layers of a module are one node on the tape. After `Tape.back`, the nodes of the last states
that a module returns hold all that was learned of them, through its outputs too; smoothing needs
that.

`LocallyLinear()` takes the gates' functions by their tangents, which gives the published equations;
`MomentMatched()` by their moments, which stays bounded where weights are very uncertain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, reduce
from operator import methodcaller
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.moments.cells import CELLS, Back, Cell, Drive, States
from bayesrule.moments.tensor import (
    GaussianTensor,
    Innovation,
    Map,
    Moments,
    NoRule,
    Tape,
    full_parts,
    parts,
    rule,
    tape_of,
)

Part: TypeAlias = tuple[Any, Tensor | None]
"""Mean and variance; None where there is no variance, and for both where there is no bias."""

_Learned: TypeAlias = tuple[
    Innovation, tuple[Innovation, ...], list[Innovation], tuple[Innovation, ...]
]
"""The innovations of a layer's inputs, first states, weights and last states."""


def _combined(
    function: Callable[[tuple[Tensor, ...]], Tensor], pairs: Sequence[tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """`function` of the first tensors of all pairs, and of the second ones."""
    first, second = zip(*pairs, strict=True)
    return function(first), function(second)


def _stacked(layers: Iterable[States]) -> list[Moments]:
    """For each kind of state, those of all layers as one pair of tensors (L·D, B, H)."""
    return [_combined(torch.stack, states) for states in zip(*layers, strict=True)]


def _plus(a: Innovation, b: Innovation) -> Innovation:
    return a[0] + b[0], a[1] + b[1]


class _Map:
    """The affine map from inputs or hidden states to the gates, and back for innovations."""

    def __init__(self, cell: Cell, weight: Part, bias: Part) -> None:
        (self.weight, self.weight_variance), (self.bias, self.bias_variance) = weight, bias
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
            here = Drive(drive.mean[t], drive.variance[t], None if shared is None else shared[t])
            former = state[0]
            there = self.from_h.drive(former)
            state, back = self.cell.step(tape.activations, here, there, state, loops)
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
            rest = (one for one in step.former[1:] if one is not None)
            on_state = (on_h if direct is None else _plus(on_h, direct), *rest)
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


class _Stack:
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
        self.starts = range(0, len(groups), self.directions)
        self.masks: list[Tensor] = []

    def forward(
        self, x: Part, states: Sequence[Moments], tape: Tape
    ) -> tuple[Moments, list[Moments]]:
        """The last layer's hidden states (T, B, D·H) and all last states (L·D, B, H)."""
        ends: list[States] = []
        for start in self.starts:
            if start and self.dropout:
                mask = F.dropout(torch.ones_like(x[0]), self.dropout)
                self.masks.append(mask)
                x = x[0] * mask, x[1] * mask.square()  # type: ignore[operator]
            hidden = []
            for number in range(start, start + self.directions):
                first = tuple((mean[number], variance[number]) for mean, variance in states)
                out, last = self.layers[number].forward(x, first, tape)
                hidden.append(out)
                ends.append(last)
            x = _combined(partial(torch.cat, dim=-1), hidden) if len(hidden) > 1 else hidden[0]
        return x, _stacked(ends)  # type: ignore[return-value]

    def back(
        self, on_hidden: Innovation, on_last: Sequence[Innovation]
    ) -> tuple[Innovation, list[Innovation], list[Innovation], list[Innovation]]:
        """Innovations of inputs, first states, weights and last states."""
        learned: list[_Learned] = []
        for start in reversed(self.starts):
            halves = zip(*(part.chunk(self.directions, -1) for part in on_hidden), strict=True)
            here = []
            for number, half in enumerate(halves, start):
                ends = tuple((delta[number], eta[number]) for delta, eta in on_last)
                here.append(self.layers[number].back(half, ends))
            learned = here + learned
            on_hidden = reduce(_plus, (inputs for inputs, *_ in here))
            if start and self.masks:
                mask = self.masks.pop()
                on_hidden = on_hidden[0] * mask, on_hidden[1] * mask.square()
        _, first, weights, last = zip(*learned, strict=True)
        return on_hidden, _stacked(first), [one for each in weights for one in each], _stacked(last)


def _run(
    name: str, x: Any, hx: Any, weights: Sequence[Any], inwards: Map, outwards: Map, **options: Any
) -> tuple[GaussianTensor, ...]:
    """The outputs for a sequence and the last states; `options` are those of `_Stack`.

    `inwards` brings sequences to the shape (T, B, ·), `outwards` back. States have the shape
    (L·D, B, H), or (B, H) if there is one layer.
    """
    states = list(hx) if isinstance(hx, tuple | list) else [hx]
    _check_states(name, states)
    tape = tape_of(x, *states, *weights)
    mean, variance, node = parts(x)
    state_parts, weight_parts = [full_parts(one) for one in states], [parts(w) for w in weights]
    stack = _Stack(CELLS[name], [one[:2] for one in weight_parts], **options)
    outside = states[0].shape
    inside = len(stack.layers), *outside[-2:]

    def shaped(pairs: Iterable[Sequence[Any]], shape: Sequence[int]) -> list[Moments]:
        return [(first.reshape(shape), second.reshape(shape)) for first, second, *_ in pairs]

    def to_sources(learned: list[Innovation]) -> list[Innovation]:
        (delta, eta), *on_last = learned
        on_hidden = inwards(delta), inwards(eta)
        (delta, eta), first, on_weights, last = stack.back(on_hidden, shaped(on_last, inside))
        on_x = outwards(delta), outwards(eta)
        for state, (delta, eta) in zip(ends, shaped(last, outside), strict=True):
            assert state.node is not None
            state.node.delta, state.node.eta = delta, eta
        # The states hold the tape and the tape this function: a circle that would stay in memory.
        ends.clear()
        return [on_x, *shaped(first, outside), *on_weights]

    begun = shaped(state_parts, inside)
    inputs = inwards(mean), None if variance is None else inwards(variance)
    (mean, variance), last = stack.forward(inputs, begun, tape)
    hidden = outwards(mean), outwards(variance)
    sources = [node, *(one[2] for one in state_parts), *(one[2] for one in weight_parts)]
    outputs, *ends = tape.results(name, [hidden, *shaped(last, outside)], sources, to_sources)
    return outputs, *ends


def _sequence(
    name: str,
    input: Any,
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> tuple[Any, ...]:
    """A module on whole sequences: its outputs and its last states."""
    turn: Map = methodcaller("transpose", 0, 1) if batch_first else lambda t: t
    options = {"biased": has_biases, "bidirectional": bidirectional, "dropout": dropout * train}
    return _run(name, input, hx, params, turn, turn, **options)


def _check_states(name: str, states: Sequence[Any]) -> None:
    # With packed sequences the lengths of batches, whole numbers, come where states come otherwise.
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


def _one_step(
    name: str, input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> Any:
    """`nn.LSTMCell` and its like: the new states from one step."""
    biased = b_ih is not None
    weights = [w_ih, w_hh, b_ih, b_hh] if biased else [w_ih, w_hh]
    shapes = methodcaller("unsqueeze", 0), methodcaller("squeeze", 0)
    h, _, *last = _run(name, input, hx, weights, *shapes, biased=biased)
    return (h, *last) if last else h


for _name in CELLS:
    rule(getattr(torch, _name))(partial(_sequence, _name))
    rule(getattr(torch, f"{_name}_cell"))(partial(_one_step, _name))
