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
from bayesrule.methods.table_one import TABLE_ONE

_WORDS = ("belief", "expectation", "curvature", "rule")
_SUMMARY = "the methods and the parts they are made of"
_DESCRIPTION = """
Every method is one choice of four parts: the shape of the belief, where the loss is looked at,
which curvature is used, and the rule by which the belief moves. With names, all that is known of
these methods: sources, needs, limits and options. Below them stands every algorithm of Table 1 of
Khan & Rue (2023) with its name in the library; --paper prints that table alone.
"""
_EXAMPLES = """
bayesrule methods
bayesrule methods vogn noisy_kfac
bayesrule methods --paper
bayesrule methods --json
"""


def add(commands: Any) -> None:
    """Adds the command, its help and its options."""
    parser = options.add_command(commands, "methods", _SUMMARY, _DESCRIPTION, _EXAMPLES)
    parser.add_argument("names", nargs="*", metavar="METHOD", help="methods to say all about")
    parser.add_argument("--paper", action="store_true", help="Table 1 of the paper alone")
    options.add_seed(parser, "taken as everywhere; nothing here is random")
    options.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the table, or all about the methods that are named."""
    with faults.of_the_call():
        names = [find(name).__name__ for name in args.names]
    if args.paper:
        print(text.as_json([asdict(row) for row in TABLE_ONE]) if args.json else _paper())
        return 0
    rows = [describe(name) for name in names or METHODS]
    if args.json:
        print(text.as_json(rows))
    elif names:
        print("\n\n".join(f"{name}\n{inspect.getdoc(METHODS[name])}" for name in names))
    else:
        columns = ("method", "posterior", "expectation", "curvature", "rule", "what it is")
        print(text.table(columns, [[row[c] for c in columns] for row in rows], str.ljust))
        print(f"\nTable 1 of Khan & Rue (2023), The Bayesian learning rule\n{_paper()}")
    return 0


def _paper() -> str:
    """Every row of the paper's table, with its name here, its page and its test."""
    head = ["algorithm", "belief", "where", "here", "page", "test"]
    rows = [
        [one.algorithm, one.belief, one.where, ", ".join(one.names), one.page, one.proof]
        for one in TABLE_ONE
    ]
    return text.table(head, rows, str.ljust)


def describe(name: str) -> dict[str, Any]:
    """A method's record, and its parts as a learner for a tiny model has them."""
    learner = METHODS[name](nn.Linear(1, 1), GaussianLikelihood(), num_data=1)
    method = record(name)
    return {
        "method": name,
        **learner.parts(),
        "what it is": method.summary,
        "in words": {name: getattr(method, name) for name in _WORDS},
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
    required = inspect.Parameter.empty
    defaults = {name: parameters[name].default for name in method.options}
    shown = {name: None if v is required else repr(v) for name, v in defaults.items()}
    return {k: {"explained": words, "default": shown[k]} for k, words in method.options.items()}
