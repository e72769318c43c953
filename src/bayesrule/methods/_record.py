"""What a method is made of, its options, and what there is to know about it."""

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
    """A method: which parts a `Learner` is built of; `Learner` says what each is."""

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
        """Those of methods that look at draws, and predict with more of them."""
        return cls(family, expectation, curvature, rule, Draws(32), **more)


COMMON = {
    name: parameter
    for name, parameter in inspect.signature(Learner, eval_str=True).parameters.items()
    if name not in Parts.__dataclass_fields__
}
"""What every method takes: all that a `Learner` takes, except for the parts."""


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
    """How a method trains on a table where nobody says.

    For as many epochs, from `least` to `most`, as make about one of the numbers of `steps`, and at
    one of the `temperatures`, whichever held-out rows are best known with. With `whole` each step
    sees all the data; otherwise `batch` examples, of many rows up to four times as many. `noise` is
    how a Gaussian likelihood learns it. `start` is how the most probable weights are looked for
    first, for methods that begin there; with each of the options `stay`, which are tried beside
    the temperatures, they stay there and learn only how wide their belief is. `members` nets learn
    from other first weights and have an equal say: beliefs have one mode each, and what a network
    may know has many.
    """

    least: int = 10
    most: int = 1000
    steps: tuple[int, ...] = (1000, 4000, 16_000)
    batch: int = 32
    whole: bool = False
    noise: Mapping[str, float] = field(default_factory=dict)
    temperatures: tuple[float, ...] = ()
    start: Course | None = None
    stay: tuple[Mapping[str, float], ...] = ()
    members: int = 5

    def epochs(self, batches: int, steps: int) -> int:
        """How many make about so many steps, with so many batches in an epoch."""
        return max(self.least, min(self.most, round(steps / batches)))

    def lengths(self, batches: int) -> list[int]:
        """The numbers of epochs to choose from, with so many batches in an epoch."""
        return sorted({self.epochs(batches, steps) for steps in self.steps})

    def batch_size(self, num_data: int) -> int:
        """How many examples a step sees."""
        if self.whole:
            return num_data
        larger = 1 if num_data < 8000 else 2 if num_data < 30_000 else 4
        return min(self.batch * larger, num_data)


# What is not a belief about the weights is one net.
ONE_NET = Course(members=1)
# Below one the data count more: beliefs that are too wide in all weights together fit better.
TEMPERED = Course(temperatures=(1.0, 0.3, 0.1, 0.03))
# At the most probable weights only their spread is left to learn. Where draws lead the mean to a
# worse place, as among few rows, it is better left there, with a belief that is not too wide, or
# hardly wider than that of `map`.
STAY = tuple({"temperature": one, "learning_rate": 0.0} for one in (0.1, 0.01))
WARM = replace(TEMPERED, steps=(1000, 4000), start=ONE_NET, stay=STAY)


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
    - `represented_by`: a close relative that stands for it where nobody chooses a method, because
      it is as good and cheaper, or the same thing done better.
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
        """As the method is called."""
        return self.build.__name__

    @property
    def summary(self) -> str:
        """What it is, in one sentence."""
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
    """Makes a method of a function from its own options to its parts, and keeps its record.

    The method takes `(model, likelihood, *, num_data, ...)`: the function's options and those of
    all methods, written out in its signature and explained in its docstring; it refuses others by
    name. Options that several methods share are the fields of a dataclass, which the function takes
    as an argument `options`. It may also take what all methods do by name, such as `model`.

    - `words`: its belief, expectation, curvature and rule in words, as in the table of methods.
    - `defaults`: of options that it shares with others, where they differ from theirs.
    - `lacks`: options of all methods that it does not have.
    - `explained`: what options do that mean something else here than in `EXPLAINED`.
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

    The fields of its argument `options`, a dataclass, are options one by one.
    """
    own = dict(inspect.signature(function, eval_str=True).parameters)
    if shared := own.pop("options", None):
        types = get_type_hints(shared.annotation)
        for name, field in inspect.signature(shared.annotation).parameters.items():
            own[name] = field.replace(annotation=types[name])
    common = {name: option for name, option in COMMON.items() if name not in lacks}
    required = {name: option for name, option in common.items() if option.default is option.empty}
    special = {k: v.replace(kind=v.KEYWORD_ONLY) for k, v in own.items() if k not in COMMON}
    every = required | special | common
    if strange := {*defaults} - {*every} | {*lacks} - {*COMMON}:
        names = ", ".join(sorted(strange))
        raise TypeError(f"{function.__name__} has no option {names}; see defaults= and lacks=.")
    changed = {name: every[name].replace(default=value) for name, value in defaults.items()}
    return inspect.Signature([*(every | changed).values()], return_annotation=Learner)


def _arguments(function: Callable[..., Parts], values: Mapping[str, Any]) -> dict[str, Any]:
    """What a function is called with, from the values of all options of its method."""
    if shared := get_type_hints(function).get("options"):
        chosen = {field.name: values[field.name] for field in fields(shared)}
        values = {**values, "options": shared(**chosen)}
    return {name: values[name] for name in inspect.signature(function).parameters}


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
        if bound.arguments.get("prior") is not None:
            # A method's own default precision is no second prior.
            bound.arguments.setdefault("prior_precision", None)
        bound.apply_defaults()
        parts = function(**_arguments(function, bound.arguments))
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
