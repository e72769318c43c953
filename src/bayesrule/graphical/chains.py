"""Sums over all paths of hidden states, in log space, with loops of only about ∛T steps.

A chain of T steps is cut into G blocks of B steps. First the product of the transition matrices of
each block is computed, for all blocks at once. Messages then pass from block to block, in the same
way, as blocks are the steps of a shorter chain. Last, all blocks run at once from the messages that
enter them. Several sequences form one chain: where a sequence begins, every state goes to the
initial distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

Reduce = Callable[[Tensor, int], Tensor]
# With more states than this, products cost more than blocks save.
_MOST_STATES_IN_BLOCKS = 16
# The most numbers in the products of all blocks, which then fit a cache, and in pairs of states.
_PRODUCTS, _AT_ONCE = 1 << 18, 1 << 20
# A chain of at most this many steps is not cut into blocks.
_FEW = 24


@dataclass(frozen=True)
class Chain:
    """`log π` (K,), `log A` (K, K), `log b_t` (T, K), and where sequences begin (T,)."""

    initial: Tensor
    transitions: Tensor
    emissions: Tensor
    begins: Tensor


@dataclass(frozen=True)
class Smoothed:
    """The posterior of a chain's states.

    - `states` (T, K): `q(z_t)`; `firsts` (K,) and `pairs` (K, K): expected counts of first states
      and of transitions; `evidence`: `log Z`, (); `up_to` (T,): log Z of the first t steps.
    """

    states: Tensor
    firsts: Tensor
    pairs: Tensor
    up_to: Tensor

    @property
    def evidence(self) -> Tensor:
        return self.up_to[-1]


def smoothed(chain: Chain) -> Smoothed:
    """The forward-backward algorithm; Rabiner (1989), eqs 19 to 38."""
    blocks = _Blocks.of(chain, _log_sum)
    ahead, up_to = blocks.forward()
    behind = blocks.backward()
    # Along the first axis: sums of a few neighbouring numbers are several times slower.
    states = (ahead + behind).T.contiguous().softmax(0).T.contiguous()
    return Smoothed(states, states[chain.begins].sum(0), _pairs(chain, ahead, behind), up_to)


def up_to(chain: Chain) -> Tensor:
    """`log p(x_1..t)` for each t, (T,)."""
    return _Blocks.of(chain, _log_sum).forward()[1]


def best_path(chain: Chain) -> Tensor:
    """The most probable path of states, (T,): Viterbi's algorithm; Rabiner (1989), eqs 32 to 35."""
    ahead, _ = _Blocks.of(chain, torch.amax).forward()
    steps = torch.where(chain.begins[1:, None, None], chain.initial, chain.transitions)
    before = (ahead[:-1].unsqueeze(-1) + steps).argmax(1).tolist()
    path = [int(ahead[-1].argmax())]
    for back in reversed(before):
        path.append(back[path[-1]])
    return torch.tensor(path[::-1])


def _pairs(chain: Chain, ahead: Tensor, behind: Tensor) -> Tensor:
    """`Σ_t q(z_{t−1} = i, z_t = j)` within sequences, (K, K)."""
    k = len(chain.initial)
    total = torch.zeros_like(chain.transitions)
    for t in (~chain.begins).nonzero()[:, 0].split(max(_AT_ONCE // k**2, 1)):
        after = (chain.emissions[t] + behind[t]).T.contiguous()
        joint = ahead[t - 1].T.contiguous().unsqueeze(1) + chain.transitions.unsqueeze(2) + after
        total += joint.flatten(0, 1).softmax(0).sum(1).view(k, k)
    return total


@dataclass(frozen=True)
class _Blocks:
    """A chain in G blocks of B steps, padded with empty sequences.

    Blocks are the last axis, so that all operations run along whole vectors: `begins` (B, G),
    `emissions` (B, K, G). `peaks` (T,) are the largest emissions, subtracted for precision.
    """

    chain: Chain
    reduce: Reduce
    begins: Tensor
    emissions: Tensor
    peaks: Tensor

    @classmethod
    def of(cls, chain: Chain, reduce: Reduce) -> _Blocks:
        (num, k), peaks = chain.emissions.shape, chain.emissions.amax(1)
        size = max(math.ceil(num ** (1 / 3)), num * k**3 // _PRODUCTS)
        size = size if k <= _MOST_STATES_IN_BLOCKS else num
        more = -num % size
        emissions = torch.nn.functional.pad(chain.emissions - peaks.unsqueeze(1), (0, 0, 0, more))
        begins = torch.nn.functional.pad(chain.begins, (0, more), value=True)
        blocks = emissions.view(-1, size, k).permute(1, 2, 0).contiguous()
        return cls(chain, reduce, begins.view(-1, size).T.contiguous(), blocks, peaks)

    def step(self, number: int) -> Tensor:
        """`log p(z_t = j, x_t | z_{t−1} = i)` at step `number` of all blocks, (K, K, G)."""
        into = self.chain.transitions.unsqueeze(-1)
        if self._some_begin[number]:
            into = torch.where(self.begins[number], self.chain.initial.unsqueeze(-1), into)
        return into + self.emissions[number]

    @cached_property
    def _some_begin(self) -> list[bool]:
        return self.begins.any(1).tolist()

    @cached_property
    def products(self) -> Tensor:
        """The product of all steps of each block, (K, K, G)."""
        # A single block passes no message on.
        num = len(self.begins) if self.begins.shape[1] > 1 else 1
        return _product(map(self.step, range(num)), self.reduce)

    def forward(self) -> tuple[Tensor, Tensor]:
        """`log p(z_t, x_1..t)` up to a constant in each block (T, K), and log p(x_1..t) (T,)."""
        here, scales = _entering(self.products, self.reduce)
        messages = []
        for number in range(len(self.begins)):
            here = self.reduce(here.unsqueeze(1) + self.step(number), 0)
            messages.append(here)
        ahead = torch.stack(messages)
        # The chain starts from K equal states before the first step: divide by K.
        sums = ahead.logsumexp(1) + scales - math.log(ahead.shape[1])
        up_to = sums.T.flatten()[: len(self.peaks)] + self.peaks.cumsum(0)
        return self._joined(ahead), up_to

    def backward(self) -> Tensor:
        """`log p(x_{t+1..T} | z_t)` up to a constant in each block, (T, K)."""
        # Backward messages enter blocks at their ends: transposed steps in reverse order.
        entering, _ = _entering(self.products.transpose(0, 1).flip(2), self.reduce)
        here, messages = entering.flip(1), []
        for number in reversed(range(len(self.begins))):
            messages.append(here)
            here = self.reduce(self.step(number) + here, 1)
        return self._joined(torch.stack(messages[::-1]))

    def _joined(self, blocks: Tensor) -> Tensor:
        """(B, K, G) as one chain (T, K) again, without the padding."""
        return blocks.permute(2, 0, 1).flatten(0, 1)[: len(self.peaks)]


def _product(steps: Iterator[Tensor], reduce: Reduce) -> Tensor:
    """The products of matrices (K, K, G), for each of the G."""
    total = next(steps)
    for step in steps:
        total = reduce(total.unsqueeze(2) + step, 1)
    return total


def _entering(steps: Tensor, reduce: Reduce) -> tuple[Tensor, Tensor]:
    """The message that enters each of G steps (K, K, G); it is flat at the first.

    Returns messages (K, G) and a constant (G,) to add to each, so that messages stay small.
    """
    k, _, num = steps.shape
    size = num if num <= _FEW else math.isqrt(num - 1) + 1
    blocks = torch.nn.functional.pad(steps, (0, -num % size)).view(k, k, -1, size)
    inner = blocks.permute(3, 0, 1, 2).contiguous().unbind()
    here, scale = steps.new_zeros(k, 1), steps.new_zeros(1)
    if size < num:
        here, scale = _entering(_product(iter(inner), reduce), reduce)
    messages, scales = [], []
    for step in inner:
        messages.append(here)
        scales.append(scale)
        here = reduce(here.unsqueeze(1) + step, 0)
        top = here.amax(0)
        here, scale = here - top, scale + top
    return torch.stack(messages, -1).view(k, -1)[:, :num], torch.stack(scales, -1).flatten()[:num]


def _log_sum(x: Tensor, dim: int) -> Tensor:
    """logsumexp; torch's own is several times slower where `dim` is not the last."""
    top = x.amax(dim, keepdim=True).clamp_min(torch.finfo(x.dtype).min)
    return (x - top).exp_().sum(dim).log_() + top.squeeze(dim)
