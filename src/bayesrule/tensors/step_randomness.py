"""The randomness of one step: its streams, and which of them each rank draws from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Generator

from bayesrule.tensors import distributed, seeds
from bayesrule.tensors.network import forked_randomness
from bayesrule.types import State

Streams = tuple[Any, Any, Callable[[], AbstractContextManager[None]]]
"""Generators of targets and of weights, and the context in which the module itself draws."""

# Streams of randomness within one step, and their number per rank.
TARGETS, MODULE, DRAWS, _STREAMS = 0, 1, 2, 3
# For the divergence after a step; away from the streams of all ranks.
DIVERGENCE = 4000


@dataclass(frozen=True)
class StepRandomness:
    """The random streams of steps; they follow from the seed, the step, the purpose and the rank.

    With `shared_draws` all ranks draw the same weights.
    """

    shared_draws: bool = False

    def stream(self, kind: int) -> int:
        """The number of a stream on this rank."""
        shared = kind == DRAWS and self.shared_draws
        return kind + _STREAMS * (0 if shared else distributed.rank())

    def generator(self, state: State, kind: int) -> Generator:
        """A fresh generator of one stream."""
        device = state.posterior.device
        return seeds.generator(device, state.seed, state.step, self.stream(kind))

    def streams(self, state: State) -> Streams:
        """Generators of targets and of weights, and the context in which the module draws."""
        targets, draws = (self.generator(state, kind) for kind in (TARGETS, DRAWS))
        key = seeds.key(state.seed, state.step, self.stream(MODULE))
        return targets, draws, partial(forked_randomness, state.posterior.device, key)
