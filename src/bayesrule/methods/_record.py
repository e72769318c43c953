"""What there is to know about a method, kept beside the function that builds its learner."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ParamSpec, cast

from bayesrule.learner import Learner
from bayesrule.methods._options import EXPLAINED, full_signature, unknown_option

P = ParamSpec("P")
Build = Callable[P, Learner]
Choice = Callable[[int, int], Mapping[str, Any]]

# Words that several records share.
AT_MEAN = "at the mean (`AtMean`)"
AT_DRAWS = "at weight draws (`Draws`)"
DIAGONAL = "independent weights (`Diagonal`)"
SQUARES_OF_EXAMPLES = "squared gradients of single examples (`PerExample`)"
SAMPLED_FISHER = "Fisher information, targets drawn from the model (`Fisher`)"


class Need(StrEnum):
    """What a method asks of the model, the data or the machine."""

    LINEAR_MODEL = "a linear model"
    SMOOTH_ACTIVATIONS = "smooth activations, such as softplus"
    CHAIN = "a chain of linear and convolution layers"
    MOMENT_RULES = "operations that moments can be carried through"
    REAL_TARGETS = "real-valued targets"
    SINGLE_EXAMPLES = "gradients of single examples"
    DRAWS = "weight draws"


@dataclass(frozen=True)
class Course:
    """How many epochs are trained where nobody says: from `least` to `most`.

    They are as many as make about `steps` steps. With `whole` each step sees all the data;
    otherwise `batch` examples. `noise` is how a Gaussian likelihood learns it.
    """

    least: int = 20
    most: int = 400
    steps: int = 2000
    batch: int = 32
    whole: bool = False
    noise: Mapping[str, float] = field(default_factory=dict)

    def epochs(self, batches: int, steps: int | None) -> int:
        """How many, with so many batches in an epoch."""
        return max(self.least, min(self.most, round((steps or self.steps) / batches)))


def as_built(num_data: int, num_steps: int) -> Mapping[str, Any]:
    """No options: the method trains with its own defaults."""
    return {}


@dataclass(frozen=True)
class Record:
    """One method: its four parts in words, where it comes from, and how it is used.

    - `build`: the function that makes the learner.
    - `belief`, `expectation`, `curvature`, `rule`: the four choices; classes are in backticks.
    - `source`: paper, section and equation.
    - `needs`: what it asks for; `limits`: what it does not do, in words.
    - `without_effect`: options that it takes, as every method does, and has no use for.
    - `course`: how long it trains where nobody says; `training_options(num_data, num_steps)` are
      the options that it then has instead of its defaults.
    """

    build: Callable[..., Learner]
    belief: str
    expectation: str
    curvature: str
    rule: str
    source: str
    needs: tuple[Need, ...]
    limits: str
    without_effect: tuple[str, ...]
    course: Course
    training_options: Choice
    options: Mapping[str, str]
    """What each option does."""

    @property
    def name(self) -> str:
        """As the method is called."""
        return self.build.__name__

    @property
    def summary(self) -> str:
        """What it is, in one sentence."""
        return inspect.cleandoc(self.build.__doc__ or "").splitlines()[0]


RECORDS: dict[str, Record] = {}
"""Every record by the name of its method."""


def method(
    *,
    belief: str,
    expectation: str,
    curvature: str,
    rule: str,
    source: str,
    needs: tuple[Need, ...] = (),
    limits: str = "",
    without_effect: tuple[str, ...] = (),
    course: Course | None = None,
    training_options: Choice = as_built,
    defaults: Mapping[str, Any] | None = None,
    explained: Mapping[str, str] | None = None,
) -> Callable[[Build[P]], Build[P]]:
    """Makes a method of a function: keeps its record, completes its options and its docstring.

    The function gets every option of its group with a value: the caller's, this method's
    (`defaults`) or the group's. Others are refused by name. `explained` says what options do that
    mean something else here than in `EXPLAINED`.
    """

    def decorate(function: Build[P]) -> Build[P]:
        build = _completed(function, full_signature(function, defaults or {}))
        options = _explained(build, explained or {})
        ignored = without_effect if Need.DRAWS in needs else (*without_effect, "shared_draws")
        record = Record(
            build=build,
            belief=belief,
            expectation=expectation,
            curvature=curvature,
            rule=rule,
            source=source,
            needs=needs,
            limits=limits,
            without_effect=ignored,
            course=course or Course(),
            training_options=training_options,
            options=options,
        )
        build.__doc__ = _documented(record)
        RECORDS[record.name] = record
        return build

    return decorate


def _explained(build: Callable[..., Learner], words: Mapping[str, str]) -> dict[str, str]:
    """What each option of a method does; a method with an option that nobody explains is faulty."""
    names = [*inspect.signature(build).parameters][2:]
    every = {**EXPLAINED, **words}
    faults = {*names} - {*every} | {*words} - {*names}
    if faults:
        raise TypeError(
            f"{build.__name__}: {', '.join(sorted(faults))} is an option without an explanation, "
            "or an explanation without an option; see EXPLAINED and explained=."
        )
    return {name: every[name] for name in names}


def _completed(function: Build[P], signature: inspect.Signature) -> Build[P]:
    """The function with all options filled in, and unknown ones refused by name."""

    @functools.wraps(function)
    def build(*args: P.args, **options: P.kwargs) -> Learner:
        if problem := unknown_option(build, options):
            raise TypeError(problem)
        try:
            bound = signature.bind(*args, **options)
        except TypeError as problem:
            raise TypeError(f"{function.__name__}(): {problem}.") from None
        bound.apply_defaults()
        return function(*bound.args, **bound.kwargs)

    cast(Any, build).__signature__ = signature
    return build


def _documented(record: Record) -> str:
    """The docstring with the record and a line for each option."""
    parameters = inspect.signature(record.build).parameters
    lines = [
        inspect.cleandoc(record.build.__doc__ or ""),
        "",
        f"- Belief: {record.belief}.",
        f"- Expectation: {record.expectation}.",
        f"- Curvature: {record.curvature}.",
        f"- Rule: {record.rule}.",
        f"- Source: {record.source}.",
        *([f"- Needs: {', '.join(record.needs)}."] if record.needs else []),
        *([f"- Limits: {record.limits}."] if record.limits else []),
        "",
        "Options:",
        "",
        *(f"- {shown(parameters[name])}: {words}." for name, words in record.options.items()),
    ]
    return "\n".join(lines)


def shown(option: inspect.Parameter) -> str:
    """An option with its default, such as `draws=1`."""
    if option.default is option.empty:
        return f"`{option.name}`"
    default = option.default
    value = default.__name__ if isinstance(default, type) else repr(default)
    return f"`{option.name}={value}`"
