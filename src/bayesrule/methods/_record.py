"""What there is to know about a method, kept beside the function that builds its learner."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, cast

from torch import nn

from bayesrule.learner import Learner
from bayesrule.likelihoods import Likelihood
from bayesrule.methods._options import COMMON, Parts, arguments, full_signature, unknown_option
from bayesrule.methods._words import EXPLAINED

Choice = Callable[[int, int], Mapping[str, Any]]
Words = tuple[str, str, str, str]


class Need(StrEnum):
    """What a method asks of the model, the data or the machine."""

    LINEAR_MODEL = "a linear model"
    SMOOTH_ACTIVATIONS = "smooth activations, such as softplus"
    SCALED_LAYERS = "layers that bring weights of ±1 to scale, such as batch norm"
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


class Method(Protocol):
    """A named method: makes a learner; `options` are its own, written out in its signature."""

    __name__: str

    def __call__(
        self, model: nn.Module, likelihood: Likelihood, *, num_data: int, **options: Any
    ) -> Learner: ...


@dataclass(frozen=True)
class Record:
    """One method: its four parts in words, where it comes from, and how it is used.

    - `build`: the method itself.
    - `belief`, `expectation`, `curvature`, `rule`: the four choices; classes are in backticks.
    - `source`: paper, section and equation.
    - `needs`: what it asks for; `limits`: what it does not do, in words.
    - `without_effect`: options that it takes, as every method does, and has no use for.
    - `course`: how long it trains where nobody says; `training_options(num_data, num_steps)` are
      the options that it then has instead of its defaults.
    - `options`: what each option does.
    """

    build: Method
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
    words: Words,
    source: str,
    needs: tuple[Need, ...] = (),
    limits: str = "",
    without_effect: tuple[str, ...] = (),
    course: Course = Course(),  # noqa: B008 - it is frozen
    training_options: Choice = lambda num_data, num_steps: {},
    defaults: Mapping[str, Any] | None = None,
    lacks: tuple[str, ...] = (),
    explained: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., Parts]], Method]:
    """Makes a method of a function from its own options to its parts, and keeps its record.

    The method takes `(model, likelihood, *, num_data, ...)`: the function's options and those of
    all methods, written out in its signature and explained in its docstring; it refuses others by
    name. Options that several methods share are the fields of a dataclass, which the function takes
    as an argument `options`. It may also take what all methods do by name, such as `model`.

    - `words`: its belief, expectation, curvature and rule in words, as in the table of methods.
    - `defaults`: of options that it shares with others, where they differ from theirs.
    - `lacks`: options of all methods that it does not have.
    - `explained`: what options do that mean something else here than in `EXPLAINED`.
    """

    def decorate(function: Callable[..., Parts]) -> Method:
        build = _building(function, full_signature(function, defaults or {}, lacks))
        options = _explained(build, explained or {})
        unused = without_effect if Need.DRAWS in needs else (*without_effect, "shared_draws")
        record = Record(
            build,
            *words,
            source=source,
            needs=needs,
            limits=limits,
            without_effect=unused,
            course=course,
            training_options=training_options,
            options=options,
        )
        build.__doc__ = _documented(record)
        RECORDS[record.name] = record
        return build

    return decorate


def _building(function: Callable[..., Parts], signature: inspect.Signature) -> Method:
    """The method: builds a learner of the function's parts, and refuses unknown options by name."""

    @functools.wraps(function)
    def build(*args: Any, **options: Any) -> Learner:
        try:
            bound = signature.bind(*args, **options)
        except TypeError as problem:
            others = [name for name in options if name not in signature.parameters]
            message = unknown_option(build, others) or f"{function.__name__}(): {problem}."
            raise TypeError(message) from None
        bound.apply_defaults()
        parts = function(**arguments(function, bound.arguments))
        common = {name: value for name, value in bound.arguments.items() if name in COMMON}
        return Learner(**common, **vars(parts))

    cast(Any, build).__signature__ = signature
    build.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
    return cast(Method, build)


def _explained(build: Method, words: Mapping[str, str]) -> dict[str, str]:
    """What each option of a method does; a method with an option that nobody explains is faulty."""
    names = [*inspect.signature(build).parameters][2:]
    every = {**EXPLAINED, **words}
    if faults := {*names} - {*every} | {*words} - {*names}:
        raise TypeError(
            f"{build.__name__}: {', '.join(sorted(faults))} is an option without an explanation, "
            "or an explanation without an option; see EXPLAINED and explained=."
        )
    return {name: every[name] for name in names}


def _documented(record: Record) -> str:
    """The docstring with the record and a line for each option."""
    parameters = inspect.signature(record.build).parameters
    facts = {
        "Belief": record.belief,
        "Expectation": record.expectation,
        "Curvature": record.curvature,
        "Rule": record.rule,
        "Source": record.source,
        "Needs": ", ".join(record.needs),
        "Limits": record.limits,
    }
    lines = [f"- {kind}: {words}." for kind, words in facts.items() if words]
    options = [f"- {shown(parameters[name])}: {words}." for name, words in record.options.items()]
    text = inspect.cleandoc(record.build.__doc__ or "")
    return "\n".join([text, "", *lines, "", "Options:", "", *options])


def shown(option: inspect.Parameter) -> str:
    """An option with its default, such as `draws=1`."""
    if option.default is option.empty:
        return f"`{option.name}`"
    value = option.default.__name__ if isinstance(option.default, type) else repr(option.default)
    return f"`{option.name}={value}`"
