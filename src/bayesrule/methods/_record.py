"""Turns a function from options to parts into a named method, and keeps the method's record."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Protocol, cast, get_type_hints

from torch import nn

from bayesrule.curvature import Curvature
from bayesrule.expectations import Draws, Expectation
from bayesrule.learner import Learner
from bayesrule.likelihoods import Likelihood
from bayesrule.methods._words import EXPLAINED
from bayesrule.posteriors import Family
from bayesrule.rules import Rule
from bayesrule.schedules import Schedule

Rate = float | Schedule
Choice = Callable[[int, int], Mapping[str, Any]]


@dataclass(frozen=True)
class Parts:
    """The parts of a method; `Learner` explains each of them."""

    posterior: Family
    expectation: Expectation
    curvature: Curvature
    rule: Rule
    predictive: object | None = None
    final_curvature: Curvature | None = None
    empirical_prior: bool = False
    warm_start: bool = False

    @classmethod
    def at_draws(
        cls,
        family: Family,
        expectation: Expectation,
        curvature: Curvature,
        rule: Rule,
        **more: Any,
    ) -> Parts:
        """The parts of methods that train at weight draws and predict with 32 of them."""
        return cls(family, expectation, curvature, rule, Draws(32), **more)


COMMON = {
    name: parameter
    for name, parameter in inspect.signature(Learner, eval_str=True).parameters.items()
    if name not in Parts.__dataclass_fields__
}
"""The options of every method: those of a `Learner` except the parts."""


class Need(StrEnum):
    """What a method needs from the model, the data or the machine."""

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
    """How a method trains on a table by default.

    Held-out rows choose among the numbers of `steps` and among the `temperatures`; the number of
    epochs stays between `least` and `most`. If the longest training sees each example less than
    `repeats` times, as in large tables, one four times as long may be chosen, too. With `whole`,
    each step sees all the data; otherwise it sees `batch` examples, or up to four times as many in
    large tables. `noise` are options of a Gaussian likelihood that learns its noise. `start` is the
    search for the most probable weights, for methods that begin there. The options `stay` are tried
    beside the temperatures; with them a method keeps these weights as its mean and learns only the
    width of its posterior. `members` nets learn from different first weights and have an equal say:
    each posterior has one mode, but the true posterior of a network has many.
    """

    least: int = 10
    most: int = 1000
    steps: tuple[int, ...] = (1000, 4000)
    repeats: int = 50
    batch: int = 32
    whole: bool = False
    noise: Mapping[str, float] = field(default_factory=dict)
    temperatures: tuple[float, ...] = ()
    start: Course | None = None
    stay: tuple[Mapping[str, float], ...] = ()
    members: int = 5

    def epochs(self, batches: int, steps: int) -> int:
        """The number of epochs with about `steps` steps, within `least` and `most`."""
        return max(self.least, min(self.most, round(steps / batches)))

    def lengths(self, batches: int) -> list[int]:
        """The numbers of epochs to choose from, with this number of batches per epoch.

        >>> Course().lengths(25), Course().lengths(320)
        ([40, 160], [10, 50])
        """
        longest = self.steps[-1]
        more = (4 * longest,) if longest < self.repeats * batches else ()
        lengths = [self.epochs(batches, self.steps[0])]
        for steps in (*self.steps[1:], *more):
            # A training that is hardly longer is not worth its time.
            if (epochs := self.epochs(batches, steps)) >= 2 * lengths[-1]:
                lengths.append(epochs)
        return lengths

    def batch_size(self, num_data: int) -> int:
        """The number of examples per step."""
        if self.whole:
            return num_data
        larger = 1 if num_data < 8000 else 2 if num_data < 30_000 else 4
        return min(self.batch * larger, num_data)


# Methods without a posterior of the weights train one net.
ONE_NET = Course(members=1)
# Below 1 the data count more, which helps posteriors that are too wide over all weights together.
TEMPERED = Course(temperatures=(1.0, 0.3, 0.1, 0.03))
# From the most probable weights only their spread remains to be learned. If draws lead the mean to
# a worse place, as with few rows, it is better to leave it there, with a narrow posterior or one
# that is hardly wider than that of `map`.
STAY = tuple({"temperature": t, "learning_rate": 0.0} for t in (0.1, 0.01))
WARM = replace(TEMPERED, start=ONE_NET, stay=STAY)


class Method(Protocol):
    """A named method: makes a learner; its signature lists its `options` by name."""

    __name__: str

    def __call__(
        self, model: nn.Module, likelihood: Likelihood, *, num_data: int, **options: Any
    ) -> Learner: ...


@dataclass(frozen=True)
class Record:
    """One method: its four parts in words, its source, and how it is used.

    - `build`: the method itself.
    - `belief`, `expectation`, `curvature`, `rule`: the four choices; classes are in backticks.
    - `source`: paper, section and equation.
    - `needs`: what it requires; `limits`: what it cannot do, in words.
    - `without_effect`: options that it accepts, as every method does, but ignores.
    - `course`: how it trains by default; `training_options(num_data, num_steps)` are the options
      that then replace its defaults.
    - `options`: what each option does.
    - `represented_by`: a close relative to try in its place when no method is chosen, because it is
      as good and cheaper, or does the same thing better.
    """

    build: Method
    belief: str
    expectation: str
    curvature: str
    rule: str
    options: Mapping[str, str]
    source: str
    needs: tuple[Need, ...] = ()
    limits: str = ""
    without_effect: tuple[str, ...] = ()
    course: Course = Course()
    training_options: Choice = lambda num_data, num_steps: {}
    represented_by: str = ""

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.build.__name__

    @property
    def summary(self) -> str:
        """The method in one sentence."""
        return inspect.cleandoc(self.build.__doc__ or "").splitlines()[0]

    def heeds(self, option: str) -> bool:
        """Whether an option of this name changes what the method does."""
        return option in self.options and option not in self.without_effect


RECORDS: dict[str, Record] = {}
"""Every record by the name of its method."""


def method(
    *,
    words: tuple[str, str, str, str],
    defaults: Mapping[str, Any] | None = None,
    lacks: tuple[str, ...] = (),
    explained: Mapping[str, str] | None = None,
    **facts: Any,
) -> Callable[[Callable[..., Parts]], Method]:
    """Decorates a function from a method's options to its parts: makes the method and its record.

    The method takes `(model, likelihood, *, num_data, ...)`: the function's options and those of
    all methods. All are in its signature and explained in its docstring, and it refuses others by
    name. Options that several methods share are the fields of a dataclass, which the function takes
    as its argument `options`. The function may also take options of all methods, such as `model`.

    - `words`: belief, expectation, curvature and rule in words, as in the table of methods.
    - `defaults`: its own defaults of shared options.
    - `lacks`: options of all methods that it does not have.
    - `explained`: options that mean something else here than in `EXPLAINED`.
    - `facts`: the other fields of its `Record`: `source`, `needs`, `limits`, `course` and so on.
    """

    def decorate(function: Callable[..., Parts]) -> Method:
        build = _building(function, _signature(function, defaults or {}, lacks))
        if Need.DRAWS not in facts.get("needs", ()):
            facts["without_effect"] = (*facts.get("without_effect", ()), "shared_draws")
        record = Record(build, *words, options=_explained(build, explained or {}), **facts)
        build.__doc__ = _documented(record)
        RECORDS[record.name] = record
        return build

    return decorate


def _signature(
    function: Callable[..., Parts], defaults: Mapping[str, Any], lacks: tuple[str, ...]
) -> inspect.Signature:
    """`(model, likelihood, *, num_data, ...)`: the function's own options, then those of all.

    Each field of its argument `options`, a dataclass, becomes an option.
    """
    parameters = dict(inspect.signature(function, eval_str=True).parameters)
    if shared := parameters.pop("options", None):
        types = get_type_hints(shared.annotation)
        for name, field in inspect.signature(shared.annotation).parameters.items():
            parameters[name] = field.replace(annotation=types[name])
    common = {name: option for name, option in COMMON.items() if name not in lacks}
    required = {name: option for name, option in common.items() if option.default is option.empty}
    special = {k: v.replace(kind=v.KEYWORD_ONLY) for k, v in parameters.items() if k not in COMMON}
    options = required | special | common
    if unknown := {*defaults} - {*options} | {*lacks} - {*COMMON}:
        names = ", ".join(sorted(unknown))
        raise TypeError(f"{function.__name__} has no option {names}; see defaults= and lacks=.")
    changed = {name: options[name].replace(default=value) for name, value in defaults.items()}
    return inspect.Signature([*(options | changed).values()], return_annotation=Learner)


@functools.cache
def _shape(function: Callable[..., Parts]) -> tuple[tuple[str, ...], Any]:
    """The names of a function's arguments, and the class of the options that it shares."""
    return tuple(inspect.signature(function).parameters), get_type_hints(function).get("options")


def _arguments(function: Callable[..., Parts], values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the function, from the values of all options of its method."""
    names, shared = _shape(function)
    if shared:
        chosen = {field.name: values[field.name] for field in fields(shared)}
        values = {**values, "options": shared(**chosen)}
    return {name: values[name] for name in names}


def _building(function: Callable[..., Parts], signature: inspect.Signature) -> Method:
    """The method: builds a learner of the function's parts, and refuses unknown options by name."""

    @functools.wraps(function)
    def build(*args: Any, **options: Any) -> Learner:
        try:
            bound = signature.bind(*args, **options)
        except TypeError as problem:
            unknown = [name for name in options if name not in signature.parameters]
            message = unknown_option(build, unknown) or f"{function.__name__}(): {problem}."
            raise TypeError(message) from None
        if bound.arguments.get("prior") is not None:
            # The method's default prior precision must not count as a second prior.
            bound.arguments.setdefault("prior_precision", None)
        bound.apply_defaults()
        parts = function(**_arguments(function, bound.arguments))
        common = {name: value for name, value in bound.arguments.items() if name in COMMON}
        return Learner(**common, **vars(parts))

    cast(Any, build).__signature__ = signature
    build.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    return cast(Method, build)


def _explained(build: Method, words: Mapping[str, str]) -> dict[str, str]:
    """What each option of a method does; raises if an option has no explanation."""
    names = [*inspect.signature(build).parameters][2:]
    explained = {**EXPLAINED, **words}
    if faults := {*names} - {*explained} | {*words} - {*names}:
        raise TypeError(
            f"{build.__name__}: {', '.join(sorted(faults))} is an option without an explanation, "
            "or an explanation without an option; see EXPLAINED and explained=."
        )
    return {name: explained[name] for name in names}


def _documented(record: Record) -> str:
    """The docstring with the record and a line for each option."""
    parameters = inspect.signature(record.build).parameters
    kinds = ("belief", "expectation", "curvature", "rule", "source", "needs", "limits")
    facts = {kind: getattr(record, kind) for kind in kinds} | {"needs": ", ".join(record.needs)}
    lines = [f"- {kind.capitalize()}: {words}." for kind, words in facts.items() if words]
    options = [f"- {shown(parameters[name])}: {words}." for name, words in record.options.items()]
    text = inspect.cleandoc(record.build.__doc__ or "")
    return "\n".join([text, "", *lines, "", "Options:", "", *options])


def shown(option: inspect.Parameter) -> str:
    """An option with its default, such as `draws=1`."""
    if option.default is option.empty:
        return f"`{option.name}`"
    value = option.default.__name__ if isinstance(option.default, type) else repr(option.default)
    return f"`{option.name}={value}`"


def option_names(method: Callable[..., Any]) -> list[str]:
    """The options that a method takes, its own and those of all, in alphabetical order.

    >>> from bayesrule.methods import sgd
    >>> option_names(sgd)
    ['learning_rate', 'momentum', 'prior', 'prior_precision', 'shared_draws', 'temperature']
    """
    options = inspect.signature(method).parameters.values()
    names = {option.name for option in options if option.kind is option.KEYWORD_ONLY}
    return sorted(names - {"num_data"})


def unknown_option(method: Callable[..., Any], options: Iterable[str]) -> str | None:
    """An error message for the first option that the method does not have; None if it has all."""
    names = option_names(method)
    for option in options:
        if option not in names and option != "num_data":
            near = get_close_matches(option, names, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            return f"{method.__name__} has no option {option}; it takes {', '.join(names)}.{hint}"
    return None
