"""An unmodified torch module as a function of its parameters and buffers."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesrule.tensors.autocast import called
from bayesrule.tensors.inputs import Inputs as Inputs
from bayesrule.tensors.inputs import arguments
from bayesrule.tensors.inputs import num_examples as num_examples
from bayesrule.tensors.inputs import take as take
from bayesrule.tensors.outputs import logits
from bayesrule.tensors.private_copy import Blueprint
from bayesrule.tensors.unfit import check_module
from bayesrule.types import Params

_GLOBAL_RANDOMNESS = threading.RLock()


def copies(params: Params) -> Params:
    """Clones of all tensors."""
    return {name: value.clone() for name, value in params.items()}


def as_leaves(params: Params) -> Params:
    """The same values as leaf tensors that require gradients."""
    return {name: value.detach().requires_grad_() for name, value in params.items()}


def check_batch(x: Inputs, y: Tensor) -> int:
    """The number of examples of a batch; refuses empty and uneven batches."""
    size = num_examples(x)
    if size == 0:
        raise ValueError("The batch is empty.")
    if len(y) != size:
        raise ValueError(f"The batch has {size} inputs but {len(y)} targets.")
    return size


@dataclass(frozen=True)
class Understood:
    """Which recorded calls have examples along the first axis, and parameters without a call."""

    batch_first: tuple[bool, ...]
    missed: frozenset[str]


class Network:
    """A module as a function: each call is given its trainable parameters.

    Frozen parameters and buffers (batch-norm statistics) belong to the state and travel together as
    `buffers`. The module itself never changes, not even during a call: each call runs a private
    copy (`Blueprint`), so threads do not see each other's weights. Plain attributes that the
    module's code sets are lost with the copy. In training, parts keep the modes they had when the
    network was made, if the module was in training mode. If the module does not return a tensor but
    something with a field `logits`, that field is the output.
    """

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"The model must be a torch.nn.Module, got {type(model).__name__}.")
        check_module(model)
        self.model = model
        modules = model.named_modules()
        self._normalising = {
            name: part for name, part in modules if getattr(part, "running_mean", None) is not None
        }
        self._blueprint = Blueprint(model)
        self._trainable = [k for k, v in model.named_parameters() if v.requires_grad]
        # Facts about the module's calls, found when they are first needed:
        self.understood: Understood | None = None
        self.shares: bool | None = None  # whether all examples may use the same embedding row
        # whether vmap over weights gives the same outputs as single calls
        self.maps_weights: bool | None = None
        self.slow = False  # whether the user was told that examples go through it one by one
        self._watched = False
        if not self._trainable:
            raise ValueError("The model has no trainable parameters, so there is nothing to learn.")

    @property
    def couples(self) -> bool:
        """Whether an example's outputs in training depend on the other examples of its batch."""
        kind = nn.modules.batchnorm._BatchNorm
        parts = [part for part in self.model.modules() if isinstance(part, kind)]
        return any(part.training or not self.model.training for part in parts)

    def params(self) -> Params:
        """Copies of the trainable parameters."""
        named = dict(self.model.named_parameters())
        return {name: named[name].detach().clone() for name in self._trainable}

    def buffers(self) -> Params:
        """Copies of the buffers and of the frozen parameters."""
        frozen = {k: v for k, v in self.model.named_parameters() if not v.requires_grad}
        tensors = {**frozen, **dict(self.model.named_buffers())}
        return {name: value.detach().clone() for name, value in tensors.items()}

    def averaged(self) -> list[str]:
        """The names of the buffers that hold normalising layers' averages over batches."""
        return [
            f"{prefix}.{key}".removeprefix(".")
            for prefix, module in self._normalising.items()
            for key, value in module._buffers.items()
            if value is not None
        ]

    def averaging_equally(self) -> Network:
        """A network whose normalising layers weight all batches equally, not recent ones more.

        >>> norm = nn.BatchNorm1d(1)
        >>> network, buffers = Network(norm).averaging_equally(), Network(norm).buffers()
        >>> for x in (torch.zeros(2, 1), torch.full((2, 1), 8.0)):
        ...     _ = network(network.params(), buffers, x, training=True)
        >>> buffers["running_mean"], norm.momentum
        (tensor([4.]), 0.1)
        """
        network = copy.copy(self)
        network._blueprint = self._blueprint.with_settings(
            self._normalising.values(), momentum=None
        )
        return network

    def __call__(self, params: Params, buffers: Params, x: Inputs, *, training: bool) -> Tensor:
        """The outputs; in training, buffers may change in place or be replaced in `buffers`."""
        args, named = arguments(x)
        parts = self._blueprint.copied({**buffers, **params}, training=training)
        if self._watched or not training:
            outputs = logits(called(parts[0], args, named))
        else:
            with self._blueprint.watched(params) as watch:
                outputs = logits(called(parts[0], args, named))
            if torch.is_grad_enabled():
                watch.check(outputs)
            self._watched = True
        for name in buffers:
            number, store, key = self._blueprint.places[name]
            buffers[name] = vars(parts[number])[store][key]
        return outputs


@contextmanager
def forked_randomness(device: torch.device, seed: int) -> Iterator[None]:
    """Seeds torch's global generators for a module's own draws (dropout), then restores them.

    All threads of a process share these generators, so they wait for each other here.
    """
    devices = [device] if device.type == "cuda" else []
    with _GLOBAL_RANDOMNESS, torch.random.fork_rng(devices=devices):
        # torch.manual_seed would also seed devices that are not restored.
        torch.default_generator.manual_seed(seed)
        for gpu in devices:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield
