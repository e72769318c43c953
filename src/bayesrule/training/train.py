"""Training from the first batch to the last: validation, early stopping, checkpoints, resume."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from bayesrule.execution.compiled import Compiled
from bayesrule.execution.replayed import Replayed, replay_obstacle
from bayesrule.learner import Learner
from bayesrule.predicting.evaluate import scores_of
from bayesrule.predicting.exporting import Exported, exported
from bayesrule.predicting.predict import How, predict
from bayesrule.predicting.prediction import Prediction
from bayesrule.tensors.inputs import as_pair, parts
from bayesrule.tensors.unfit import whole_number
from bayesrule.training import checkpoint, fingerprint
from bayesrule.training.batches import as_batches, gathered
from bayesrule.training.calibrating import Calibration, calibrated, can_calibrate, held_out
from bayesrule.training.checkpoint import CheckpointError, Epoch
from bayesrule.training.folder import Folder, read_final, read_members, write_members
from bayesrule.training.lock import occupied
from bayesrule.training.logs import Logs
from bayesrule.training.loop import Loop, Step, TrainingWarning, plain_step
from bayesrule.training.net import Net, TrainingError, predictive_on_the_way
from bayesrule.training.progress import Progress
from bayesrule.training.warm_start import beginning, started_at
from bayesrule.types import Info, State


@dataclass(frozen=True)
class Run:
    """A finished training: the learner, its state, and the figures of each epoch.

    An ensemble also has the states of `others`, trainings of the same learner from other first
    weights (`Run.together`). Its predictions are the equal mixture of those of all states.
    """

    learner: Learner
    state: State
    history: list[Epoch] = field(default_factory=list)
    best_epoch: int | None = None
    others: tuple[State, ...] = ()

    @classmethod
    def together(cls, runs: Sequence[Run]) -> Run:
        """An ensemble of several trainings of one net; its history is that of the first.

        >>> from bayesrule import GaussianLikelihood, vogn
        >>> from bayesrule.training import fit_many
        >>> from torch import nn
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
        >>> def build(x, y):
        ...     return vogn(nn.Linear(1, 1), GaussianLikelihood(noise=0.1), num_data=len(x))
        >>> run = Run.together(fit_many(build, [(x, 2 * x)] * 5, epochs=3))
        >>> len(run.states), run.predict(x).mean.shape
        (5, torch.Size([20, 1]))
        """
        first, *others = runs
        return replace(first, others=tuple(state for run in others for state in run.states))

    @property
    def states(self) -> tuple[State, ...]:
        """The state of each member; most runs have one."""
        return self.state, *self.others

    def predict(self, x: Any, how: How | None = None, *, seed: int = 0) -> Prediction:
        """The prediction of new inputs: tensors, a Dataset or a loader."""
        return predict(self.learner, self.states, x, how, seed=seed)

    def scores(self, data: Any, how: How | None = None, *, seed: int = 0) -> dict[str, float]:
        """How good predictions are on data: a pair (x, y), a Dataset or a loader of batches."""
        return scores_of(self.learner, self.states, data, how, seed=seed)

    def exported(self, example: Any, how: How | None = None, *, seed: int = 0) -> Exported:
        """The predictions as one module: `run.exported(x, Draws(32)).write("model.onnx")`."""
        return exported(self.learner, self.states, example, how, seed=seed)

    def parts(self) -> dict[str, str]:
        """The names of the learner's parts."""
        return self.learner.parts()


def fit(
    learner: Learner,
    train: Any,
    *,
    epochs: int | None = None,
    validation: Any = None,
    patience: int | None = None,
    batch_size: int = 32,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    resume: bool = True,
    checkpoint_seconds: float = 10.0,
    state: State | None = None,
    progress: bool | None = None,
    log: Any = None,
    fused: bool = False,
    accumulate: int = 1,
    calibrate: bool | Calibration | None = None,
    warm_start: bool | int | None = None,
    choose: Mapping[str, Sequence[float]] | None = None,
    callback: Callable[[Learner, State, Epoch], None] | None = None,
    on_step: Callable[[State, Info], None] | None = None,
) -> Run:
    """Trains a learner and returns the run.

    Without `epochs` it trains until the loss has settled. A learning rate that is a
    `schedules.falling`, the default of most methods, then falls to zero within half as many epochs
    again; with `epochs` it falls from the first to the last of them. Other learning rates follow
    their own schedules, or stay as they are.

    If the loss explodes, or numbers are no longer finite, training returns to the end of the last
    good epoch and continues with a quarter of the learning rate, up to three times; a
    `TrainingWarning` says so.

    - `train`: `(x, y)`, a torch Dataset, or a DataLoader of `(x, y)` batches. Several inputs are a
      tuple, inputs by name a dict; one dict may hold both, its targets under `labels`.
    - `validation`: data of the same kinds. Their mean log-likelihood is shown after each epoch;
      with `patience`, training stops after so many epochs without a better one and returns to the
      best epoch, whether or not the loss has settled.
    - `out`: a folder for checkpoints. An interrupted run, even after `kill -9`, resumes from the
      last checkpoint and ends bit for bit as if it had not been interrupted; a finished one
      continues if more epochs are asked for. A folder of another run, one that another process
      trains in, and files that a run did not write are refused and left as they are;
      `resume=False` starts over.
    - `state`: where training begins, such as the state of an earlier run, instead of the module's
      own weights.
    - `log`: a csv file or a folder for TensorBoard, which gets the loss, KL and ELBO of the last
      step of each epoch with the epoch's own figures; `training.logs` has logs that also write
      every so many steps. A resumed run appends to its log.
    - `fused`: steps are compiled (`Compiled`), for `tagi` on large nets or for many steps; learners
      whose steps are all alike (`mean_field`, `noisy_kfac`) replay theirs on a GPU (`Replayed`).
    - `accumulate`: each batch is processed in so many pieces, one after another, for less memory;
      their sums, and so the steps, are those of the whole batch.
    - `calibrate`: two factors, of the outputs and of their deviations from the mean, are learned
      from held-out examples, a tenth of all and at most 1,000, or from `validation` where it is
      given; they set how sure the probabilities of classes are. None calibrates for
      `CategoricalLikelihood()` and at least 1,000 examples in tensors; False trains on all. True
      also calibrates a noise that is learned; a `Calibration` is applied as it is.
    - `warm_start`: training begins at the most probable weights, found by a first training until
      its loss has settled, or for so many epochs (in the folder `start` of `out`). None does so for
      learners that ask for it (`vogn`, `ogn`, `ivon`) if neither `epochs` nor `state` is given.
    - `choose`: values of `temperature` and `prior_precision` to choose from, such as
      `{"temperature": (1.0, 0.3, 0.1)}`. Each combination trains without a fifth of the rows and is
      scored on them; the best, which `run.learner` has, then trains on all rows.
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
    train, validation = as_pair(train), gathered(as_pair(validation))
    if epochs is not None:
        whole_number("epochs", epochs)
    if patience is not None and validation is None:
        raise ValueError("Early stopping (patience) needs validation data.")
    if patience is not None:
        whole_number("patience", patience)
    if choose is not None:
        if state is not None:
            raise ValueError("choose trains from the module's own weights; leave state out.")
        from bayesrule.training.choosing import chosen_learner  # imports this module

        learner = chosen_learner(learner, train, choose, epochs, batch_size=batch_size, seed=seed)
    if fused and accumulate != 1:
        raise ValueError("A fused step takes a whole batch; leave accumulate or fused out.")
    logs = Logs.of(log)
    stepping = _fused_step if fused else partial(plain_step, accumulate=accumulate)
    train, held = _held_out(learner, train, validation, seed, calibrate)
    num_held = 0 if held is None or held is validation else len(held[1])
    batches = as_batches(train, batch_size)
    keeping = _Keeping(out, batch_size, patience, resume, checkpoint_seconds, progress)
    with contextlib.nullcontext() if out is None else occupied(out):
        if (length := _warm_epochs(learner, warm_start, epochs, state)) is not False:
            start = Loop(Net(beginning(learner), batches, seed, None, held=num_held), length)
            start.stepping = stepping
            keeping.inside("start").train(start)
            state = started_at(learner, start.net.state, seed)
        net = Net(learner, batches, seed, validation, first=state, held=num_held)
        loop = Loop(net, epochs, patience, callback, on_step, logs, stepping)
        keeping.train(loop)
        if isinstance(calibrate, Calibration):
            net.state = calibrate.applied(net.state)
        elif held is not None:
            net.state = calibrated(learner, net.state, held, seed)
        best_epoch = None if loop.best is None else loop.best.epoch
        if loop.folder is not None:
            loop.folder.write_final(net.state, net.history, best_epoch)
    return Run(learner, net.state, net.history, best_epoch)


def _warm_epochs(
    learner: Learner, asked: bool | int | None, epochs: int | None, state: State | None
) -> int | Literal[False] | None:
    """The epochs of the warm start: None trains until settled, False leaves it out."""
    if asked is None:
        return None if learner.warm_start and epochs is None and state is None else False
    if asked is False:
        return False
    if state is not None:
        raise ValueError("warm_start looks for the weights to begin with; leave state out.")
    return None if asked is True else whole_number("warm_start", asked)


@dataclass(frozen=True)
class _Keeping:
    """How a training is shown and, where there is a folder, kept in it."""

    out: str | os.PathLike[str] | None
    batch_size: int
    patience: int | None
    resume: bool
    seconds: float
    progress: bool | None
    # Whether another training's files in the folder may go, since they can be made again.
    derived: bool = False

    def inside(self, name: str) -> _Keeping:
        """The same for a training before this one, in a folder inside this one."""
        out = None if self.out is None else Path(self.out) / name
        return replace(self, out=out, patience=None, derived=True)

    def train(self, loop: Loop) -> None:
        """Trains for the epochs that are left."""
        if self.out is not None:
            self._use_folder(loop, self.out)
        parts, epochs = loop.net.learner.parts(), loop.epochs
        total = None if epochs is None else epochs * len(loop.net.batches)
        title = f"{parts['posterior']} × {parts['curvature']}"
        with Progress(total, loop.done, title, self.progress) as bar:
            loop.run(bar)

    def _use_folder(self, loop: Loop, out: str | os.PathLike[str]) -> None:
        facts = _facts(loop.net, self.batch_size, self.patience)
        folder = Folder(out, facts, self.seconds)
        folder.tidy(everything=not self.resume)
        try:
            loop.use(folder, self.resume)
        except CheckpointError:
            if not self.derived:
                raise
            folder.tidy(everything=True)


def _held_out(
    learner: Learner,
    train: Any,
    validation: Any,
    seed: int,
    calibrate: bool | Calibration | None,
) -> tuple[Any, Any]:
    """The data to train on, and those to calibrate with, if any."""
    needless = calibrate is False or isinstance(calibrate, Calibration)
    if needless or (calibrate is None and not learner.likelihood.calibrates):
        return train, None
    if calibrate and not can_calibrate(learner.likelihood):
        name = type(learner.likelihood).__name__
        raise ValueError(
            "calibrate=True is for CategoricalLikelihood(), and for GaussianLikelihood() with a "
            f"noise that is learned, got {name}."
        )
    if validation is not None:
        return train, validation
    split = held_out(learner, train, seed)
    if split is None and calibrate:
        raise ValueError(
            "calibrate=True holds examples out: it takes at least 1,000 of them as tensors (x, y), "
            "or validation=(x, y)."
        )
    return (train, None) if split is None else split


def _fused_step(learner: Learner) -> Step:
    replayed = replay_obstacle(learner) is None
    return Replayed(learner).step if replayed else Compiled(learner).step


def _facts(net: Net, batch_size: int, patience: int | None) -> dict[str, Any]:
    """What must be the same for a run to resume."""
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
        facts["validation data"] = fingerprint.digest(map(torch.as_tensor, (*parts(x), y)))
    return facts


def load_run(learner: Learner, out: str | os.PathLike[str]) -> Run:
    """A finished run from its folder, for the learner that made it."""
    reading = learner.init(), checkpoint.other_form(learner), fingerprint.settings(learner)
    return Run(learner, *read_final(out, *reading), others=read_members(out, *reading))


def keep_members(run: Run, out: str | os.PathLike[str]) -> None:
    """Writes the states of an ensemble's other members into the folder of its run."""
    write_members(out, run.others, fingerprint.settings(run.learner))


__all__ = [
    "Calibration",
    "Epoch",
    "Run",
    "TrainingError",
    "TrainingWarning",
    "fit",
    "load_run",
    "predictive_on_the_way",
]
