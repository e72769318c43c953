"""Restricts the caller's torch.autocast to the module: the posterior keeps full precision."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar, cast

import torch

Method = TypeVar("Method", bound=Callable[..., Any])


class Wanted(NamedTuple):
    """The autocast that the caller has switched on."""

    device_type: str
    dtype: torch.dtype
    cached: bool


_WANTED: ContextVar[Wanted | None] = ContextVar("autocast", default=None)


@contextmanager
def full_precision(device_type: str, in_modules: Wanted | None = None) -> Iterator[None]:
    """Switches autocast off, except for `in_modules`, which `called` applies to modules."""
    token = _WANTED.set(in_modules)
    try:
        with torch.autocast(device_type, enabled=False):
            yield
    finally:
        _WANTED.reset(token)


def half_wanted() -> bool:
    """Whether modules compute in float16, which overflows at 65504."""
    wanted = _WANTED.get()
    return wanted is not None and wanted.dtype is torch.float16


def for_modules_only(method: Method) -> Method:
    """Decorates a function of a learner and a state: autocast applies to the module alone.

    It would round the posterior.
    """

    @functools.wraps(method)
    def called(learner: Any, state: Any, *args: Any, **options: Any) -> Any:
        device = state.posterior.device.type
        if not torch.is_autocast_enabled(device):
            return method(learner, state, *args, **options)
        dtype, cached = torch.get_autocast_dtype(device), torch.is_autocast_cache_enabled()
        with full_precision(device, in_modules=Wanted(device, dtype, cached)):
            return method(learner, state, *args, **options)

    return cast(Method, called)


def called(module: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Calls a module under the autocast that the caller switched on."""
    wanted = _WANTED.get()
    if wanted is None:
        return module(*args, **named)
    with torch.autocast(wanted.device_type, wanted.dtype, cache_enabled=wanted.cached):
        return module(*args, **named)
