"""An unmodified torch module as a function of its parameters and buffers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bayesrule.types import Params

Inputs = Tensor | tuple[Tensor, ...]


def num_examples(x: Inputs) -> int:
    """How many examples a batch of inputs holds."""
    return len(x) if isinstance(x, Tensor) else len(x[0])


def take(x: Inputs, rows: slice | Tensor) -> Inputs:
    """Some of the examples."""
    return x[rows] if isinstance(x, Tensor) else tuple(part[rows] for part in x)


@dataclass(frozen=True)
class Understood:
    """Whether each call of a layer has the examples first, and parameters used out of sight."""

    batch_first: tuple[bool, ...]
    missed: frozenset[str]


class Network:
    """A module whose trainable parameters are given from outside at each call.

    Frozen parameters and buffers (batch-norm statistics) belong to the state and travel together as
    `buffers`. The module itself is never changed: its mode is restored after each call.
    """

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"The model must be a torch.nn.Module, got {type(model).__name__}.")
        self.model = model
        self._modules = list(model.modules())
        self._trainable = [k for k, v in model.named_parameters() if v.requires_grad]
        # What is known of the module's calls; found on first need.
        self.understood: Understood | None = None
        if not self._trainable:
            raise ValueError("The model has no trainable parameters, so there is nothing to learn.")

    def params(self) -> Params:
        """Copies of the trainable parameters."""
        named = dict(self.model.named_parameters())
        return {name: named[name].detach().clone() for name in self._trainable}

    def buffers(self) -> Params:
        """Copies of the buffers and of the frozen parameters."""
        frozen = {k: v for k, v in self.model.named_parameters() if not v.requires_grad}
        known = {**frozen, **dict(self.model.named_buffers())}
        return {name: value.detach().clone() for name, value in known.items()}

    @contextmanager
    def _mode(self, training: bool) -> Iterator[None]:
        before = [module.training for module in self._modules]
        try:
            for module in self._modules:
                module.training = training
            yield
        finally:
            for module, flag in zip(self._modules, before, strict=True):
                module.training = flag

    def __call__(self, params: Params, buffers: Params, x: Inputs, *, training: bool) -> Tensor:
        """The outputs; in training mode the module may change `buffers` in place."""
        args = (x,) if isinstance(x, Tensor) else x
        with self._mode(training):
            return functional_call(self.model, {**params, **buffers}, args)


@contextmanager
def forked_randomness(device: torch.device, seed: int) -> Iterator[None]:
    """Seeded global randomness for what a module draws itself (dropout), restored afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        # torch.manual_seed would also seed devices that are not restored.
        torch.default_generator.manual_seed(seed)
        for one in devices:
            with torch.cuda.device(one):
                torch.cuda.manual_seed(seed)
        yield
