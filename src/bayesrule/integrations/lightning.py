"""A callback that runs optimisers of `bayesrule.optim` in Lightning.

    from bayesrule.integrations.lightning import BayesianCallback

    callback = BayesianCallback()
    trainer = lightning.Trainer(max_epochs=3, callbacks=[callback])
    trainer.fit(module, loader)  # whose configure_optimizers returns IVON(...)
    callback.predict(trainer, module, test_loader, draws=16).probs

The order of events in Lightning 2: for the last batch of a step, the forward pass, the backward
pass and clipping are one closure that `optimizer.step` gets; for the other batches they run without
it. So the weights become a draw before either, in `on_train_batch_start`, and the mean again in
`on_after_backward`, which comes before clipping.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesrule.integrations._blocks import TrainingBlocks, optional
from bayesrule.likelihoods import Likelihood
from bayesrule.predicting import Prediction
from bayesrule.tensors.outputs import logits

_Callback: Any = optional("lightning.pytorch", "Callback")
if _Callback is object:
    _Callback = optional("pytorch_lightning", "Callback")


class BayesianCallback(_Callback):
    """Draws the weights for each batch of a Lightning trainer; afterwards it predicts by draws.

    The module's `configure_optimizers` returns an optimiser of `bayesrule.optim`. Accumulation,
    clipping, schedules, checkpoints and resuming are the trainer's own; validation, tests and
    `trainer.predict` use the mean of the posterior. An optimiser of several draws takes one draw
    for each batch.
    """

    def __init__(self) -> None:
        if _Callback is object:
            raise ImportError("BayesianCallback needs Lightning: pip install lightning.")
        self._blocks = TrainingBlocks()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Finds the optimiser."""
        _refuse(trainer, pl_module)
        self._blocks.attach(
            trainer.optimizers[0], "return IVON(self.named_parameters(), ...) instead"
        )

    def on_train_batch_start(self, *of_lightning: Any) -> None:
        """Draws weights for this batch."""
        self._blocks.begin()

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Restores the mean; `.grad` is the gradient of the step so far."""
        self._blocks.end()

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Restores the mean, also if `training_step` gave no loss."""
        self._blocks.end()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Restores the mean, also if a batch was skipped."""
        self._blocks.release()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Restores the mean."""
        self._blocks.release()

    def predict(
        self,
        trainer: Any,
        module: Any,
        data: Any,
        draws: int = 16,
        likelihood: Likelihood | None = None,
    ) -> Prediction:
        """Predicts data by `trainer.predict` at `draws` weight draws; 0 uses the mean.

        `module.predict_step` returns the outputs of a batch, or something with `logits`. The
        likelihood is `CategoricalLikelihood()` if it is not given.
        """

        def run() -> Tensor:
            return torch.cat([logits(part) for part in trainer.predict(module, data)])

        return self._blocks.prediction(run, draws, likelihood)


def _refuse(trainer: Any, module: Any) -> None:
    """Refuses settings under which gradients would not belong to the draws."""
    if not module.automatic_optimization:
        raise ValueError(
            "BayesianCallback is for automatic optimisation; in manual optimisation write "
            "`with optimizer.sampled_params():` around forward and backward passes instead."
        )
    if trainer.world_size > 1 and trainer.accumulate_grad_batches > 1:
        raise ValueError(
            f"accumulate_grad_batches={trainer.accumulate_grad_batches} on {trainer.world_size} "
            "processes averages the last batch of a step alone; take larger batches instead."
        )
