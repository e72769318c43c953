"""Sums over all paths of hidden states, in log space, with loops of only about √T steps.

A chain is cut into G blocks of B steps. Products of the transition matrices of all blocks grow
side by side, then G short steps carry messages from block to block, and all blocks are gone
through side by side once more. Several sequences are one chain: where a sequence begins, every
state goes to the initial distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

Reduce = Callable[[Tensor, int], Tensor]
# With more states than this the products cost more than they save.
_MOST_STATES_IN_BLOCKS = 16
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Chain:
    """`log π` (K,), `log A` (K, K), `log b_t` (T, K), and where sequences begin (T,)."""

    initial: Tensor
    transitions: Tensor
    emissions: Tensor
    begins: Tensor


@dataclass(frozen=True)
class Smoothed:
    """What a chain says of its states.

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
    states = (ahead + behind).softmax(1)
    return Smoothed(states, states[chain.begins].sum(0), _pairs(chain, ahead, behind), up_to)


def up_to(chain: Chain) -> Tensor:
    """`log p(x_1..t)` for each t, (T,)."""
    return _Blocks.of(chain, _log_sum).forward()[1]


def best_path(chain: Chain) -> Tensor:
    """The likeliest path of states, (T,), by Viterbi's algorithm; Rabiner (1989), eqs 32 to 35."""
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
        joint = ahead[t - 1].unsqueeze(-1) + chain.transitions
        joint = joint + (chain.emissions[t] + behind[t]).unsqueeze(-2)
        total += joint.flatten(1).softmax(1).sum(0).view(k, k)
    return total


@dataclass(frozen=True)
class _Blocks:
    """A chain in G blocks of B steps, filled up with sequences of nothing.

    Blocks are the last axis, along which all sums are whole vectors: `begins` (B, G), `emissions`
    (B, K, G). `peaks` (T,) are the largest emissions, taken out for precision.
    """

    chain: Chain
    reduce: Reduce
    begins: Tensor
    emissions: Tensor
    peaks: Tensor

    @classmethod
    def of(cls, chain: Chain, reduce: Reduce) -> _Blocks:
        (num, k), peaks = chain.emissions.shape, chain.emissions.amax(1)
        size = math.isqrt(num - 1) + 1 if k <= _MOST_STATES_IN_BLOCKS else num
        more = -num % size
        emissions = torch.nn.functional.pad(chain.emissions - peaks.unsqueeze(1), (0, 0, 0, more))
        begins = torch.nn.functional.pad(chain.begins, (0, more), value=True)
        blocks = emissions.view(-1, size, k).permute(1, 2, 0).contiguous()
        return cls(chain, reduce, begins.view(-1, size).T.contiguous(), blocks, peaks)

    def step(self, number: int) -> Tensor:
        """`log p(z_t = j, x_t | z_{t−1} = i)` at that place of all blocks, (K, K, G)."""
        begins = self.begins[number]
        into = self.chain.transitions.unsqueeze(-1)
        if bool(begins.any()):
            into = torch.where(begins, self.chain.initial.unsqueeze(-1), into)
        return into + self.emissions[number]

    @cached_property
    def products(self) -> tuple[Tensor, ...]:
        """Those of all steps of each block, G times (K, K)."""
        total = self.step(0)
        # One block passes nothing on.
        for number in range(1, len(self.begins) if self.begins.shape[1] > 1 else 1):
            total = self.reduce(total.unsqueeze(2) + self.step(number), 1)
        return total.permute(2, 0, 1).contiguous().unbind()

    def forward(self) -> tuple[Tensor, Tensor]:
        """`log p(z_t, x_1..t)` up to a constant in each block (T, K), and log p(x_1..t) (T,)."""
        state, scale = torch.zeros_like(self.chain.initial), self.peaks.new_zeros(())
        entered, scales = [], []
        for product in self.products:
            entered.append(state)
            scales.append(scale)
            state = self.reduce(state.unsqueeze(-1) + product, 0)
            scale, state = scale + state.amax(), state - state.amax()
        here, found = torch.stack(entered, -1), []
        for number in range(len(self.begins)):
            here = self.reduce(here.unsqueeze(1) + self.step(number), 0)
            found.append(here)
        ahead = torch.stack(found)
        # The chain begins in no state: each of the K that stand for it has counted once.
        sums = ahead.logsumexp(1) + torch.stack(scales) - math.log(len(state))
        up_to = sums.T.flatten()[: len(self.peaks)] + self.peaks.cumsum(0)
        return self._joined(ahead), up_to

    def backward(self) -> Tensor:
        """`log p(x_{t+1..T} | z_t)` up to a constant in each block, (T, K)."""
        state, left = torch.zeros_like(self.chain.initial), []
        for product in reversed(self.products):
            left.append(state)
            state = self.reduce(product + state, 1)
            state = state - state.amax()
        here, found = torch.stack(left[::-1], -1), []
        for number in reversed(range(len(self.begins))):
            found.append(here)
            here = self.reduce(self.step(number) + here, 1)
        return self._joined(torch.stack(found[::-1]))

    def _joined(self, blocks: Tensor) -> Tensor:
        """(B, K, G) as one chain again, without what filled it up."""
        return blocks.permute(2, 0, 1).flatten(0, 1)[: len(self.peaks)]


def _log_sum(x: Tensor, dim: int) -> Tensor:
    """logsumexp; torch's own is several times slower where `dim` is not the last."""
    top = x.amax(dim, keepdim=True).clamp_min(torch.finfo(x.dtype).min)
    return (x - top).exp_().sum(dim).log_() + top.squeeze(dim)
