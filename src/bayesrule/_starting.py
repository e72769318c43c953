"""While the command line is still being imported, Ctrl-C prints one line and no traceback."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType


def _is_command_line() -> bool:
    """Whether this process is `bayesrule ...` or `python -m bayesrule ...`."""
    if sys.argv[:1] == ["-m"]:
        return "bayesrule" in sys.orig_argv
    return Path(sys.argv[0] if sys.argv else "").stem == "bayesrule"


def _print_interrupt(
    kind: type[BaseException], problem: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, problem, trace)
    elif sys.stderr is not None:
        print("bayesrule: Interrupted.", file=sys.stderr)


if _is_command_line():
    # Python itself exits with the code of an interruption.
    sys.excepthook = _print_interrupt
