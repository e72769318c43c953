"""When training has settled: a function of the losses of its epochs and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance
from typing import NamedTuple

from bayesrule.rules import Rule
from bayesrule.training.checkpoint import Epoch

# Training is looked at when it has taken this many steps and epochs, and ends its search at those.
LEAST_STEPS, LEAST_EPOCHS = 500, 12
MOST_STEPS, MOST_EPOCHS = 5_000, 20
# Of nats for each example, or of all that was gained so far where that is less.
_SMALL_SHARE = 0.03


class Fall(NamedTuple):
    """The epochs after which the learning rate begins to fall, and after which training ends."""

    start: int
    end: int

    @classmethod
    def after(cls, settled: int, rule: Rule) -> Fall:
        """Half as many epochs again, where the rule has a rate that falls."""
        falls = rule.falling(0, 1) is not rule
        return cls(settled, settled + (settled + 1) // 2 if falls else settled)

    def bound(self, rule: Rule, first: int, steps: int) -> Rule:
        """The rule with a rate that falls then; epochs have `steps` steps, the first is `first`."""
        return rule.falling(first + self.start * steps, (self.end - self.start) * steps)


def most_epochs(steps: int) -> int:
    """After how many epochs of so many steps training counts as settled, whatever its losses."""
    return max(MOST_EPOCHS, math.ceil(MOST_STEPS / steps))


class Settling:
    """Finds the epoch at which training has settled, in a history that grows.

    It looks at the history now and then, whenever that is longer by a tenth, and always at the same
    lengths: what it finds is the same for a run that was interrupted.

    >>> history = [{"loss": 1.0 / (1 + k)} for k in range(100)]
    >>> Settling(steps=50).epoch(history[:12]), Settling(steps=50).epoch(history)
    (None, 28)
    """

    def __init__(self, steps: int) -> None:
        self._most = most_epochs(steps)
        self._next = max(LEAST_EPOCHS, math.ceil(LEAST_STEPS / steps))
        self._found: int | None = None

    def epoch(self, history: Sequence[Epoch]) -> int | None:
        """After which epoch training had settled; None if it has not yet."""
        while self._found is None and len(history) >= self._next:
            losses = [figures["loss"] for figures in history[: self._next]]
            if self._next >= self._most or has_settled(losses):
                self._found = self._next
            self._next = min(max(self._next + 1, math.ceil(1.1 * self._next)), self._most)
        return self._found


def has_settled(losses: Sequence[float]) -> bool:
    """Whether the last third of the epochs gained little over the third before.

    Little is no more than the standard error of the gain, less than 0.03 nats for each example, or
    less than that share of the whole gain.

    >>> has_settled([3.0, 2.0, 1.0, 0.5, 0.2, 0.1]), has_settled([3.0, 1.0, 0.1, 0.1, 0.1, 0.1])
    (False, True)
    """
    third = len(losses) // 3
    before, last = losses[-2 * third : -third], losses[-third:]
    gain, whole = fmean(before) - fmean(last), losses[0] - fmean(last)
    error = math.sqrt((variance(before) + variance(last)) / third)
    return gain <= max(error, _SMALL_SHARE * min(1.0, max(whole, 0.0)))
