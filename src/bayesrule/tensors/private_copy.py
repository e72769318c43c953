"""Private copies of a module, made for one call, in which other tensors stand for its own.

The module that the caller gave is never written to: other threads may be running it, and what a
call leaves behind when it fails goes with its copy. A copy has the attributes of the original and
dictionaries of its own; numbers are shared.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode

from bayesrule.tensors.stand_in import FACTS, StandIn
from bayesrule.types import Params

Slot = tuple[str, str, Tensor | None]
"""A key in a module, the name of the tensor in the whole, and the module's own tensor."""


class _Part(NamedTuple):
    """One module of the whole; `held` names plain attributes that lead to tensors or modules."""

    kind: type[nn.Module]
    own: dict[str, Any]
    mode: bool
    children: list[tuple[str, int | None]]
    parameters: list[Slot]
    buffers: list[Slot]
    held: list[str]


class Blueprint:
    """What a module consists of, looked up once, so that a copy takes microseconds.

    In training the parts have the modes that they had when the blueprint was made, if the whole was
    in training mode: a part that was put into evaluation mode, such as a frozen batch norm, stays
    in it.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        self._tensors = dict([*model.named_parameters(), *model.named_buffers()])
        self._settings: dict[int, dict[str, Any]] = {}
        names = {id(tensor): name for name, tensor in self._tensors.items()}
        numbers = {id(module): i for i, module in enumerate(self._modules)}
        known = names.keys() | numbers.keys()
        self._parts = [
            _Part(
                type(module),
                vars(module),
                module.training or not model.training,
                [(k, None if m is None else numbers[id(m)]) for k, m in module._modules.items()],
                _slots(module._parameters, names),
                _slots(module._buffers, names),
                [key for key, value in _plain(module) if _leads_to(value, known, set())],
            )
            for module in self._modules
        ]
        self.places: dict[str, tuple[int, str, str]] = {}
        for i, part in enumerate(self._parts):
            for store, slots in (("_parameters", part.parameters), ("_buffers", part.buffers)):
                self.places |= {name: (i, store, key) for key, name, _ in slots}

    def copied(self, tensors: Params, *, training: bool) -> list[nn.Module]:
        """Copies of all parts, the whole first, in which the given tensors have their places."""
        made: list[nn.Module] = [object.__new__(part.kind) for part in self._parts]
        for module, part in zip(made, self._parts, strict=True):
            own = module.__dict__
            own.update(part.own)
            own["training"] = training and part.mode
            own["_modules"] = {key: None if i is None else made[i] for key, i in part.children}
            own["_parameters"] = {key: tensors.get(name, old) for key, name, old in part.parameters}
            own["_buffers"] = {key: tensors.get(name, old) for key, name, old in part.buffers}
            if part.held:
                self._lead_to_copies(own, part.held, made, tensors)
        for i, changed in self._settings.items():
            made[i].__dict__.update(changed)
        return made

    def with_settings(self, modules: Iterable[nn.Module], **settings: Any) -> Blueprint:
        """A blueprint whose copies of some parts have other attributes."""
        made = copy.copy(self)
        made._settings = {self._modules.index(module): settings for module in modules}
        return made

    def _lead_to_copies(
        self, own: dict[str, Any], held: list[str], made: list[nn.Module], tensors: Params
    ) -> None:
        """Replaces modules and tensors in lists, bound methods and the like, which lead to them."""
        new: dict[int, Any] = {id(v): tensors.get(k, v) for k, v in self._tensors.items()}
        new |= {id(old): copied for old, copied in zip(self._modules, made, strict=True)}
        for key in held:
            own[key] = _rebuilt(own[key], new)
        if "_flat_weights" in held:
            _keep_as_listed(own)

    def watched(self, params: Params) -> Watch:
        """A context that looks at how the module uses its parameters."""
        own = {id(value): name for name, value in self._tensors.items() if name in params}
        given = {name: value for name, value in params.items() if value.requires_grad}
        known = {id(value) for value in given.values()}
        return Watch({i: name for i, name in own.items() if i not in known}, given)


class Watch(TorchFunctionMode):
    """Refuses calls with tensors that should have been replaced, or that cannot be followed."""

    def __init__(self, own: Mapping[int, str], given: Params) -> None:
        super().__init__()
        self._names, self._params = own, given
        self._given = {id(value): name for name, value in given.items()}
        self._seen: dict[bool, set[str]] = {True: set(), False: set()}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in FACTS:
            for tensor in _tensors_in((*args, *kwargs.values())):
                self._note(tensor)
        return func(*args, **kwargs)

    def check(self, outputs: Any) -> None:
        """Refuses weights that were only used where gradients are off, and lead to no output.

        A torch.autograd.Function switches gradients off within itself, and has its own.
        """
        doubtful = sorted(self._seen[False] - self._seen[True])
        nodes = _nodes_behind(outputs) if doubtful else set()
        for name in doubtful:
            weight = self._params[name]
            if not isinstance(weight, StandIn) and get_gradient_edge(weight).node in nodes:
                continue
            raise ValueError(
                f"Parameter {name!r} is only used where the module has switched gradients off "
                "(torch.no_grad, a checkpoint with use_reentrant=True, or in a "
                "torch.autograd.Function that this method cannot follow), so it would not be "
                "learned. Freeze it with "
                "requires_grad_(False), use use_reentrant=False, or another method."
            )

    def _note(self, tensor: Tensor) -> None:
        if id(tensor) in self._given:
            self._seen[torch.is_grad_enabled()].add(self._given[id(tensor)])
        if isinstance(tensor, StandIn):
            if torch.is_autocast_enabled(tensor.device.type):
                raise TypeError(
                    "The module works under torch.autocast, in which this method cannot follow its "
                    f"weights ({type(tensor).__name__}). Take the autocast out of the module, or "
                    "use a method with plain weights, such as vogn, mean_field or noisy_adam."
                )
            return
        base = tensor._base if tensor._is_view() else None
        name = self._names.get(id(tensor)) or self._names.get(id(base))
        if name is not None:
            raise ValueError(
                f"The module reaches its parameter {name!r} in a way that cannot be followed, such "
                "as a global variable or a view that was made beforehand, so it would not be "
                "learned. Use it in forward() as an attribute of its module."
            )


def _tensors_in(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, StandIn) or type(value) in (Tensor, nn.Parameter):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors_in(value)


def _slots(store: Mapping[str, Tensor | None], names: Mapping[int, str]) -> list[Slot]:
    return [(key, names.get(id(value), ""), value) for key, value in store.items()]


def _plain(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """The attributes that are no registered tensors or parts."""
    stores = "_parameters", "_buffers", "_modules"
    return ((key, value) for key, value in vars(module).items() if key not in stores)


def _inside(value: Any) -> Iterator[Any]:
    """What a container, a bound method, a partial function or a closure holds."""
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    elif isinstance(value, MethodType):
        yield value.__self__
    elif isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, FunctionType):
        for cell in value.__closure__ or ():
            if cell != CellType():
                yield cell.cell_contents


def _leads_to(value: Any, known: set[int], seen: set[int]) -> bool:
    """Whether one of the known objects can be reached from a value."""
    if id(value) in known:
        return True
    if id(value) in seen:
        return False
    seen.add(id(value))
    return any(_leads_to(one, known, seen) for one in _inside(value))


def _rebuilt(value: Any, new: dict[int, Any]) -> Any:
    """The same with new objects for known ones; `new` is by the identity of the old ones."""
    if id(value) in new:
        return new[id(value)]
    if not _leads_to(value, set(new), set()):
        return value
    made: Any
    if isinstance(value, dict):
        made = new[id(value)] = copy.copy(value)
        made.update({key: _rebuilt(one, new) for key, one in value.items()})
    elif isinstance(value, list):
        made = new[id(value)] = copy.copy(value)
        made[:] = [_rebuilt(one, new) for one in value]
    elif isinstance(value, MethodType):
        made = MethodType(value.__func__, _rebuilt(value.__self__, new))
    elif isinstance(value, partial):
        named = {key: _rebuilt(one, new) for key, one in value.keywords.items()}
        made = partial(_rebuilt(value.func, new), *_rebuilt(value.args, new), **named)
    elif isinstance(value, FunctionType):
        made = _with_closure(value, new)
    else:
        parts = [_rebuilt(one, new) for one in value]
        made = type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return made


def _with_closure(function: FunctionType, new: dict[int, Any]) -> FunctionType:
    """A function that reads other variables from around it."""
    cells = [CellType() for _ in function.__closure__ or ()]
    given = function.__globals__, function.__name__, function.__defaults__, tuple(cells)
    made = new[id(function)] = FunctionType(function.__code__, *given)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__)
    for cell, old in zip(cells, function.__closure__ or (), strict=True):
        if old != CellType():
            cell.cell_contents = _rebuilt(old.cell_contents, new)
    return made


def _keep_as_listed(own: dict[str, Any]) -> None:
    """Leaves a recurrent layer's list of its weights alone where they are stand-ins.

    The layer would bring weights on a GPU into one piece of memory, but tensor subclasses have
    none; with references to those that are listed it sees nothing to be done.
    """
    listed = own["_flat_weights"]
    if any(type(weight) not in (Tensor, nn.Parameter) for weight in listed):
        own["_flat_weight_refs"] = [weakref.ref(weight) for weight in listed]


def _nodes_behind(outputs: Any) -> set[Any]:
    """All nodes of the autograd graph that the outputs were made by."""
    left = [one.grad_fn for one in _tensors_in((outputs,)) if one.grad_fn is not None]
    seen = set(left)
    while left:
        for node, _ in left.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                left.append(node)
    return seen
