"""What the function behind a method takes and returns: its options and its parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import cache
from typing import Any, Self, get_type_hints

from bayesrule.curvature import Curvature
from bayesrule.expectations import Expectation
from bayesrule.learner import Learner
from bayesrule.posteriors import Family
from bayesrule.rules import Rule
from bayesrule.schedules import Schedule

Rate = float | Schedule


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A method: which parts a `Learner` is built of; `Learner` says what each is."""

    posterior: Family
    expectation: Expectation
    curvature: Curvature
    rule: Rule
    predictive: object | None = None
    final_curvature: Curvature | None = None
    empirical_prior: bool = False


def _common() -> dict[str, inspect.Parameter]:
    parts = {part.name for part in fields(Parts)}
    every = inspect.signature(Learner, eval_str=True).parameters
    return {name: parameter for name, parameter in every.items() if name not in parts}


COMMON = _common()
"""What every method takes: all that a `Learner` takes, except for the parts."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options that several methods share: the fields of a subclass, a frozen dataclass.

    The function behind a method takes them as one argument of that class; the method has an option
    for each field.
    """

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The fields among the values of all options."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})


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


@cache
def declared(function: Callable[..., Parts]) -> Mapping[str, inspect.Parameter]:
    """The arguments of the function behind a method, some of which may be groups of options."""
    return inspect.signature(function, eval_str=True).parameters


def arguments(function: Callable[..., Parts], values: Mapping[str, Any]) -> dict[str, Any]:
    """What the function behind a method is called with, from the values of all options."""
    return {
        name: option.annotation.of(values) if _is_group(option) else values[name]
        for name, option in declared(function).items()
    }


def full_signature(
    function: Callable[..., Parts], defaults: Mapping[str, Any], lacks: tuple[str, ...]
) -> inspect.Signature:
    """`(model, likelihood, *, num_data, ...)`: the function's own options, then those of all."""
    shared = {name: option for name, option in COMMON.items() if name not in lacks}
    required = {name: option for name, option in shared.items() if option.default is option.empty}
    own = {one.name: one for option in declared(function).values() for one in _written_out(option)}
    every = required | {name: own[name] for name in own if name not in COMMON} | shared
    if strange := {*defaults} - {*every} | {*lacks} - {*COMMON}:
        names = ", ".join(sorted(strange))
        raise TypeError(f"{function.__name__} has no option {names}; see defaults= and lacks=.")
    changed = {name: every[name].replace(default=value) for name, value in defaults.items()}
    return inspect.Signature([*(every | changed).values()], return_annotation=Learner)


def _is_group(option: inspect.Parameter) -> bool:
    return isinstance(option.annotation, type) and issubclass(option.annotation, Options)


def _written_out(option: inspect.Parameter) -> Iterator[inspect.Parameter]:
    """The option by itself, or one for each field of a group; callers give them by name."""
    if not _is_group(option):
        yield option.replace(kind=option.KEYWORD_ONLY)
        return
    types = get_type_hints(option.annotation)
    for name, field in inspect.signature(option.annotation).parameters.items():
        yield field.replace(annotation=types[name])


def option_names(method: Callable[..., Any]) -> list[str]:
    """The options that a method takes, its own and those of all, in the order of the alphabet.

    >>> from bayesrule.methods import sgd
    >>> option_names(sgd)
    ['learning_rate', 'momentum', 'prior', 'prior_precision', 'shared_draws', 'temperature']
    """
    options = inspect.signature(method).parameters.values()
    names = {option.name for option in options if option.kind is option.KEYWORD_ONLY}
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
