"""`python -m benchmarks tables`: kept results and the records of methods written into the docs."""

from __future__ import annotations

import argparse
from typing import Any

from bayesrule.app.commands import options
from benchmarks.tables import documents


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "tables",
        help="write the tables of the README and the docs from results and records",
        description="Rewrites the tables of the README and of the pages in docs/ from "
        "benchmarks/results/*.json and from the records of methods. Nothing is run.",
        examples="""
            python -m benchmarks tables
        """,
    )
    parser.set_defaults(run=run, interrupted="Some documents may have been written.")


def run(_: argparse.Namespace) -> int:
    """Writes the tables and prints which documents changed."""
    changed = documents.write()
    print(f"Changed: {', '.join(changed)}." if changed else "All tables are up to date.")
    return 0
