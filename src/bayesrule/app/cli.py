"""The command line: `bayesrule methods | fit | predict | compare`."""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Sequence
from typing import NoReturn

from bayesrule import __version__
from bayesrule.app.commands import compare, faults, fit, methods, predict
from bayesrule.app.data.errors import nearest
from bayesrule.execution.memory import keep_memory

_EXAMPLES = """\
examples:
  bayesrule compare                                  every method on a built-in set; writes a report
  bayesrule compare house.csv --target price         the same on your own table
  bayesrule fit house.csv --target price --method vogn --out run/
  bayesrule predict run/ new.csv --out predictions.csv
  bayesrule methods                                  all methods and the parts they are made of

exit codes:
  0  done        1  a run failed        2  an error in the call or the data        130  interrupted

Errors are one line; with BAYESRULE_DEBUG=1 in the environment the traceback is shown too.
"""


class Parser(argparse.ArgumentParser):
    """Prints an error in the call as one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"bayesrule: {message}. All options: {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    top = Parser(
        prog="bayesrule",
        description="Neural networks that know what they do not know.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"bayesrule {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (methods, fit, predict, compare):
        module.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code."""
    return run(parser(), argv)


def run(grammar: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> int:
    """Runs the command that the arguments name and returns the exit code.

    An error that a person can fix is one line on stderr; a bug keeps its traceback.
    """
    args = _parse(grammar, list(sys.argv[1:] if argv is None else argv))
    keep_memory()
    if hasattr(sys.stdout, "reconfigure"):
        # A terminal without these letters gets question marks, not an error.
        sys.stdout.reconfigure(errors="replace")
    try:
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        faults.say(f"Interrupted. {getattr(args, 'interrupted', '')}")
        return 130
    except Exception as problem:
        if isinstance(problem, BrokenPipeError) and _reader_left():
            return 0
        exit_code = faults.exit_code(problem)
        if exit_code is None:
            problem.add_note("This is a bug in bayesrule; please report these lines.")
            raise
        return faults.report(problem, exit_code, vars(args))


def _parse(grammar: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    args, unknown = grammar.parse_known_args(words)
    if unknown:
        options = ["--" + name.replace("_", "-") for name in vars(args)]
        hint = nearest(unknown[0].partition("=")[0], options) if unknown[0][:1] == "-" else ""
        more = f"All options: {grammar.prog} {args.command} --help"
        faults.say(f"not understood: {' '.join(unknown)}.{hint} {more}")
        raise SystemExit(2)
    args.words = words
    return args


def _reader_left() -> bool:
    """Whether the reader of standard output has closed it; then nothing more can be printed."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):  # standard output is not a file
        return False
    if hasattr(select, "poll"):
        # Pipes to worker processes break too; only standard output ends the program silently.
        watch = select.poll()
        watch.register(output, select.POLLOUT)
        if not any(event & select.POLLERR for _, event in watch.poll(0)):
            return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return True


if __name__ == "__main__":
    sys.exit(main())
