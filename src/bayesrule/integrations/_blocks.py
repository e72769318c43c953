"""What the callbacks share: weight draws that a trainer's events open and close, predictions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from bayesrule.likelihoods import CategoricalLikelihood, Likelihood
from bayesrule.optim import BayesianOptimizer
from bayesrule.predicting import Prediction
from bayesrule.predicting.outputs import Outputs


class TrainingBlocks:
    """One block of `BayesianOptimizer.sampled_params` for each batch of a trainer.

    Gradients add up over the batches of a step, because trainers divide the loss by their number.
    """

    def __init__(self) -> None:
        self.optimizer: BayesianOptimizer | None = None

    def attach(self, optimizer: Any, way_out: str) -> BayesianOptimizer:
        """Uses the optimiser of a trainer, which may have wrapped it."""
        inner = optimizer
        while not hasattr(inner, "begin_draw") and hasattr(inner, "optimizer"):
            inner = inner.optimizer
        if not hasattr(inner, "begin_draw"):
            raise TypeError(
                "BayesianCallback draws weights for an optimiser of bayesrule.optim, the trainer "
                f"has {type(inner).__name__}; {way_out}."
            )
        self.optimizer = inner
        self.release()
        return inner

    def begin(self) -> None:
        """Sets the weights to a draw for the next batch."""
        self.release()
        if self.optimizer is not None:
            self.optimizer.begin_draw(add=True)

    def end(self) -> None:
        """After the backward pass: restores the mean and adds the batch's gradient to `.grad`."""
        if self.optimizer is not None:
            self.optimizer.end_draw()

    def release(self) -> None:
        """Closes a block whose backward pass never came, as after an interruption."""
        if self.optimizer is not None:
            self.optimizer.end_draw(keep=False)

    def prediction(
        self, run: Callable[[], Tensor], draws: int, likelihood: Likelihood | None
    ) -> Prediction:
        """The prediction from the outputs of `run` at several draws, or at the mean (0 draws)."""
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
        outputs = []
        for _ in range(draws):
            with self.optimizer.sampled_params(train=False):
                outputs.append(run())
        return outputs


def optional(module: str, name: str) -> type:
    """A class of an optional package, or `object` if that is not installed."""
    try:
        return cast(type, getattr(importlib.import_module(module), name))
    except ImportError:
        return object
