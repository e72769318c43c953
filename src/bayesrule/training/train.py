"""Training from the first batch to the last: validation, early stopping, checkpoints, resume."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from bayesrule.execution.compiled import Compiled
from bayesrule.execution.replayed import Replayed, replay_obstacle
from bayesrule.expectations import AtMean
from bayesrule.learner import Learner
from bayesrule.predicting.predict import How, as_inputs, predict
from bayesrule.predicting.prediction import Prediction
from bayesrule.tensors import tree
from bayesrule.tensors.network import num_examples
from bayesrule.training import checkpoint
from bayesrule.training.averages import renew_averages
from bayesrule.training.batches import Batches, LoaderBatches, as_batches
from bayesrule.training.progress import Progress
from bayesrule.training.run_folder import Best, Epoch, Folder
from bayesrule.types import Batch, Info, State


class TrainingError(RuntimeError):
    """Training cannot go on; the message says why and what to try."""


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
      from the last checkpoint and ends bit for bit as if it had not been.
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
    _check_options(epochs, patience, validation)
    batches = as_batches(train, batch_size)
    loop = _Loop(learner, batches, validation, patience, epochs, seed, callback, fused, on_step)
    folder = Folder(out, loop.facts(batch_size), checkpoint_seconds) if out is not None else None
    if folder is not None:
        folder.tidy(everything=not resume)
    if folder is not None and resume:
        loop.restore(*folder.read(learner.init(seed), checkpoint.other_form(learner, seed)))
    with Progress(epochs * len(batches), loop.state.step, _title(learner), progress) as bar:
        loop.run(folder, bar)
    settled = loop.settled(loop.chosen(), 0, most=100)
    state = learner.finish(settled, loop.placed(batches.all()))
    if folder is not None:
        folder.write_final(state, loop.history, loop.best_epoch)
    return Run(learner, state, loop.history, loop.best_epoch)


def _check_options(epochs: int, patience: int | None, validation: Any) -> None:
    if not (isinstance(epochs, int) and epochs >= 1):
        raise ValueError(f"epochs is a whole number of at least 1, got {epochs!r}.")
    if patience is not None and not (isinstance(patience, int) and patience >= 1):
        raise ValueError(f"patience is a whole number of at least 1 or None, got {patience!r}.")
    if patience is not None and validation is None:
        raise ValueError("Early stopping (patience) needs validation data.")
    if validation is None:
        return
    if not (isinstance(validation, tuple | list) and len(validation) == 2):
        raise TypeError(f"validation is a pair (x, y), got {type(validation).__name__}.")
    x, y = validation
    size = num_examples(x if isinstance(x, tuple) else (x,))
    if size != len(y):
        raise ValueError(f"The validation data has {size} inputs but {len(y)} targets.")


class _Loop:
    """The loop itself; everything that a resumed run needs is in `state`, `history` and `best`."""

    def __init__(
        self,
        learner: Learner,
        batches: Batches,
        validation: Any,
        patience: int | None,
        epochs: int,
        seed: int,
        callback: Callable[[Learner, State, Epoch], None] | None,
        fused: bool,
        on_step: Callable[[State, Info], None] | None,
    ) -> None:
        self.on_step = on_step
        self.learner, self.batches, self.validation = learner, batches, validation
        self.patience, self.epochs, self.seed, self.callback = patience, epochs, seed, callback
        self.step = _fast(learner) if fused else learner.step
        self.state = learner.init(seed)
        self.history: list[Epoch] = []
        self.best: Best | None = None

    @property
    def best_epoch(self) -> int | None:
        """The epoch whose state is kept when training stops early."""
        return self.best.epoch if self.best is not None else None

    def facts(self, batch_size: int) -> dict[str, Any]:
        """What must be the same for a run to be resumed."""
        return {
            "parts": self.learner.parts(),
            "likelihood": type(self.learner.likelihood).__name__,
            "num_data": self.learner.num_data,
            "prior_precision": self.learner.prior_precision,
            "temperature": self.learner.temperature,
            "batch_size": batch_size,
            "steps_per_epoch": len(self.batches),
            "seed": self.seed,
        }

    def restore(self, state: State | None, history: list[Epoch], best: Best | None) -> None:
        """Goes on where a checkpoint left off."""
        if state is not None:
            self.state, self.history, self.best = state, history, best

    def run(self, folder: Folder | None, bar: Progress) -> None:
        """All epochs that are left, or as many as early stopping lets."""
        for epoch in range(len(self.history), self.epochs):
            if self._should_stop():
                break
            self._epoch(epoch, bar, folder)
            if folder is not None:
                folder.write(self.state, self.history, self.best, final=self._is_last(epoch))

    def chosen(self) -> State:
        """The state that training ends with: the best one where it stops early."""
        return self.best.state if self.patience is not None and self.best else self.state

    def _is_last(self, epoch: int) -> bool:
        return epoch + 1 == self.epochs or self._should_stop()

    def _should_stop(self) -> bool:
        if self.patience is None or self.best is None or not self.history:
            return False
        return len(self.history) - self.best.epoch >= self.patience

    def placed(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Batches on the weights' device, floating inputs in the weights' type."""
        device = self.state.posterior.device
        for x, y in batches:
            yield as_inputs(x, self.state), torch.as_tensor(y, device=device)  # type: ignore[misc]

    def _epoch(self, epoch: int, bar: Progress, folder: Folder | None) -> None:
        begun = time.perf_counter()
        total = torch.zeros(())
        count = 0
        for batch in self.placed(self.batches.epoch(epoch, self.seed)):
            self.state, info = self.step(self.state, batch, donate=True)
            total = total.to(info.loss) + info.loss
            count += 1
            if self.on_step is not None:
                self.on_step(self.state, info)
            bar.advance()
        loss = float(total) / max(count, 1) / self.learner.num_data
        self._check(loss, epoch)
        settled = self.settled(self.state, epoch)
        score = self._score(settled)
        self._remember(score, epoch, settled)
        figures: Epoch = {"epoch": epoch + 1, "step": self.state.step, "loss": loss}
        if score is not None:
            figures["validation"] = score
        figures["seconds"] = time.perf_counter() - begun
        self.history.append(figures)
        bar.note(loss=loss, validation=score)
        if self.callback is not None:
            self.callback(self.learner, _copy(settled), figures)

    def _check(self, loss: float, epoch: int) -> None:
        # The last step's loss is from before its weights, which may be the first to go wrong.
        weights = all(bool(v.isfinite().all()) for v in self.state.posterior.mean.values())
        if math.isfinite(loss) and weights:
            self._check_scales(epoch)
            return
        what = "weights are not finite" if math.isfinite(loss) else f"loss is {loss}"
        raise TrainingError(
            f"The {what} in epoch {epoch + 1} (step {self.state.step}), so training stops here. "
            "A smaller learning_rate, standardised inputs or a larger prior_precision usually "
            "help; checkpoints from before are untouched."
        )

    def _check_scales(self, epoch: int) -> None:
        fault = self.state.posterior.fault()
        if fault is not None:
            raise TrainingError(
                f"{fault} in epoch {epoch + 1} (step {self.state.step}), so training stops here. A "
                "smaller scale_multiplier or learning_rate, or a KL weight above zero, help."
            )

    def settled(self, state: State, epoch: int, most: int = 20) -> State:
        """The state with the statistics of normalising layers as they are at its weights."""
        batches = self.placed(self.batches.epoch(epoch, self.seed))
        return renew_averages(self.learner, state, batches, most)

    def _score(self, state: State) -> float | None:
        """The mean log-likelihood of the validation data, per example."""
        return validation_score(self.learner, state, self.validation, self.seed)

    def _remember(self, score: float | None, epoch: int, state: State) -> None:
        if self.patience is None or score is None:
            return
        score = -math.inf if math.isnan(score) else score
        if self.best is None or score > self.best.score:
            self.best = Best(score, epoch + 1, _copy(state))


def _fast(learner: Learner) -> Callable[..., tuple[State, Info]]:
    """The step without what it costs to start its many small parts."""
    if replay_obstacle(learner) is None:
        return Replayed(learner).step
    return Compiled(learner).step


def _copy(state: State) -> State:
    """A copy of the state: its own memory goes to the next step."""
    return tree.map_tensors(state, torch.clone)


def validation_score(learner: Learner, state: State, validation: Any, seed: int) -> float | None:
    """The mean log-likelihood of validation data (x, y), per example; None where there are none."""
    if validation is None:
        return None
    x, y = validation
    found = predict(learner, state, x, predictive_on_the_way(learner), seed=seed)
    return float(found.log_prob(torch.as_tensor(y, device=found.mean.device)).mean())


def predictive_on_the_way(learner: Learner) -> How | None:
    """How to predict before training ends, while a Laplace approximation has no curvature yet."""
    return AtMean() if learner.final_curvature is not None else None


def load_run(learner: Learner, out: str | os.PathLike[str]) -> Run:
    """A finished run from its folder, for the learner that made it."""
    file = Path(out) / "final.safetensors"
    state, facts = checkpoint.load(file, learner.init(), checkpoint.other_form(learner))
    return Run(learner, state, facts.get("history", []), facts.get("best_epoch"))


def _title(learner: Learner) -> str:
    parts = learner.parts()
    return f"{parts['posterior']} × {parts['curvature']}"


__all__ = [
    "Batches",
    "Epoch",
    "LoaderBatches",
    "Run",
    "TrainingError",
    "fit",
    "load_run",
    "predictive_on_the_way",
]
