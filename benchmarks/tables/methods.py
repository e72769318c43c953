"""The tables of methods, from their records."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable

from bayesrule.methods import METHODS, Course, Record, record
from bayesrule.methods.table_one import TABLE_ONE


def parts() -> str:
    """Each method as the choice of its four parts."""
    rows = (
        [f"`{one.name}`", one.belief, one.expectation, one.curvature, one.rule]
        for one in _records()
    )
    return _table(["method", "belief", "expectation", "curvature", "rule"], rows)


def summaries() -> str:
    """Each method in a sentence, and the shape of its belief."""
    rows = ([f"`{one.name}`", one.summary, one.belief] for one in _records())
    return _table(["method", "what it is", "belief"], rows)


def sources() -> str:
    """The source, needs and limits of each method."""
    rows = ([f"`{one.name}`", one.source, ", ".join(one.needs), _limits(one)] for one in _records())
    return _table(["method", "source", "needs", "limits"], rows)


def training() -> str:
    """How each method trains by default."""
    kinds: dict[str, list[str]] = {}
    for one in _records():
        kinds.setdefault(_in_words(one.course), []).append(f"`{one.name}`")
    rows = ([", ".join(names), words] for words, names in kinds.items())
    return _table(["methods", "epochs and batches by default"], rows)


def options() -> str:
    """The options, their meanings, and the methods that have them."""
    meanings: dict[tuple[str, str], list[Record]] = {}
    for one in _records():
        for option, words in one.options.items():
            meanings.setdefault((option, words), []).append(one)
    rows = (
        [f"`{option}`", words, _defaults(option, having)]
        for (option, words), having in sorted(meanings.items())
    )
    return _table(["option", "what it does", "default"], rows)


def paper() -> str:
    """Every row of Table 1 of the learning rule's paper, with its name here."""
    rows = (
        [
            one.algorithm,
            one.belief,
            one.approximations,
            one.where,
            ", ".join(f"`{name}`" for name in one.names),
            f"[{one.page.partition('#')[2]}]({one.page.removeprefix('docs/')})",
            f"`{one.proof}`",
        ]
        for one in TABLE_ONE
    )
    return _table(["algorithm", "belief", "approximations", "where", "here", "page", "test"], rows)


METHOD_PAGE: dict[str, Callable[[], str]] = {
    "parts": parts,
    "sources": sources,
    "training": training,
    "options": options,
    "paper": paper,
}
"""The tables of docs/methods.md by their markers."""


def _records() -> list[Record]:
    return [record(name) for name in METHODS]


def _limits(one: Record) -> str:
    """The limits of a method, and the options that it does not use."""
    unused = ", ".join(f"`{name}`" for name in one.without_effect)
    return "; ".join(words for words in (one.limits, unused and f"no use for {unused}") if words)


def _in_words(course: Course) -> str:
    """A default course of training, in words."""
    if course.whole:
        return f"{course.most} epochs, each one step on all the data"
    return (
        f"batches of {course.batch}, about {course.steps} steps, but at least {course.least} and "
        f"at most {course.most} epochs"
    )


def _defaults(option: str, having: list[Record]) -> str:
    """The default of an option, by method if they differ; empty if it is required."""
    values: dict[str, list[str]] = {}
    for one in having:
        default = inspect.signature(one.build).parameters[option].default
        if default is not inspect.Parameter.empty:
            shown = default.__name__ if isinstance(default, type) else repr(default)
            values.setdefault(f"`{shown}`", []).append(f"`{one.name}`")
    if len(having) == len(METHODS) and len(values) <= 1:
        return "".join(values)
    return "; ".join(f"{value}: {', '.join(names)}" for value, names in values.items())


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    cells = [list(head), *map(list, rows)]
    lines = ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "---|" * len(cells[0]), *lines[1:]])
