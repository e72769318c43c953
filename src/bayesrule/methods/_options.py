"""What the function behind a method takes and returns: its options and its parts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, get_type_hints

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


COMMON = {
    name: parameter
    for name, parameter in inspect.signature(Learner, eval_str=True).parameters.items()
    if name not in Parts.__dataclass_fields__
}
"""What every method takes: all that a `Learner` takes, except for the parts."""


def options_of(function: Callable[..., Parts]) -> dict[str, inspect.Parameter]:
    """What a function takes, with the fields of its argument `options`, a dataclass, one by one."""
    options = dict(inspect.signature(function, eval_str=True).parameters)
    if shared := options.pop("options", None):
        types = get_type_hints(shared.annotation)
        for name, field in inspect.signature(shared.annotation).parameters.items():
            options[name] = field.replace(annotation=types[name])
    return {name: option.replace(kind=option.KEYWORD_ONLY) for name, option in options.items()}


def full_signature(
    function: Callable[..., Parts], defaults: Mapping[str, Any], lacks: tuple[str, ...]
) -> inspect.Signature:
    """`(model, likelihood, *, num_data, ...)`: the function's own options, then those of all."""
    common = {name: option for name, option in COMMON.items() if name not in lacks}
    required = {name: option for name, option in common.items() if option.default is option.empty}
    special = {name: one for name, one in options_of(function).items() if name not in COMMON}
    every = required | special | common
    if strange := {*defaults} - {*every} | {*lacks} - {*COMMON}:
        names = ", ".join(sorted(strange))
        raise TypeError(f"{function.__name__} has no option {names}; see defaults= and lacks=.")
    changed = {name: every[name].replace(default=value) for name, value in defaults.items()}
    return inspect.Signature([*(every | changed).values()], return_annotation=Learner)


def arguments(function: Callable[..., Parts], values: Mapping[str, Any]) -> dict[str, Any]:
    """What a function is called with, from the values of all options of its method."""
    if shared := get_type_hints(function).get("options"):
        chosen = {field.name: values[field.name] for field in fields(shared)}
        values = {**values, "options": shared(**chosen)}
    return {name: values[name] for name in inspect.signature(function).parameters}


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
