"""Recurrent modules on Gaussians: `nn.LSTM`, `nn.GRU`, `nn.RNN` and their cells, unmodified.

All layers of a module are one entry on the tape, because what is learned of its last states is to
be found there as well: after `Tape.back`, the nodes of the states that a module returns hold all
that was learned of them, through its outputs too.

`LocallyLinear()` takes the gates' functions by their tangents, which gives the published equations;
`MomentMatched()` by their moments, which stays bounded where weights are very uncertain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bayesrule.moments.cells import GRU, LSTM, Cell, Elman, Moments
from bayesrule.moments.tensor import (
    Activations,
    GaussianTensor,
    Innovation,
    NoRule,
    ToSources,
    parts,
    rule,
    tape_of,
)
from bayesrule.moments.unrolled import Stack

Move: TypeAlias = Callable[[Tensor], Tensor]
Kind: TypeAlias = Callable[[Activations], Cell]


def _same(t: Tensor) -> Tensor:
    return t


@dataclass(frozen=True)
class Layout:
    """How sequences and states come to (T, B, ·) and (L, B, H), and back from there."""

    inwards: Move = _same
    outwards: Move = _same
    state_inwards: Move = _same
    state_outwards: Move = _same


TIME_FIRST = Layout()
BATCH_FIRST = Layout(lambda t: t.transpose(0, 1), lambda t: t.transpose(0, 1))
ONE_STEP = Layout(
    lambda t: t.unsqueeze(0),
    lambda t: t.squeeze(0),
    lambda t: t.unsqueeze(0),
    lambda t: t.squeeze(0),
)


class _Entry:
    """A module's entry on the tape, which its outputs and its last states share."""

    def __init__(self, stack: Stack, layout: Layout, outputs: Moments) -> None:
        self.stack, self.layout, self.like = stack, layout, outputs[0]
        self.ends: list[GaussianTensor] = []
        self.heard: dict[int, Innovation] = {}

    def hear(self, which: int) -> ToSources:
        """The way back of one of the last states: kept until the entry itself is visited."""

        def keep(delta: Tensor, eta: Tensor) -> list[Innovation]:
            inwards = self.layout.state_inwards
            self.heard[which] = inwards(delta), inwards(eta)
            nothing = torch.zeros_like(self.like)
            return [(nothing, nothing)]

        return keep

    def to_sources(self, delta: Tensor, eta: Tensor) -> list[Innovation]:
        """The way back of the outputs, together with what was heard of the last states."""
        layout, on_last = self.layout, []
        for which, end in enumerate(self.ends):
            quiet = torch.zeros_like(layout.state_inwards(end.centre))
            on_last.append(self.heard.get(which, (quiet, quiet)))
        on_hidden = layout.inwards(delta), layout.inwards(eta)
        on_x, first, on_weights, last = self.stack.back(on_hidden, on_last)
        for end, learned in zip(self.ends, last, strict=True):
            assert end.node is not None
            end.node.delta, end.node.eta = _each(layout.state_outwards, learned)
        self.ends.clear()
        states = [_each(layout.state_outwards, one) for one in first]
        return [_each(layout.outwards, on_x), *states, *on_weights]


def _each(move: Move, innovation: Innovation) -> Innovation:
    return move(innovation[0]), move(innovation[1])


def run(
    kind: Kind,
    x: Any,
    states: Sequence[Any],
    weights: Sequence[Any],
    layout: Layout,
    *,
    biased: bool,
    twofold: bool = False,
    dropout: float = 0.0,
) -> tuple[GaussianTensor, list[GaussianTensor]]:
    """A recurrent module of a kind of cell: its outputs and its last states."""
    tape = tape_of(x, *states, *weights)
    (mean, variance, node), given = parts(x), [parts(one) for one in weights]
    cell, plain = kind(tape.activations), [one[:2] for one in given]
    stack = Stack(cell, plain, biased=biased, twofold=twofold, dropout=dropout)
    inputs = layout.inwards(mean), None if variance is None else layout.inwards(variance)
    first = [_state(one, layout) for one in states]
    hidden, last = stack.forward(inputs, first, record=tape.nodes is not None)
    moments = _each(layout.outwards, hidden)
    entry = _Entry(stack, layout, moments)
    sources = [node, *(parts(one)[2] for one in states), *(one[2] for one in given)]
    outputs = tape.result(cell.name, *moments, sources, entry.to_sources)
    ends = []
    for which, state in enumerate(last):
        found = _each(layout.state_outwards, state)
        ends.append(
            tape.result(f"state of {cell.name}", *found, (outputs.node,), entry.hear(which))
        )
    entry.ends.extend(ends)
    return outputs, ends


def _state(x: Any, layout: Layout) -> Moments:
    """Mean and variance of a state, zero where it is plain."""
    mean, variance, _ = parts(x)
    return _each(
        layout.state_inwards, (mean, torch.zeros_like(mean) if variance is None else variance)
    )


def _sequence(
    kind: Kind,
    input: Any,
    states: Sequence[Any],
    params: Any,
    has_biases: bool,
    dropout: float,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[GaussianTensor, ...]:
    """A whole sequence, as torch's functions have it."""
    outputs, last = run(
        kind,
        input,
        states,
        params,
        BATCH_FIRST if batch_first else TIME_FIRST,
        biased=has_biases,
        twofold=bidirectional,
        dropout=dropout,
    )
    return outputs, *last


def _refuse_packed(name: str, packed: bool) -> None:
    if packed:
        raise NoRule(
            f"No moment rule for packed sequences ('{name}'). Pad the sequences and give NaN as "
            "the targets of what was padded, or take sequences of one length at a time."
        )


@rule(torch.lstm)
def lstm(
    input: Any,
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> tuple[GaussianTensor, ...]:
    """`nn.LSTM`: outputs, last hidden states, last cell states."""
    _refuse_packed("lstm", isinstance(hx, Tensor))
    if hx[0].shape[-1] != hx[1].shape[-1]:
        raise NoRule(
            f"No moment rule for an LSTM with proj_size={hx[0].shape[-1]}. Build it with "
            "proj_size=0 and put a Linear layer behind it."
        )
    options = has_biases, dropout if train else 0.0, bidirectional, batch_first
    return _sequence(LSTM, input, hx, params, *options)


def _one_state(kind: Kind, name: str) -> Callable[..., Any]:
    """`nn.GRU` and `nn.RNN`: outputs and last hidden states."""

    def apply(
        input: Any,
        hx: Any,
        params: Any,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool = False,
    ) -> tuple[GaussianTensor, ...]:
        _refuse_packed(name, isinstance(params, Tensor))
        options = has_biases, dropout if train else 0.0, bidirectional, batch_first
        return _sequence(kind, input, [hx], params, *options)

    return apply


def _one_step(kind: Kind, num: int) -> Callable[..., Any]:
    """`nn.LSTMCell` and its like: the new states from one step."""

    def apply(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        states = list(hx) if num > 1 else [hx]
        weights = [w_ih, w_hh] if b_ih is None else [w_ih, w_hh, b_ih, b_hh]
        biased = b_ih is not None
        h, last = run(kind, input, states, weights, ONE_STEP, biased=biased)
        return (h, *last[1:]) if num > 1 else h

    return apply


def _tanh(activations: Activations) -> Cell:
    return Elman(activations, rectified=False)


def _relu(activations: Activations) -> Cell:
    return Elman(activations, rectified=True)


_ONE_STATE: dict[str, Kind] = {"gru": GRU, "rnn_tanh": _tanh, "rnn_relu": _relu}
for _name, _kind in _ONE_STATE.items():
    rule(getattr(torch, _name))(_one_state(_kind, _name))
    rule(getattr(torch, f"{_name}_cell"))(_one_step(_kind, 1))
rule(torch.lstm_cell)(_one_step(LSTM, 2))
