"""Checks that refuse unfit modules and non-finite numbers, with errors that name them."""

import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bayesrule.tensors.inputs import mapped, parts
from bayesrule.tensors.outputs import fields
from bayesrule.types import Params, State

Step = TypeVar("Step", bound=Callable[..., Any])
NARROW = torch.float16, torch.bfloat16


def check_module(model: nn.Module) -> None:
    """Raises a ValueError that names a layer or parameter which the library cannot handle."""
    for name, module in model.named_modules():
        reason = _layer_obstacle(module)
        if reason is not None:
            raise ValueError(f"Layer {name!r} ({type(module).__name__}) {reason}")
    for name, parameter in model.named_parameters():
        reason = _parameter_obstacle(parameter)
        if reason is not None:
            raise ValueError(f"Parameter {name!r} {reason}")


def _layer_obstacle(module: nn.Module) -> str | None:
    if isinstance(module, torch.jit.ScriptModule):
        return (
            "is a script module, whose code runs where its weights cannot be replaced. Give the "
            "module that it was made from."
        )
    if getattr(module, "max_norm", None) is not None:
        return (
            f"has max_norm={module.max_norm}: it changes its weights while it runs, which would "
            "change a belief behind its back. Build it with max_norm=None; the prior keeps weights "
            "small."
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
        return (
            "has sparse=True, but a step moves the belief over all of its rows. Build it with "
            "sparse=False."
        )
    return None


def _parameter_obstacle(parameter: Tensor) -> str | None:
    if is_lazy(parameter):
        return "has no shape yet (a lazy layer). Call the module on a batch once before."
    if parameter.is_meta:
        return "is on the meta device and has no numbers. Use module.to_empty(device=...) and fill."
    if not parameter.requires_grad:
        return None
    kind = parameter.dtype
    if kind.is_complex:
        return f"is complex ({kind}); beliefs are over real numbers. Keep two real parameters."
    if kind in NARROW:
        return (
            f"is in half precision ({kind}), in which small changes of a belief are lost. Use "
            "module.float(); for speed put torch.autocast into its forward()."
        )
    if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
        return (
            "has a hook on its gradient, which would not be called, because the loss is computed "
            "with other tensors in its place. Remove the hook."
        )
    if not parameter.isfinite().all():
        return f"holds {_shown(parameter)}; a belief has to start from finite numbers."
    return None


def check_outputs(outputs: Any, examples: int) -> Tensor:
    """Checks that the outputs of a module are one real tensor with a row per example.

    Returns them, in single precision if autocast inside the module left them in half.
    """
    if not isinstance(outputs, Tensor):
        raise TypeError(_no_tensor(outputs))
    if outputs.ndim == 0 or len(outputs) != examples:
        raise ValueError(
            f"The module returns a tensor of shape {tuple(outputs.shape)} for {examples} examples; "
            "its outputs must have a row for each example (and the loss is the likelihood's)."
        )
    if outputs.dtype.is_complex:
        raise TypeError(f"The module returns complex numbers ({outputs.dtype}); return real ones.")
    return wide(outputs)


def _no_tensor(outputs: Any) -> str:
    """The error message for outputs that are not a tensor, with the way out."""
    kind = "None" if outputs is None else f"a {type(outputs).__name__}"
    way_out = "Wrap it in a module that returns that tensor alone."
    if names := fields(outputs):
        kind += f" of {', '.join(map(str, names))}"
        way_out = (
            f"Choose one as bayesrule.Output(model, {names[0]!r}); 'logits' is found by itself."
        )
    return (
        f"The module returns {kind}, but its outputs must be one tensor with a row for each "
        f"example. {way_out}"
    )


def wide(value: Any) -> Any:
    """Converts half-precision tensors, alone or in a tuple, to single precision."""
    if isinstance(value, tuple):
        return tuple(wide(part) for part in value)
    return value.float() if isinstance(value, Tensor) and value.dtype in NARROW else value


def check_finite(what: str, values: Any) -> None:
    """Refuses NaN and infinite numbers among inputs or targets, naming columns and rows.

    One sum tests all rows. Only if it is not finite, which may be an overflow, is each number
    tested.
    """
    for part in parts(values):
        if type(part) is Tensor and part.is_floating_point() and not _sums_up(part):
            refuse_where(what, ~part.isfinite())


def refuse_where(what: str, bad: Tensor) -> None:
    """Raises a ValueError that names the columns (for (n, columns)) or rows of bad numbers."""
    if not bad.any():
        return
    rows = bad.flatten(1).any(1) if bad.ndim > 1 else bad
    kind, places = ("columns", bad.any(0)) if bad.ndim == 2 else ("examples", rows)
    numbers = places.nonzero().flatten().tolist()
    shown = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
    raise ValueError(
        f"{what} are not finite in {kind} {shown} ({int(bad.sum())} numbers that are NaN or "
        f"infinite in all, the first in row {int(rows.nonzero()[0])}). Fill them in or drop their "
        "rows; tagi takes NaN for a target that is missing, and "
        "br.weighted(y) leaves out such rows for all others."
    )


def check_loss(loss: Tensor, y: Tensor, mean: Callable[[], Params]) -> None:
    """Explains a non-finite loss: raises if the targets or the weights are not finite."""
    if not _sums_up(loss):
        check_finite("The targets", y)
        check_belief(loss, mean)


def check_belief(result: Tensor, mean: Callable[[], Params]) -> None:
    """Explains a non-finite result: raises if the posterior's mean is not finite."""
    if _sums_up(result):
        return
    for name, value in mean().items():
        if not value.isfinite().all():
            raise FloatingPointError(
                f"The belief is not finite: the mean of {name!r} holds {_shown(value)}. It was "
                "given so, or an earlier step made it so; a smaller learning_rate, standardised "
                "inputs or a larger prior_precision usually help."
            )


def _sums_up(values: Tensor) -> bool:
    return math.isfinite(values.sum().item())


def _shown(values: Tensor) -> str:
    return "NaN" if values.isnan().any() else "infinity"


def with_gradients(step: Step) -> Step:
    """Decorates a step so that it works where the caller has switched gradients off."""

    @functools.wraps(step)
    def taken(self: Any, state: State, batch: Any, **options: Any) -> Any:
        state.check()
        if torch.is_grad_enabled():
            return step(self, state, batch, **options)
        with torch.inference_mode(False), torch.enable_grad():
            return step(self, state, recordable(batch), **options)

    return cast(Step, taken)


def recordable(x: Any) -> Any:
    """Clones tensors made in inference mode, which a backward pass may not keep."""
    return mapped(x, lambda part: part.clone() if part.is_inference() else part)


def whole_number(name: str, value: Any) -> int:
    """The value of an option that counts something; raises unless it is 1 or more."""
    if not (isinstance(value, int) and value >= 1):
        raise ValueError(f"{name} is a whole number of at least 1, got {value!r}.")
    return value
