"""`bayesrule methods`: the table of methods and their parts."""

from __future__ import annotations

import argparse
import inspect
from dataclasses import asdict
from typing import Any

from torch import nn

from bayesrule.app.commands import faults, options, text
from bayesrule.likelihoods import GaussianLikelihood
from bayesrule.methods import METHODS, Record, find, record


def add(commands: Any) -> None:
    """The grammar of the command."""
    parser = options.add_command(
        commands,
        "methods",
        help="the methods and the parts they are made of",
        description="Every method is one choice of four parts: the shape of the belief, where the "
        "loss is looked at, which curvature is used, and the rule by which the belief moves. With "
        "names, all that is known of these methods: sources, needs, limits and options.",
        examples="""
            bayesrule methods
            bayesrule methods vogn noisy_kfac
            bayesrule methods --json
        """,
    )
    parser.add_argument("names", nargs="*", metavar="METHOD", help="methods to say all about")
    options.add_seed(parser, "taken as everywhere; nothing here is random")
    options.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the table, or all about the methods that are named."""
    names = [_name(name) for name in args.names]
    rows = [describe(name) for name in names or METHODS]
    if args.json:
        print(options.as_json(rows))
    elif names:
        print("\n\n".join(f"{name}\n{inspect.getdoc(METHODS[name])}" for name in names))
    else:
        columns = ("method", "posterior", "expectation", "curvature", "rule", "what it is")
        print(text.words(columns, [[row[c] for c in columns] for row in rows]))
    return 0


def _name(name: str) -> str:
    """A method's name as the table has it."""
    try:
        return find(name).__name__
    except ValueError as problem:
        raise faults.CallError(str(problem)) from problem


def describe(name: str) -> dict[str, Any]:
    """A method's record, and its parts as a learner for a tiny model has them."""
    learner = METHODS[name](nn.Linear(1, 1), GaussianLikelihood(), num_data=1)
    method = record(name)
    return {
        "method": name,
        **learner.parts(),
        "what it is": method.summary,
        "in words": {
            "belief": method.belief,
            "expectation": method.expectation,
            "curvature": method.curvature,
            "rule": method.rule,
        },
        "source": method.source,
        "needs": [str(need) for need in method.needs],
        "limits": method.limits,
        "without effect": list(method.without_effect),
        "training": asdict(method.course),
        "options": _options(method),
    }


def _options(method: Record) -> dict[str, dict[str, str | None]]:
    """What each option does, and its default as Python writes it."""
    parameters = inspect.signature(method.build).parameters
    return {
        name: {
            "explained": words,
            "default": None
            if parameters[name].default is inspect.Parameter.empty
            else repr(parameters[name].default),
        }
        for name, words in method.options.items()
    }
