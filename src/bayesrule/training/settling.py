"""When training has settled: a function of the losses of its epochs and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance
from typing import NamedTuple

from bayesrule.rules import Rule
from bayesrule.training.checkpoint import Epoch

# Training may settle after so many steps and epochs, and has settled in any case after the most.
LEAST_STEPS, LEAST_EPOCHS = 500, 12
MOST_STEPS, MOST_EPOCHS = 5_000, 20
# In nats per example, or as a share of the whole gain where that is less than a nat.
_SMALL_SHARE = 0.03


class Fall(NamedTuple):
    """The epochs after which the learning rate begins to fall, and after which training ends."""

    start: int
    end: int

    @classmethod
    def after(cls, settled: int, rule: Rule) -> Fall:
        """A rate that falls takes half as many epochs again; otherwise training ends at once."""
        falls = rule.falling(0, 1) is not rule
        return cls(settled, settled + (settled + 1) // 2 if falls else settled)

    def bound(self, rule: Rule, first: int, steps: int) -> Rule:
        """The rule with its rate falling then; epochs have `steps` steps, the first is `first`."""
        return rule.falling(first + self.start * steps, (self.end - self.start) * steps)


def most_epochs(steps: int) -> int:
    """The number of epochs of `steps` steps after which training counts as settled anyway."""
    return max(MOST_EPOCHS, math.ceil(MOST_STEPS / steps))


class Settling:
    """Finds the epoch at which training has settled, in a history that grows.

    It looks at the history whenever that is longer by a tenth, always at the same lengths, so that
    a run that was interrupted settles at the same epoch.

    >>> history = [{"loss": 1.0 / (1 + k)} for k in range(100)]
    >>> Settling(steps=50).epoch(history[:12]), Settling(steps=50).epoch(history)
    (None, 28)
    """

    def __init__(self, steps: int) -> None:
        self._most = most_epochs(steps)
        self._next = max(LEAST_EPOCHS, math.ceil(LEAST_STEPS / steps))
        self._settled: int | None = None

    def epoch(self, history: Sequence[Epoch]) -> int | None:
        """The epoch after which training had settled; None if it has not yet."""
        while self._settled is None and len(history) >= self._next:
            losses = [figures["loss"] for figures in history[: self._next]]
            if self._next >= self._most or has_settled(losses):
                self._settled = self._next
            self._next = min(max(self._next + 1, math.ceil(1.1 * self._next)), self._most)
        return self._settled


def has_settled(losses: Sequence[float]) -> bool:
    """Whether the last third of the epochs gained little over the third before.

    Little is at most the standard error of the gain, or 0.03 times the whole gain, of which at most
    one nat per example counts.

    >>> has_settled([3.0, 2.0, 1.0, 0.5, 0.2, 0.1]), has_settled([3.0, 1.0, 0.1, 0.1, 0.1, 0.1])
    (False, True)
    """
    third = len(losses) // 3
    before, last = losses[-2 * third : -third], losses[-third:]
    gain, whole = fmean(before) - fmean(last), losses[0] - fmean(last)
    error = math.sqrt((variance(before) + variance(last)) / third)
    return gain <= max(error, _SMALL_SHARE * min(1.0, max(whole, 0.0)))
