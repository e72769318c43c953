"""Recurrent modules on Gaussians: `nn.LSTM`, `nn.GRU`, `nn.RNN` and their cells, unmodified.

All layers of a module are one node on the tape. After `Tape.back`, the nodes of the last states
that a module returns hold all that was learned of them, through its outputs too; smoothing needs
that.

`LocallyLinear()` takes the gates' functions by their tangents, which gives the published equations;
`MomentMatched()` by their moments, which stays bounded where weights are very uncertain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from bayesrule.moments.cells import GRU, LSTM, Cell, Elman, Moments
from bayesrule.moments.tensor import (
    Activations,
    GaussianTensor,
    Innovation,
    Map,
    NoRule,
    ToSources,
    full_parts,
    parts,
    rule,
    tape_of,
)
from bayesrule.moments.unrolled import Stack

Kind: TypeAlias = Callable[[Activations], Cell]


def _same(t: Tensor) -> Tensor:
    return t


@dataclass(frozen=True)
class Layout:
    """How sequences and states come to the shapes (T, B, ·) and (L, B, H), and back from there."""

    inwards: Map = _same
    outwards: Map = _same
    state_inwards: Map = _same
    state_outwards: Map = _same


_swapped = partial(torch.transpose, dim0=0, dim1=1)
_unsqueezed, _squeezed = partial(torch.unsqueeze, dim=0), partial(torch.squeeze, dim=0)
TIME_FIRST, BATCH_FIRST = Layout(), Layout(_swapped, _swapped)
ONE_STEP = Layout(_unsqueezed, _squeezed, _unsqueezed, _squeezed)


class _Backward:
    """Takes innovations of a module's outputs and last states back to its sources."""

    def __init__(self, stack: Stack, layout: Layout, outputs: Moments) -> None:
        self.stack, self.layout, self.like = stack, layout, outputs[0]
        self.last_states: list[GaussianTensor] = []
        self.on_last: dict[int, Innovation] = {}

    def from_last_state(self, which: int) -> ToSources:
        """For the node of a last state: keeps its innovation until the outputs are visited."""

        def keep(delta: Tensor, eta: Tensor) -> list[Innovation]:
            self.on_last[which] = _each(self.layout.state_inwards, (delta, eta))
            nothing = torch.zeros_like(self.like)
            return [(nothing, nothing)]

        return keep

    def from_outputs(self, delta: Tensor, eta: Tensor) -> list[Innovation]:
        """For the node of the outputs: takes both back, through all layers and steps."""
        layout, on_last = self.layout, []
        for which, state in enumerate(self.last_states):
            nothing = torch.zeros_like(layout.state_inwards(state.centre))
            on_last.append(self.on_last.get(which, (nothing, nothing)))
        on_hidden = _each(layout.inwards, (delta, eta))
        on_x, first, on_weights, last = self.stack.back(on_hidden, on_last)
        for state, learned in zip(self.last_states, last, strict=True):
            assert state.node is not None
            state.node.delta, state.node.eta = _each(layout.state_outwards, learned)
        self.last_states.clear()
        on_states = [_each(layout.state_outwards, one) for one in first]
        return [_each(layout.outwards, on_x), *on_states, *on_weights]


def _each(function: Map, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return function(pair[0]), function(pair[1])


def run(
    kind: Kind,
    x: Any,
    states: Sequence[Any],
    weights: Sequence[Any],
    layout: Layout,
    **options: Any,
) -> tuple[GaussianTensor, list[GaussianTensor]]:
    """The outputs and the last states of a recurrent module; `options` are those of `Stack`."""
    tape = tape_of(x, *states, *weights)
    mean, variance, node = parts(x)
    state_parts, weight_parts = [full_parts(one) for one in states], [parts(w) for w in weights]
    cell = kind(tape.activations)
    stack = Stack(cell, [one[:2] for one in weight_parts], **options)
    inputs = layout.inwards(mean), None if variance is None else layout.inwards(variance)
    first = [_each(layout.state_inwards, (m, s)) for m, s, _ in state_parts]
    hidden, last = stack.forward(inputs, first, record=tape.nodes is not None)
    moments = _each(layout.outwards, hidden)
    backward = _Backward(stack, layout, moments)
    sources = [node, *(one[2] for one in state_parts), *(one[2] for one in weight_parts)]
    outputs = tape.result(cell.name, *moments, sources, backward.from_outputs)
    name, source = f"state of {cell.name}", (outputs.node,)
    for which, state in enumerate(last):
        ending = _each(layout.state_outwards, state)
        to_sources = backward.from_last_state(which)
        backward.last_states.append(tape.result(name, *ending, source, to_sources))
    return outputs, [*backward.last_states]


def _listed(hx: Any) -> list[Any]:
    return list(hx) if isinstance(hx, tuple | list) else [hx]


def _sequence(kind: Kind, name: str) -> Callable[..., tuple[GaussianTensor, ...]]:
    """The rule of a module on whole sequences: its outputs and its last states."""

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
        states = _listed(hx)
        _check_states(name, states)
        outputs, last = run(
            kind,
            input,
            states,
            params,
            BATCH_FIRST if batch_first else TIME_FIRST,
            biased=has_biases,
            bidirectional=bidirectional,
            dropout=dropout if train else 0.0,
        )
        return outputs, *last

    return apply


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


def _one_step(kind: Kind) -> Callable[..., Any]:
    """The rule of `nn.LSTMCell` and its like: the new states from one step."""

    def apply(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        biased = b_ih is not None
        weights = [w_ih, w_hh, b_ih, b_hh] if biased else [w_ih, w_hh]
        h, last = run(kind, input, _listed(hx), weights, ONE_STEP, biased=biased)
        return (h, *last[1:]) if len(last) > 1 else h

    return apply


_KINDS: dict[str, Kind] = {
    "lstm": LSTM,
    "gru": GRU,
    "rnn_tanh": partial(Elman, rectified=False),
    "rnn_relu": partial(Elman, rectified=True),
}
for _name, _kind in _KINDS.items():
    rule(getattr(torch, _name))(_sequence(_kind, _name))
    rule(getattr(torch, f"{_name}_cell"))(_one_step(_kind))
