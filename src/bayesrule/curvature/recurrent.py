"""Recurrent layers step by step: torch's fused calls as loops in which each step is visible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bayesrule.curvature.layers import LinearLayer
from bayesrule.tensors.recurrence import Recurrence

States = tuple[Tensor, ...]
Step = Callable[[Tensor, Tensor, States], States]
Maps = list[tuple[LinearLayer, Tensor]]
"""The linear maps of recurrent layers, from inputs or from previous states, at all steps.

Each comes with the tensor (n, T, out) at which the gradients of its outputs arrive.
"""


def _lstm(x: Tensor, h: Tensor, states: States) -> States:
    i, f, g, o = (x + h).chunk(4, -1)
    cell = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _gru(x: Tensor, h: Tensor, states: States) -> States:
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), h.chunk(3, -1)
    new = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
    return (torch.lerp(new, states[0], torch.sigmoid(xz + hz)),)


_STEPS: dict[Callable[..., Any], Step] = {
    torch.lstm: _lstm,
    torch.gru: _gru,
    torch.rnn_tanh: lambda x, h, states: (torch.tanh(x + h),),
    torch.rnn_relu: lambda x, h, states: (torch.relu(x + h),),
}


def _slot(weight: Tensor, bias: Tensor | None, size: tuple[int, int]) -> Tensor:
    """The bias at every step, (n, T, out), as a tensor whose gradient can be asked for."""
    # Zero, but part of the weight's graph, also if there is no bias to learn.
    start = weight[:, 0] * 0.0
    return (start if bias is None else start + bias).expand(*size, -1)


def _layer(
    step: Step, x: Tensor, states: States, weights: Sequence[Tensor], *, backwards: bool
) -> tuple[Tensor, States, Maps]:
    """One direction of one layer: hidden states (n, T, h), the last states, and its two maps."""
    from_x, from_h, *biases = weights
    bias_x, bias_h = biases or (None, None)
    size = x.shape[0], x.shape[1]
    drive = functional.linear(x, from_x, bias_x)
    slot, right = _slot(from_h, bias_h, size), from_h.mT
    drives, slots = drive.unbind(1), slot.unbind(1)
    before, after = [states[0]] * size[1], [states[0]] * size[1]
    for t in range(size[1])[:: -1 if backwards else 1]:
        before[t] = states[0]
        states = step(drives[t], torch.addmm(slots[t], states[0], right), states)
        after[t] = states[0]
    former = torch.stack([h.detach() for h in before], 1)
    from_inputs = LinearLayer(x.detach(), from_x, bias_x)
    from_states = LinearLayer(former, from_h, bias_h)
    return torch.stack(after, 1), states, [(from_inputs, drive), (from_states, slot)]


def _run(step: Step, input: Tensor, first: States, call: Recurrence) -> tuple[States, Maps]:
    """All layers: outputs and last states as torch returns them, and every map."""
    maps: Maps = []

    def run_layer(
        x: Tensor, states: list[Tensor], weights: Sequence[Tensor], backwards: bool
    ) -> tuple[Tensor, States]:
        out, last, layer_maps = _layer(step, x, tuple(states), weights, backwards=backwards)
        maps.extend(layer_maps)
        return out, last

    x, ends = call.run(input if call.batch_first else input.transpose(0, 1), first, run_layer)
    last_states = (torch.stack(state) for state in zip(*ends, strict=True))
    return (x if call.batch_first else x.transpose(0, 1), *last_states), maps


def unrolled(
    func: Callable[..., Any], args: Sequence[Any]
) -> tuple[tuple[Tensor, ...], Maps] | None:
    """What a call of `torch.lstm` and its like returns, and its linear maps at every step.

    None for any other function, for packed sequences and for an LSTM with `proj_size`. Dropout
    between layers has the same distribution as in torch, but not the same draws.
    """
    step = _STEPS.get(func)
    # A packed call has the batch sizes second, and so the weights fourth, where others have a flag.
    if step is None or len(args) != 9 or not isinstance(args[3], bool):
        return None
    first = (args[1],) if isinstance(args[1], Tensor) else tuple(args[1])
    if first[0].shape != first[-1].shape:
        return None
    return _run(step, args[0], first, Recurrence(*args[2:]))
