"""The epochs of one training: how it ends, what it remembers, and how it recovers."""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from bayesrule.learner import Learner
from bayesrule.schedules import as_schedule
from bayesrule.tensors import distributed
from bayesrule.training import checkpoint
from bayesrule.training.checkpoint import CheckpointError, Epoch
from bayesrule.training.folder import Best, Folder, Reached
from bayesrule.training.interrupt import delayed_interrupt
from bayesrule.training.logs import Logs
from bayesrule.training.net import Net, Trouble, copied
from bayesrule.training.progress import Progress
from bayesrule.training.settling import Fall, Settling, most_epochs
from bayesrule.types import Info, State

Step = Callable[..., tuple[State, Info]]

# A training that diverges continues with this share of its learning rate, this often at most.
_SLOWER, _MOST_TIMES = 0.25, 3
# If it diverges within this many steps, it starts over.
_EARLY = 500


class TrainingWarning(UserWarning):
    """Training went wrong and continues in another way; the message says how."""


def plain_step(learner: Learner, accumulate: int = 1) -> Step:
    """The learner's own step, unchecked: numbers are checked at the end of an epoch."""
    return partial(learner.step, checked=False, accumulate=accumulate)


@dataclass
class Loop:
    """The epochs of one net, from where its history ends."""

    net: Net
    epochs: int | None = None
    patience: int | None = None
    callback: Callable[[Learner, State, Epoch], None] | None = None
    on_step: Callable[[State, Info], None] | None = None
    logs: Logs = field(default_factory=Logs)
    stepping: Callable[[Learner], Step] = plain_step
    folder: Folder | None = None
    best: Best | None = None
    # How often training diverged, and the state at the end of its last good epoch.
    slower: int = 0
    good: State | None = None
    # The batches of the current epoch so far, and the sum of their losses.
    batches: int = 0
    total: Tensor = field(default_factory=partial(torch.zeros, (), dtype=torch.float64))

    def __post_init__(self) -> None:
        self._first_step = self.net.state.step
        self._settling = Settling(len(self.net.batches))

    @property
    def done(self) -> int:
        """How many steps have been taken."""
        return len(self.net.history) * len(self.net.batches) + self.batches

    def use(self, folder: Folder, resume: bool) -> None:
        """Resumes from a folder's last checkpoint, if there is one."""
        self.folder, net = folder, self.net
        other_form = checkpoint.other_form(net.learner, net.seed)
        reached = folder.read(net.state, other_form) if resume else None
        if reached is None:
            return
        epochs, begun = len(reached.history), reached.batches > 0
        if self.epochs is not None and epochs + begun > self.epochs:
            raise CheckpointError(
                f"{folder.path} holds a run of {epochs} epochs{' and more' * begun}, this one has "
                f"epochs={self.epochs}. Ask for as many or more, take the run that is there with "
                "load_run, or use another folder."
            )
        before = reached.history[-1]["step"] if reached.history else net.state.step
        if reached.state.step != before + reached.batches:
            raise checkpoint.damaged(folder.path, f"its state is of step {reached.state.step}")
        net.state, net.history, self.best = reached.state, reached.history, reached.best
        self.slower, self.good = reached.slower, reached.good
        if begun:
            self.batches, self.total = reached.batches, self.total + reached.total

    def run(self, bar: Progress) -> None:
        """Trains for the epochs that are left, or until settled, and finishes the net."""
        net, step, schedule = self.net, None, None
        self.good = self.good or self._fallback()
        self.logs.begin(net.state.step)
        with delayed_interrupt(self.folder is not None) as interrupted:
            while not self._is_over():
                if step is None or schedule != (self.slower, self.fall()):
                    schedule = self.slower, self.fall()
                    step = self.stepping(self._bound())
                    self._show_end(bar)
                self._epoch(bar, step, interrupted)
                if interrupted():
                    self._stop()
                if self.folder is not None and (self._is_over() or self.folder.is_due()):
                    self.folder.write(self._reached())
        self.logs.end()
        net.finish(self.best.state if self.patience and self.best else net.state)

    def fall(self) -> Fall | None:
        """When the learning rate begins to fall and training ends; None until that is known."""
        if self.epochs is not None:
            return Fall(0, self.epochs)
        if self.patience is not None:
            most = most_epochs(len(self.net.batches))
            return Fall(most, most)
        settled = self._settling.epoch(self.net.history)
        return None if settled is None else Fall.after(settled, self.net.learner.rule)

    def _bound(self) -> Learner:
        """The learner with its present learning rate, perhaps reduced or falling."""
        learner, fall = self.net.learner, self.fall()
        rule = learner.rule
        if self.slower:
            rule = rule.slower(_SLOWER**self.slower) or rule
        if fall is not None:
            rule = fall.bound(rule, self._first_step, len(self.net.batches))
        return learner if rule is learner.rule else learner.with_rule(rule)

    def _show_end(self, bar: Progress) -> None:
        # Several nets share one bar.
        fall = self.fall()
        if fall is not None and self.net.number is None:
            bar.ends_at(fall.end * len(self.net.batches))

    def _reached(self) -> Reached:
        net, total = self.net, float(self.total)
        good = self.good if self.batches else None
        return Reached(net.state, net.history, self.best, self.batches, total, self.slower, good)

    def _is_over(self) -> bool:
        """Whether training has ended; an epoch that has begun is always finished."""
        fall, epochs = self.fall(), len(self.net.history)
        if self.batches:
            return False
        waited = 0 if self.best is None else epochs - self.best.epoch
        if self.patience is not None and waited >= self.patience:
            return True
        return fall is not None and epochs >= fall.end

    def _epoch(self, bar: Progress, step: Step, interrupted: Callable[[], bool]) -> None:
        net, begun, epoch = self.net, time.perf_counter(), len(self.net.history)
        batches = itertools.islice(net.batches.epoch(epoch, net.seed), self.batches, None)
        for batch in net.placed(batches):
            net.state, info = step(net.state, batch, donate=True)
            self.total = self.total.to(info.loss) + info.loss
            self.batches += 1
            self.logs.step(net.state, info, epoch + 1, last=self.batches == len(net.batches))
            if self.on_step is not None:
                self.on_step(net.state, info)
            bar.advance()
            if interrupted():
                self._stop()
        loss = float(self.total) / max(self.batches, 1) / net.learner.num_data
        if trouble := net.trouble(net.state, loss):
            before = self.done
            self._go_back(trouble)
            bar.advance(self.done - before)
            return
        self.batches, self.total = 0, torch.zeros(())
        settled = net.settled(net.state, epoch)
        score = net.score(settled)
        net.note(net.state.step, loss, score, begun)
        self.logs.epoch(net.history[-1])
        self.good = self._fallback()
        self._remember(score, settled)
        bar.note(loss=loss, validation=score)
        if self.callback is not None:
            self.callback(net.learner, copied(settled), net.history[-1])

    def _fallback(self) -> State | None:
        """A copy of the state to return to after divergence; None without a rate to reduce."""
        return copied(self.net.state) if self.net.has_rate else None

    def _go_back(self, trouble: Trouble) -> None:
        """Returns to the end of the last good epoch, with a smaller learning rate.

        Early in training, and where this was not enough, it returns to the beginning: weights may
        have gone wrong before the loss did.
        """
        net, epochs = self.net, len(self.net.history)
        if self.slower == _MOST_TIMES or not net.can_recover():
            net.refuse(trouble, net.state.step, self.slower)
        assert self.good is not None
        again = self.slower > 0 or epochs < 2 or self.done <= _EARLY
        self.slower += 1
        self.batches, self.total = 0, torch.zeros(())
        if again:
            net.restart()
            self.best, self._settling = None, Settling(len(net.batches))
        else:
            net.state = copied(self.good)
        self.logs.begin(net.state.step)
        rule: Any = self._bound().rule
        rate = as_schedule(rule.learning_rate)(net.state.step)
        whence = "begins again" if again else f"goes on from epoch {epochs}"
        if distributed.is_main():
            warnings.warn(
                f"{net.name}Training diverged in epoch {epochs + 1}: {trouble.in_a_sentence}. It "
                f"{whence} with a quarter of the learning rate ({rate:.4g}).",
                TrainingWarning,
                stacklevel=5,
            )

    def _stop(self) -> NoReturn:
        """Writes a checkpoint, perhaps in the middle of an epoch, and stops."""
        assert self.folder is not None
        self.folder.write(self._reached())
        raise KeyboardInterrupt(
            f"Interrupted after {len(self.net.history)} epochs and {self.batches} batches. A "
            f"checkpoint is in {self.folder.path}: the same call goes on from there."
        )

    def _remember(self, score: float | None, state: State) -> None:
        """Keeps the best state, to which early stopping returns."""
        if self.patience is None or score is None:
            return
        score = -math.inf if math.isnan(score) else score
        if self.best is None or score > self.best.score:
            self.best = Best(score, len(self.net.history), copied(state))
