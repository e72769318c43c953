"""Private copies of a module, made for one call, in which other tensors replace its own.

The caller's module is never written to: other threads may be running it, and what a failed call
leaves behind disappears with the copy. A copy has the attributes of the original in dictionaries of
its own; it shares the memory of tensors that are not replaced.
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

_NUMBERS = frozenset((bool, int, float, str, type(None)))
Slot = tuple[str, str, Tensor | None]
"""A tensor's key in its module, its name in the whole model, and the module's own tensor."""


class _Part(NamedTuple):
    """One submodule; `held` names its plain attributes that lead to tensors or modules."""

    kind: type[nn.Module]
    attributes: dict[str, Any]
    mode: bool
    children: list[tuple[str, int | None]]
    parameters: list[Slot]
    buffers: list[Slot]
    held: list[str]


class Blueprint:
    """The structure of a module, looked up once, so that a copy takes microseconds.

    In training, parts keep the modes they had when the blueprint was made, if the whole was in
    training mode: a part in evaluation mode, such as a frozen batch norm, stays in it.
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
        """Copies of all parts, the whole first, in which `tensors` replace the originals."""
        copies: list[nn.Module] = [object.__new__(part.kind) for part in self._parts]
        for module, part in zip(copies, self._parts, strict=True):
            state = module.__dict__
            state.update(part.attributes)
            state["training"] = training and part.mode
            state["_modules"] = {key: None if i is None else copies[i] for key, i in part.children}
            state["_parameters"] = {key: tensors.get(name, t) for key, name, t in part.parameters}
            state["_buffers"] = {key: tensors.get(name, t) for key, name, t in part.buffers}
            if part.held:
                self._lead_to_copies(state, part.held, copies, tensors)
        for i, changed in self._settings.items():
            copies[i].__dict__.update(changed)
        return copies

    def with_settings(self, modules: Iterable[nn.Module], **settings: Any) -> Blueprint:
        """A blueprint whose copies of these modules have the attributes `settings`."""
        blueprint = copy.copy(self)
        blueprint._settings = {self._modules.index(module): settings for module in modules}
        return blueprint

    def _lead_to_copies(
        self, state: dict[str, Any], held: list[str], copies: list[nn.Module], tensors: Params
    ) -> None:
        """Replaces modules and tensors inside plain attributes: lists, bound methods, closures."""
        new: dict[int, Any] = {id(v): tensors.get(k, v) for k, v in self._tensors.items()}
        new |= {id(old): copied for old, copied in zip(self._modules, copies, strict=True)}
        for key in held:
            state[key] = _rebuilt(state[key], new)
        if "_flat_weights" in held:
            _keep_as_listed(state)

    def watched(self, params: Params) -> Watch:
        """A context that checks how the module uses its parameters."""
        originals = {id(value): name for name, value in self._tensors.items() if name in params}
        trainable = {name: value for name, value in params.items() if value.requires_grad}
        replaced = {id(value) for value in trainable.values()}
        return Watch({i: k for i, k in originals.items() if i not in replaced}, trainable)


class Watch(TorchFunctionMode):
    """Refuses calls that use original tensors, which should be replaced, or block gradients.

    `originals` maps the identities of the module's own tensors to names; `params` replace them.
    """

    def __init__(self, originals: Mapping[int, str], params: Params) -> None:
        super().__init__()
        self._names, self._params = originals, params
        self._replacements = {id(value): name for name, value in params.items()}
        # The parameters that were used, by whether gradients were on.
        self._used: dict[bool, set[str]] = {True: set(), False: set()}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in FACTS:
            for tensor in _tensors_in((*args, *kwargs.values())):
                self._note(tensor)
        return func(*args, **kwargs)

    def check(self, outputs: Any) -> None:
        """Refuses weights used only where gradients are off, unless the outputs depend on them.

        (A torch.autograd.Function switches gradients off inside, but has gradients of its own.)
        """
        doubtful = sorted(self._used[False] - self._used[True])
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
        if id(tensor) in self._replacements:
            self._used[torch.is_grad_enabled()].add(self._replacements[id(tensor)])
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
    """The attributes other than registered tensors and submodules, numbers, and empty dicts."""
    stores = "_parameters", "_buffers", "_modules"
    for key, value in vars(module).items():
        nothing = type(value) in _NUMBERS or (isinstance(value, dict) and not value)
        if not nothing and key not in stores:
            yield key, value


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
    return any(_leads_to(item, known, seen) for item in _inside(value))


def _rebuilt(value: Any, new: dict[int, Any]) -> Any:
    """A copy of a value with objects replaced; `new` maps identities of old objects to new ones."""
    if id(value) in new:
        return new[id(value)]
    if not _leads_to(value, set(new), set()):
        return value
    rebuilt: Any
    if isinstance(value, dict):
        rebuilt = new[id(value)] = copy.copy(value)
        rebuilt.update({key: _rebuilt(item, new) for key, item in value.items()})
    elif isinstance(value, list):
        rebuilt = new[id(value)] = copy.copy(value)
        rebuilt[:] = [_rebuilt(item, new) for item in value]
    elif isinstance(value, MethodType):
        rebuilt = MethodType(value.__func__, _rebuilt(value.__self__, new))
    elif isinstance(value, partial):
        named = {key: _rebuilt(item, new) for key, item in value.keywords.items()}
        rebuilt = partial(_rebuilt(value.func, new), *_rebuilt(value.args, new), **named)
    elif isinstance(value, FunctionType):
        rebuilt = _with_closure(value, new)
    else:
        parts = [_rebuilt(item, new) for item in value]
        rebuilt = type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return rebuilt


def _with_closure(function: FunctionType, new: dict[int, Any]) -> FunctionType:
    """A copy of a function whose closure variables have objects replaced."""
    cells = [CellType() for _ in function.__closure__ or ()]
    options = function.__globals__, function.__name__, function.__defaults__, tuple(cells)
    rebuilt = new[id(function)] = FunctionType(function.__code__, *options)
    rebuilt.__kwdefaults__ = function.__kwdefaults__
    rebuilt.__dict__.update(function.__dict__)
    for cell, old in zip(cells, function.__closure__ or (), strict=True):
        if old != CellType():
            cell.cell_contents = _rebuilt(old.cell_contents, new)
    return rebuilt


def _keep_as_listed(state: dict[str, Any]) -> None:
    """Keeps a recurrent layer from rearranging its list of weights if they are stand-ins.

    On a GPU the layer would move its weights into one block of memory, but tensor subclasses have
    no memory. With references to the listed weights it finds nothing to do.
    """
    listed = state["_flat_weights"]
    if any(type(weight) not in (Tensor, nn.Parameter) for weight in listed):
        state["_flat_weight_refs"] = [weakref.ref(weight) for weight in listed]


def _nodes_behind(outputs: Any) -> set[Any]:
    """All nodes of the autograd graph that produced the outputs."""
    todo = [t.grad_fn for t in _tensors_in((outputs,)) if t.grad_fn is not None]
    seen = set(todo)
    while todo:
        for node, _ in todo.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                todo.append(node)
    return seen
