"""Options of methods: those that several share are declared here once, and each is explained once.

Names, types and defaults of shared options stand in the groups below; `full_signature` writes them
out for each method, so that `help` shows all of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Required, TypedDict, cast, get_args, get_origin, get_type_hints

from torch.optim import Adam, Optimizer

from bayesrule.curvature import Curvature
from bayesrule.posteriors import FanIn, Posterior, Prior
from bayesrule.posteriors.factorised import SHARE
from bayesrule.rules import Average, Velocity
from bayesrule.schedules import Schedule

Rate = float | Schedule
Momentum = float | Average | Velocity | None


@dataclass(frozen=True)
class Default:
    """The value of an option where nobody says; a method may have another one."""

    value: Any


class Common(TypedDict, total=False):
    """Options that every method has."""

    num_data: Required[int]
    prior: Annotated[Prior | Posterior | None, Default(None)]
    temperature: Annotated[float, Default(1.0)]
    shared_draws: Annotated[bool, Default(False)]


class Settings(Common, total=False):
    """Options of every method whose prior precision is a number from the start."""

    prior_precision: Annotated[float | None, Default(None)]


class NoisyOptions(Settings, total=False):
    """Options of the noisy natural gradients."""

    learning_rate: Annotated[Rate, Default(0.05)]
    momentum: Annotated[Momentum, Default(0.9)]
    rate: Annotated[Rate, Default(0.05)]
    initial_curvature: Annotated[float, Default(1.0)]
    draws: Annotated[int, Default(1)]
    curvature: Annotated[Curvature | None, Default(None)]


class FactorOptions(NoisyOptions, total=False):
    """Options of noisy natural gradients with matrices that are costly to invert."""

    damping: Annotated[float, Default(0.0)]
    kl_clip: Annotated[float, Default(1e-3)]
    stats_every: Annotated[int, Default(10)]
    inverse_every: Annotated[int, Default(100)]


class LayerOptions(FactorOptions, total=False):
    """Options of noisy natural gradients with a pair of factors for each layer."""

    widest: Annotated[int, Default(8192)]


class ElboOptions(Settings, total=False):
    """Options of the methods that follow the gradient of the ELBO."""

    learning_rate: Annotated[Rate, Default(3e-3)]
    scale_multiplier: Annotated[float, Default(10.0)]
    optimiser: Annotated[Callable[..., Optimizer], Default(Adam)]
    kl_weight: Annotated[Rate, Default(1.0)]
    clip: Annotated[float, Default(float("inf"))]
    keep_gradients: Annotated[bool, Default(False)]
    spread: Annotated[float | FanIn, Default(SHARE)]
    known: Annotated[tuple[str, ...], Default(())]


EXPLAINED = {
    "activations": "how activations carry means and variances on; None is MomentMatched()",
    "clip": "largest norm of the whole gradient",
    "curvature": "which curvature is estimated; None is Fisher()",
    "damped_root": "divides by √(f + γ) instead of √f + γ, γ the prior precision per example",
    "damping": "added to the curvature per example in steps of the mean, not in the belief",
    "difference": "takes second derivatives by differences of this relative size, such as 3e-4; "
    "None differentiates twice",
    "draws": "how many draws of the weights each step looks at",
    "empirical_prior": "whether the belief gets the prior precision of largest evidence; None: "
    "where neither a structure nor a prior_precision is given",
    "exact": "enumerates the outputs instead of drawing targets, for small nets",
    "expectation": "how the expected loss is taken: LocalDraws() and Flipout() have less noise "
    "than draws of weights, Moments() has none; None is Draws(1)",
    "gain": "the first standard deviations are gain / √fan_in; FanIn(...) tells kinds apart",
    "initial_curvature": "curvature per example that its average starts from",
    "inverse_every": "every how many steps the belief follows the curvature, which is then "
    "inverted",
    "keep_gradients": "keeps the last gradients in state.rule['gradients'], for SignalToNoise",
    "kl_clip": "shortens steps that would move the predictions by more nats per example",
    "kl_weight": "factor of the KL, a number or a schedule (KL annealing)",
    "known": "names of weights, or patterns such as 'emb*', that have no variance",
    "last_layer": "whether only the last layer has a belief; None: where no structure is given",
    "learning_rate": "step size of the mean, a number or a schedule",
    "limit": "more weights than this are refused: the matrix has a row and a column for each",
    "momentum": "decay of the average of gradients",
    "num_data": "how many examples the whole data set has",
    "online": "averages the curvature during training instead of taking it once at the end",
    "optimiser": "a class of torch.optim, or a call that makes an optimiser of parameter groups",
    "prior": "what is believed before the data: GaussianPrior(δ), or a posterior of earlier data",
    "prior_precision": "δ of the prior N(0, I/δ) over all weights; None is 1",
    "rank": "rank of the standard deviations, or ranks by name such as {'conv*': None, '*': 2}, "
    "where None ties nothing",
    "rate": "share of the newest curvature in its average, a number or a schedule",
    "rule": "bounds on the steps; None is Conditioning()",
    "scale_multiplier": "learning rate of the standard deviations, as a multiple of learning_rate",
    "share": "part of each batch that the second-order term is taken from",
    "shared_draws": "whether all ranks of torch.distributed draw the same weights",
    "spread": "first standard deviations as a share of the prior's, or FanIn(...)",
    "stats_every": "every how many steps the curvature is estimated",
    "structure": "shape of the belief's precision, such as Kronecker(); None: full for the last "
    "layer, diagonal online",
    "temperature": "T in E[loss]/T + KL; below 1 the data count more",
    "widest": "layers with more inputs or outputs than this have diagonal blocks",
}
"""What each option does, where the method itself does not say otherwise."""


def common(options: Settings) -> Settings:
    """Those of the options that `Learner` has."""
    names = Settings.__annotations__
    return cast(Settings, {name: value for name, value in options.items() if name in names})


def full_signature(function: Callable[..., Any], defaults: Mapping[str, Any]) -> inspect.Signature:
    """The signature with the options of the group in `**options: Unpack[Group]` written out.

    `defaults` are those of this method where it differs from its group.
    """
    signature = inspect.signature(function, eval_str=True)
    *own, shared = signature.parameters.values()
    (group,) = get_args(shared.annotation)
    hints = get_type_hints(group, include_extras=True)
    if strange := defaults.keys() - hints.keys():
        raise TypeError(f"{group.__name__} has no {', '.join(sorted(strange))}.")
    options = [_parameter(name, hint, defaults) for name, hint in hints.items()]
    # What every method has comes last, but for what a caller has to give.
    options.sort(key=lambda option: option.name in Settings.__annotations__)
    required = [option for option in options if option.default is option.empty]
    optional = [option for option in options if option.default is not option.empty]
    return signature.replace(parameters=[*own[:2], *required, *own[2:], *optional])


def _parameter(name: str, hint: Any, defaults: Mapping[str, Any]) -> inspect.Parameter:
    """One option of a group, with its type and default."""
    kind, (annotation, *rest) = inspect.Parameter.KEYWORD_ONLY, get_args(hint)
    if get_origin(hint) is Required:
        return inspect.Parameter(name, kind, annotation=annotation)
    (default,) = rest
    value = defaults.get(name, default.value)
    return inspect.Parameter(name, kind, default=value, annotation=annotation)


def option_names(method: Callable[..., Any]) -> list[str]:
    """The options that a method takes, its own and those of all, in the order of the alphabet.

    >>> from bayesrule.methods import sgd
    >>> option_names(sgd)
    ['learning_rate', 'momentum', 'prior', 'prior_precision', 'shared_draws', 'temperature']
    """
    parameters = inspect.signature(method).parameters.values()
    names = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        names |= {*Settings.__annotations__}
    return sorted(names - {"num_data"})


def unknown_option(method: Callable[..., Any], options: Iterable[str]) -> str | None:
    """What to say of the first option that a method does not have; None where it has all."""
    names = option_names(method)
    for option in options:
        if option not in names and option != "num_data":
            near = get_close_matches(option, names, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            return f"{method.__name__} has no option {option}; it takes {', '.join(names)}.{hint}"
    return None
