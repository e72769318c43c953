"""The commands that made results, in a form that works today."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.commands.kept import BETWEEN

Result = dict[str, Any]


def call(result: Result) -> str:
    """The command of a result, under its present name.

    >>> call({"command": "bayesrule bench uci --sets boston"})
    'python -m benchmarks uci --sets boston'
    >>> call({"command": "python benchmarks/many.py --nets 3"})
    'python -m benchmarks many --nets 3'
    """
    named = str(result["command"]).replace("bayesrule bench ", "python -m benchmarks ")
    return re.sub(r"python benchmarks/(\w+)\.py", r"python -m benchmarks \1", named)


def calls(results: list[Result]) -> str:
    """The commands and machines of results; of several commands for one result only the first."""
    return "; ".join(f"{_shortened(call(one))}, {one['machine']}" for one in results) + "."


def _shortened(command: str) -> str:
    first, *others = command.split(BETWEEN)
    return f"`{command}`" if len(others) < 2 else f"`{first}` and {len(others)} calls like it"
