"""A callback that runs optimisers of `bayesrule.optim` in Hugging Face's `Trainer`.

    from bayesrule.integrations.hugging_face import BayesianCallback

    callback = BayesianCallback()
    optimizer = IVON(model.named_parameters(), num_data=len(data))
    trainer = Trainer(model, args, optimizers=(optimizer, None), callbacks=[callback], ...)
    trainer.train()
    callback.predict(trainer, test, draws=16).probs

The order of events in transformers 5: `on_step_begin` comes before the first batch of a step and
`on_substep_end` after each batch but the last, so there the weights become a draw. No event comes
between the last backward pass and the clipping of gradients: `on_pre_optimizer_step` is too late,
as clipping would see the gradient of the last batch, not that of the step. So a hook of autograd
tells when a backward pass has ended, and then the weights become the mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from bayesrule.integrations._blocks import TrainingBlocks, optional
from bayesrule.likelihoods import Likelihood
from bayesrule.predicting import Prediction
from bayesrule.tensors.outputs import logits

_TrainerCallback: Any = optional("transformers", "TrainerCallback")


class BayesianCallback(_TrainerCallback):
    """Draws the weights for each batch of a `Trainer`; after training it predicts by draws.

    The optimiser is one of `bayesrule.optim`, given as `optimizers=(optimizer, None)` or as
    `optimizer_cls_and_kwargs=(IVON, {"num_data": ...})`. Gradient accumulation, clipping,
    schedules, checkpoints and resuming are the trainer's own; evaluations, saved models and
    `trainer.predict` use the mean of the posterior. After an interruption in the middle of a batch
    `release()` restores the mean, as the next training or prediction does.
    """

    def __init__(self) -> None:
        if _TrainerCallback is object:
            raise ImportError(
                "BayesianCallback needs transformers: pip install 'bayesrule[hugging]'."
            )
        self._blocks = TrainingBlocks()
        self._handles: list[RemovableHandle] = []
        self._ending = False

    def on_train_begin(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **others: Any
    ) -> None:
        """Finds the optimiser and registers hooks for the end of backward passes."""
        _refuse(args)
        bayesian = self._blocks.attach(
            optimizer, "give Trainer optimizers=(IVON(model.named_parameters(), ...), None)"
        )
        self._forget()
        parameters = (p for group in bayesian.param_groups for p in group["params"])
        self._handles = [
            p.register_post_accumulate_grad_hook(self._accumulated)
            for p in parameters
            if p.requires_grad
        ]

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Draws weights for the first batch of a step."""
        self._blocks.begin()

    def on_substep_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Draws weights for the next batch of the same step."""
        self._blocks.begin()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Restores the mean, also if training stopped between a draw and its batch."""
        self._blocks.release()

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Restores the mean and removes the hooks."""
        self.release()
        self._forget()

    def release(self) -> None:
        """Restores the mean after an interruption."""
        self._blocks.release()

    def predict(
        self, trainer: Any, data: Any, draws: int = 16, likelihood: Likelihood | None = None
    ) -> Prediction:
        """Predicts data by `trainer.predict` at `draws` weight draws; 0 uses the mean.

        The likelihood is `CategoricalLikelihood()` if it is not given.
        """

        def run() -> Tensor:
            outputs = trainer.predict(data).predictions
            return torch.as_tensor(outputs[0] if isinstance(outputs, tuple) else logits(outputs))

        return self._blocks.prediction(run, draws, likelihood)

    def _accumulated(self, parameter: Tensor) -> None:
        """At the first gradient of a backward pass, asks autograd for a call when it ends."""
        if self._ending:
            return
        self._ending = True
        # Queued twice, to come after the averaging over machines, which is queued as well.
        _at_end(lambda: _at_end(self._end))

    def _end(self) -> None:
        self._ending = False
        self._blocks.end()

    def _forget(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._ending = [], False


def _at_end(call: Callable[[], None]) -> None:
    """Has autograd call a function when the present backward pass has ended."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def _refuse(args: Any) -> None:
    """Refuses settings under which gradients would not belong to the draws."""
    kwargs = args.accelerator_config.gradient_accumulation_kwargs or {}
    several = args.world_size > 1 and args.gradient_accumulation_steps > 1
    if several and not kwargs.get("sync_each_batch"):
        raise ValueError(
            f"gradient_accumulation_steps={args.gradient_accumulation_steps} on {args.world_size} "
            "processes averages the last batch of a step alone; set accelerator_config="
            "{'gradient_accumulation_kwargs': {'sync_each_batch': True}}."
        )
    # transformers 6 removes the older of these names.
    for name in ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"):
        if (getattr(args, name, None) or {}).get("use_reentrant"):
            raise ValueError(
                "Reentrant checkpointing has several backward passes for one batch; set "
                f"{name}={{'use_reentrant': False}}."
            )
    if args.deepspeed or args.fsdp:
        raise ValueError(
            "DeepSpeed and FSDP keep weights in pieces of their own, which cannot be drawn; train "
            "without them."
        )
