"""Calls of the command line in this process, checked for what every call owes its user."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import NamedTuple

from bayesrule.app import cli
from benchmarks.trust.hostile.judge import require


class Said(NamedTuple):
    """What a call gave back."""

    code: int
    out: str
    err: str

    @property
    def outcome(self) -> str:
        """The outcome in one word."""
        return {0: "done", 1: "failed", 2: "refused"}[self.code]


def call(words: Sequence[str]) -> Said:
    """Calls the command line; an error must be one line and an exit code, and nothing else."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = cli.main(words)
        except SystemExit as leave:
            code = int(leave.code or 0)
    said = Said(code, out.getvalue(), err.getvalue())
    lines = said.err.splitlines()
    require(code in (0, 1, 2), f"the code is {code}")
    # Line readers may accept more characters as line ends than a terminal does.
    odd = [line for line in said.err.split("\n")[:-1] if not line.startswith("bayesrule: ")]
    require(not odd, f"stderr says {odd[:1]}")
    require(code == 0 or len(lines) == 1, f"code {code} with {len(lines)} lines: {lines[:2]}")
    return said
