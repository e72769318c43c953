"""Training from the first batch to the last: validation, early stopping, checkpoints, resume."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from bayesrule.execution.compiled import Compiled
from bayesrule.execution.replayed import Replayed, replay_obstacle
from bayesrule.learner import Learner
from bayesrule.predicting.predict import How, predict
from bayesrule.predicting.prediction import Prediction
from bayesrule.training import checkpoint, fingerprint
from bayesrule.training.batches import as_batches, whole_number
from bayesrule.training.checkpoint import CheckpointError, Epoch
from bayesrule.training.folder import Best, Folder, Reached, read_final
from bayesrule.training.interrupt import delayed_interrupt
from bayesrule.training.lock import occupied
from bayesrule.training.net import Net, TrainingError, copied, predictive_on_the_way
from bayesrule.training.progress import Progress
from bayesrule.types import Info, State

Step = Callable[..., tuple[State, Info]]


@dataclass(frozen=True)
class Run:
    """A finished training: the learner, its state, and the figures of each epoch."""

    learner: Learner
    state: State
    history: list[Epoch] = field(default_factory=list)
    best_epoch: int | None = None

    def predict(self, x: Any, how: How | None = None, *, seed: int = 0) -> Prediction:
        """What is believed of new inputs."""
        return predict(self.learner, self.state, x, how, seed=seed)

    def parts(self) -> dict[str, str]:
        """The names of the learner's parts."""
        return self.learner.parts()


def fit(
    learner: Learner,
    train: Any,
    *,
    epochs: int = 100,
    validation: Any = None,
    patience: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    resume: bool = True,
    checkpoint_seconds: float = 10.0,
    state: State | None = None,
    progress: bool | None = None,
    fused: bool = False,
    callback: Callable[[Learner, State, Epoch], None] | None = None,
    on_step: Callable[[State, Info], None] | None = None,
) -> Run:
    """Trains a learner and returns the run.

    - `train`: `(x, y)`, a torch Dataset, or a DataLoader of `(x, y)` batches.
    - `validation`: `(x, y)`; its mean log-likelihood is shown after each epoch, and with `patience`
      training stops after so many epochs without a better one, and goes back to the best.
    - `out`: a folder for checkpoints. A run that was interrupted there, even by `kill -9`, goes on
      from the last checkpoint and ends bit for bit as if it had not been; a finished one goes on
      where more epochs are asked for. A folder of another run, one that another process trains in,
      and files that a run did not write are refused and left as they are; `resume=False` starts
      over.
    - `state`: where training begins, such as the state of an earlier run, instead of the module's
      own weights.
    - `fused`: steps are compiled (`Compiled`), for `tagi` on large nets or for many steps; learners
      whose steps are all alike (`mean_field`, `noisy_kfac`) replay theirs on a GPU (`Replayed`).
    - `callback(learner, state, figures)` is called after each epoch, `on_step(state, info)` after
      each step, with a state that the next step changes.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, vogn
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> learner = vogn(nn.Linear(1, 1), GaussianLikelihood(noise=0.1), num_data=20)
    >>> run = fit(learner, (x, 2 * x), epochs=3)
    >>> len(run.history), run.predict(x).mean.shape
    (3, torch.Size([20, 1]))
    """
    whole_number("epochs", epochs)
    if patience is not None and validation is None:
        raise ValueError("Early stopping (patience) needs validation data.")
    if patience is not None:
        whole_number("patience", patience)
    net = Net(learner, as_batches(train, batch_size), seed, validation, first=state)
    loop = Loop(net, epochs, patience, callback, on_step)
    with contextlib.nullcontext() if out is None else occupied(out):
        if out is not None:
            folder = Folder(out, _facts(net, batch_size, patience), checkpoint_seconds)
            folder.tidy(everything=not resume)
            loop.use(folder, resume)
        step: Step = partial(learner.step, checked=False)
        if fused:
            replayed = replay_obstacle(learner) is None
            step = Replayed(learner).step if replayed else Compiled(learner).step
        title = f"{learner.parts()['posterior']} × {learner.parts()['curvature']}"
        with Progress(epochs * len(net.batches), loop.done, title, progress) as bar:
            loop.run(bar, step)
        best_epoch = None if loop.best is None else loop.best.epoch
        if loop.folder is not None:
            loop.folder.write_final(net.state, net.history, best_epoch)
    return Run(learner, net.state, net.history, best_epoch)


@dataclass
class Loop:
    """The epochs of one net, from where its history ends."""

    net: Net
    epochs: int
    patience: int | None = None
    callback: Callable[[Learner, State, Epoch], None] | None = None
    on_step: Callable[[State, Info], None] | None = None
    folder: Folder | None = None
    best: Best | None = None
    # Of the epoch that is under way: its batches so far, and the sum of their losses.
    batches: int = 0
    total: Tensor = field(default_factory=partial(torch.zeros, (), dtype=torch.float64))

    @property
    def done(self) -> int:
        """How many steps have been taken."""
        return len(self.net.history) * len(self.net.batches) + self.batches

    def use(self, folder: Folder, resume: bool) -> None:
        """Goes on where a folder's last checkpoint left off, if there is one."""
        self.folder, net = folder, self.net
        other_form = checkpoint.other_form(net.learner, net.seed)
        found = folder.read(net.state, other_form) if resume else None
        if found is None:
            return
        epochs, begun = len(found.history), found.batches > 0
        if epochs + begun > self.epochs:
            raise CheckpointError(
                f"{folder.path} holds a run of {epochs} epochs{' and more' * begun}, this one has "
                f"epochs={self.epochs}. Ask for as many or more, take the run that is there with "
                "load_run, or use another folder."
            )
        before = found.history[-1]["step"] if found.history else net.state.step
        if found.state.step != before + found.batches:
            raise checkpoint.damaged(folder.path, f"its state is of step {found.state.step}")
        net.state, net.history, self.best = found.state, found.history, found.best
        if begun:
            self.batches, self.total = found.batches, self.total + found.total

    def run(self, bar: Progress, step: Step) -> None:
        """All epochs that are left, or as many as early stopping lets, and the end of training."""
        net = self.net
        with delayed_interrupt(self.folder is not None) as interrupted:
            while len(net.history) < self.epochs and not self._should_stop():
                self._epoch(bar, step, interrupted)
                if interrupted():
                    self._stop()
                final = len(net.history) == self.epochs or self._should_stop()
                if self.folder is not None and (final or self.folder.is_due()):
                    self.folder.write(self._reached())
        net.finish(self.best.state if self.patience and self.best else net.state)

    def _reached(self) -> Reached:
        history = self.net.history
        return Reached(self.net.state, history, self.best, self.batches, float(self.total))

    def _should_stop(self) -> bool:
        if self.patience is None or self.best is None:
            return False
        return len(self.net.history) - self.best.epoch >= self.patience

    def _epoch(self, bar: Progress, step: Step, interrupted: Callable[[], bool]) -> None:
        net, begun, epoch = self.net, time.perf_counter(), len(self.net.history)
        batches = itertools.islice(net.batches.epoch(epoch, net.seed), self.batches, None)
        for batch in net.placed(batches):
            net.state, info = step(net.state, batch, donate=True)
            self.total = self.total.to(info.loss) + info.loss
            self.batches += 1
            if self.on_step is not None:
                self.on_step(net.state, info)
            bar.advance()
            if interrupted():
                self._stop()
        loss = float(self.total) / max(self.batches, 1) / net.learner.num_data
        net.check(net.state, loss)
        self.batches, self.total = 0, torch.zeros(())
        settled = net.settled(net.state, epoch)
        score = net.score(settled)
        net.note(net.state.step, loss, score, begun)
        self._remember(score, settled)
        bar.note(loss=loss, validation=score)
        if self.callback is not None:
            self.callback(net.learner, copied(settled), net.history[-1])

    def _stop(self) -> NoReturn:
        """Writes a checkpoint, perhaps in the middle of an epoch, and stops."""
        assert self.folder is not None
        self.folder.write(self._reached())
        raise KeyboardInterrupt(
            f"Interrupted after {len(self.net.history)} epochs and {self.batches} batches. A "
            f"checkpoint is in {self.folder.path}: the same call goes on from there."
        )

    def _remember(self, score: float | None, state: State) -> None:
        """Keeps the best state, which early stopping goes back to."""
        if self.patience is None or score is None:
            return
        score = -math.inf if math.isnan(score) else score
        if self.best is None or score > self.best.score:
            self.best = Best(score, len(self.net.history), copied(state))


def _facts(net: Net, batch_size: int, patience: int | None) -> dict[str, Any]:
    """What must be the same for a run to be gone on with."""
    facts = {
        **fingerprint.settings(net.learner),
        "batch_size": batch_size,
        "steps_per_epoch": len(net.batches),
        "seed": net.seed,
        "early_stopping": patience is not None,
        "first weights": net.first_weights(),
        **net.batches.facts(),
    }
    if net.validation is not None:
        x, y = net.validation
        parts = map(torch.as_tensor, (*(x if isinstance(x, tuple) else (x,)), y))
        facts["validation data"] = fingerprint.digest(parts)
    return facts


def load_run(learner: Learner, out: str | os.PathLike[str]) -> Run:
    """A finished run from its folder, for the learner that made it."""
    other_form = checkpoint.other_form(learner)
    return Run(learner, *read_final(out, learner.init(), other_form, fingerprint.settings(learner)))


__all__ = ["Epoch", "Run", "TrainingError", "fit", "load_run", "predictive_on_the_way"]
