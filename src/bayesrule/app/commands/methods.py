"""`bayesrule methods`: a table of the methods and their parts."""

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
Every method learns a posterior: which weights of the network are plausible given the data. It is
one choice of four parts: the shape of the posterior, the weights at which the loss is evaluated
(expectation), the curvature of the loss that it uses, and the rule that updates the posterior.
Given names, prints all about these methods: sources, needs, limits and options. Otherwise the table
of methods is followed by every algorithm of Table 1 of Khan & Rue (2023) with its name in this
library; --paper prints that table alone.
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
    parser.add_argument("names", nargs="*", metavar="METHOD", help="methods to describe in full")
    parser.add_argument("--paper", action="store_true", help="print only Table 1 of the paper")
    options.add_seed(parser, "accepted as in other commands; nothing here is random")
    options.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the table, or all about the named methods."""
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
        [row.algorithm, row.belief, row.where, ", ".join(row.names), row.page, row.proof]
        for row in TABLE_ONE
    ]
    return text.table(head, rows, str.ljust)


def describe(name: str) -> dict[str, Any]:
    """A method's record, with its parts as a learner of a tiny model names them."""
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
    """What each option does, and the `repr` of its default."""
    parameters = inspect.signature(method.build).parameters
    required = inspect.Parameter.empty
    defaults = {name: parameters[name].default for name in method.options}
    shown = {name: None if v is required else repr(v) for name, v in defaults.items()}
    return {k: {"explained": words, "default": shown[k]} for k, words in method.options.items()}
