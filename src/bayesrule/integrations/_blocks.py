"""What the callbacks share: blocks that a trainer's events open and close, and predictions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bayesrule.likelihoods import CategoricalLikelihood, Likelihood
from bayesrule.optim import BayesianOptimizer
from bayesrule.predicting import Prediction
from bayesrule.predicting.outputs import Outputs


class TrainingBlocks:
    """One block of `BayesianOptimizer.sampled_params` for each batch of a trainer.

    Trainers divide the loss of a batch by the number of batches of a step, so gradients are added.
    """

    def __init__(self) -> None:
        self.optimizer: BayesianOptimizer | None = None

    def attach(self, optimizer: Any, way_out: str) -> BayesianOptimizer:
        """Takes the optimiser of a trainer, which may have wrapped it."""
        found = optimizer
        while not hasattr(found, "begin_draw") and hasattr(found, "optimizer"):
            found = found.optimizer
        if not hasattr(found, "begin_draw"):
            raise TypeError(
                "BayesianCallback draws weights for an optimiser of bayesrule.optim, the trainer "
                f"has {type(found).__name__}; {way_out}."
            )
        self.optimizer = found
        self.release()
        return found

    def begin(self) -> None:
        """The weights are a draw for the next batch."""
        self.release()
        if self.optimizer is not None:
            self.optimizer.begin_draw(add=True)

    def end(self) -> None:
        """After the backward pass: the weights are the mean, and `.grad` is that of the step."""
        if self.optimizer is not None:
            self.optimizer.end_draw()

    def release(self) -> None:
        """Closes a block whose backward pass never came, as after an interruption."""
        if self.optimizer is not None:
            self.optimizer.end_draw(keep=False)

    def prediction(
        self, run: Callable[[], Tensor], draws: int, likelihood: Likelihood | None
    ) -> Prediction:
        """The outputs that `run` finds at each of several draws, or at the mean, together."""
        if self.optimizer is None:
            raise RuntimeError(
                "There is no belief to predict with yet: train first, with this callback among the "
                "trainer's."
            )
        if draws < 0:
            raise ValueError(f"draws is a whole number from 0, the mean; got {draws}.")
        self.release()
        outputs = torch.stack([run()] if draws == 0 else self._at_draws(run, draws)).float()
        likelihood = likelihood or CategoricalLikelihood()
        return Outputs(outputs).prediction(likelihood, likelihood.init(outputs[0]))

    def _at_draws(self, run: Callable[[], Tensor], draws: int) -> list[Tensor]:
        assert self.optimizer is not None
        self.optimizer.rewind()
        found = []
        for _ in range(draws):
            with self.optimizer.sampled_params(train=False):
                found.append(run())
        return found


def optional(module: str, name: str) -> type:
    """A class of a package that may not be installed; `object` stands for it then."""
    try:
        found: type = getattr(importlib.import_module(module), name)
    except ImportError:
        return object
    return found
