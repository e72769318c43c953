"""`bayesrule methods`: the table of methods and their parts."""

from __future__ import annotations

import argparse
from typing import Any

from torch import nn

from bayesrule.app.commands import options, text
from bayesrule.likelihoods import GaussianLikelihood
from bayesrule.methods import METHODS


def add(commands: Any) -> None:
    """The grammar of the command."""
    parser = options.add_command(
        commands,
        "methods",
        help="the methods and the parts they are made of",
        description="Every method is one choice of four parts: the shape of the belief, where the "
        "loss is looked at, which curvature is used, and the rule by which the belief moves.",
        examples="""
            bayesrule methods
            bayesrule methods --json
        """,
    )
    options.add_seed(parser, "taken as everywhere; nothing here is random")
    options.add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the table."""
    found = [describe(name) for name in METHODS]
    if args.json:
        print(options.as_json(found))
        return 0
    columns = ("method", "posterior", "expectation", "curvature", "rule", "what it is")
    print(text.words(columns, [[row[c] for c in columns] for row in found]))
    return 0


def describe(name: str) -> dict[str, str]:
    """A method's parts, read off a learner for a tiny model."""
    method = METHODS[name]
    learner = method(nn.Linear(1, 1), GaussianLikelihood(), num_data=1)
    lines = (method.__doc__ or "").strip().splitlines()
    return {"method": name, **learner.parts(), "what it is": lines[0]}
