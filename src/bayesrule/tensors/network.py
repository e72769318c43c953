"""An unmodified torch module as a function of its parameters and buffers."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.types import Params

Inputs = Tensor | tuple[Tensor, ...]

Place = tuple[dict[str, Any], str]
"""A dictionary of a module and the name of a tensor in it."""


def num_examples(x: Inputs) -> int:
    """How many examples a batch of inputs holds."""
    return len(x) if isinstance(x, Tensor) else len(x[0])


def take(x: Inputs, rows: slice | Tensor) -> Inputs:
    """Some of the examples."""
    return x[rows] if isinstance(x, Tensor) else tuple(part[rows] for part in x)


def copies(params: Params) -> Params:
    """The same numbers in tensors of their own."""
    return {name: value.clone() for name, value in params.items()}


def check_batch(x: Inputs, y: Tensor) -> int:
    """How many examples a batch has; an empty or uneven one is refused."""
    size = num_examples(x)
    if size == 0:
        raise ValueError("The batch is empty.")
    if len(y) != size:
        raise ValueError(f"The batch has {size} inputs but {len(y)} targets.")
    return size


@dataclass(frozen=True)
class Understood:
    """Which recorded calls have the examples first, and parameters that no call explains."""

    batch_first: tuple[bool, ...]
    missed: frozenset[str]


class Network:
    """A module whose trainable parameters are given from outside at each call.

    Frozen parameters and buffers (batch-norm statistics) belong to the state and travel together as
    `buffers`. The module itself is never changed: its mode is restored after each call. Training
    is done in the modes that the parts had when the network was made, if it was in training mode.
    """

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"The model must be a torch.nn.Module, got {type(model).__name__}.")
        for name, module in model.named_modules():
            if getattr(module, "max_norm", None) is not None:
                raise ValueError(
                    f"Layer {name!r} ({type(module).__name__}) has max_norm={module.max_norm}: it "
                    "changes its weights while it runs, which would change a belief behind its "
                    "back. Build it with max_norm=None; the prior keeps weights small."
                )
        self.model = model
        self._modules = list(model.modules())
        # A part that was put into evaluation mode, such as a frozen batch norm, stays in it.
        self._modes = [module.training or not model.training for module in self._modules]
        self._recurrent = [m for m in self._modules if isinstance(m, nn.RNNBase)]
        self._places = _places(model)
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

    def averaged(self) -> list[str]:
        """The buffers in which normalising layers keep averages over batches."""
        names = []
        for prefix, module in self.model.named_modules():
            if getattr(module, "running_mean", None) is not None:
                place = f"{prefix}." if prefix else ""
                names += [
                    place + key for key, value in module._buffers.items() if value is not None
                ]
        return names

    @contextmanager
    def equal_averages(self) -> Iterator[None]:
        """Normalising layers give every batch the same weight, instead of more to later ones."""
        layers: list[Any] = [
            m for m in self._modules if getattr(m, "running_mean", None) is not None
        ]
        before = [module.momentum for module in layers]
        try:
            for module in layers:
                module.momentum = None
            yield
        finally:
            for module, momentum in zip(layers, before, strict=True):
                module.momentum = momentum

    @contextmanager
    def _mode(self, training: bool) -> Iterator[None]:
        before = [module.training for module in self._modules]
        try:
            for module, mode in zip(self._modules, self._modes, strict=True):
                module.__dict__["training"] = training and mode
            yield
        finally:
            for module, flag in zip(self._modules, before, strict=True):
                module.__dict__["training"] = flag

    @contextmanager
    def _swapped(self, params: Params, buffers: Params) -> Iterator[None]:
        """The module with other tensors in its places, as torch.func.functional_call has it.

        The places are known once and for all, which saves most of that function's time. A buffer
        that the module replaces instead of changing it is found in `buffers` afterwards.
        """
        before = []
        try:
            for given in (params, buffers):
                for name, tensor in given.items():
                    for store, key in self._places[name]:
                        before.append((store, key, store[key]))
                        store[key] = tensor
            for module in self._recurrent:
                before += [(vars(module), name, value) for name, value in _listed(module).items()]
            yield
            for name in buffers:
                store, key = self._places[name][0]
                buffers[name] = store[key]
        finally:
            for store, key, tensor in before:
                store[key] = tensor

    def __call__(self, params: Params, buffers: Params, x: Inputs, *, training: bool) -> Tensor:
        """The outputs; in training mode the module may change `buffers`, in place or by name."""
        args = (x,) if isinstance(x, Tensor) else x
        with self._mode(training), self._swapped(params, buffers):
            return self.model(*args)


def _places(model: nn.Module) -> dict[str, list[Place]]:
    """Where each parameter and buffer stands in the module; tied ones stand in several places."""
    found: dict[int, list[Place]] = {}
    for module in model.modules():
        for store in (module._parameters, module._buffers):
            for key, value in store.items():
                if value is not None:
                    found.setdefault(id(value), []).append((store, key))
    named = itertools.chain(model.named_parameters(), model.named_buffers())
    return {name: found[id(value)] for name, value in named}


def _listed(module: nn.RNNBase) -> dict[str, Any]:
    """A recurrent layer's own list of its weights, as it was before it follows the swap.

    The layer would bring weights on a GPU into one piece of memory, but tensor subclasses have
    none; they are listed here, so that it sees nothing to be done.
    """
    before = {name: vars(module)[name] for name in ("_flat_weights", "_flat_weight_refs")}
    weights = [getattr(module, name) for name in module._flat_weights_names]
    if any(type(weight) not in (Tensor, nn.Parameter) for weight in weights):
        vars(module)["_flat_weights"] = weights
        vars(module)["_flat_weight_refs"] = [weakref.ref(weight) for weight in weights]
    return before


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
