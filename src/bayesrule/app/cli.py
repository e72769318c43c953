"""The command line: `bayesrule methods | fit | predict | export | serve | compare`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from bayesrule import __version__
from bayesrule.app.commands import compare, export, faults, fit, methods, output, predict, serve
from bayesrule.app.data.errors import nearest
from bayesrule.execution.memory import keep_memory

_EXAMPLES = """\
examples:
  bayesrule compare                                  which method suits a built-in data set
  bayesrule compare house.csv --target price         the same for your own table
  bayesrule fit house.csv --target price --method vogn --out run/
  bayesrule predict run/ new.csv --out predictions.csv
  bayesrule export run/ model.onnx                   the model as one file for other programs
  bayesrule serve run/                               predictions over HTTP
  bayesrule methods                                  all methods and the parts they are made of

exit codes:
  0  done        1  a run failed        2  a mistake in the call or the data        130  interrupted

An error is printed as one line; BAYESRULE_DEBUG=1 in the environment adds the traceback.
"""


class Parser(argparse.ArgumentParser):
    """Raises a `CallError`, which `run` prints as one line, where argparse would exit."""

    def error(self, message: str) -> NoReturn:
        raise faults.CallError(f"{message}. All options: {self.prog} --help")


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
    for module in (methods, fit, predict, export, serve, compare):
        module.add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code."""
    return run(parser(), argv)


def run(grammar: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> int:
    """Runs the command that the arguments name and returns the exit code.

    An error that the user can fix becomes one line on stderr; a bug keeps its traceback. With
    --json the error is also printed on standard output, as a json document.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    with output.lasting() as (out, _):
        args = _parse(grammar, words)
        try:
            keep_memory()
            code = int(args.run(args))
            out.flush()
            if out.fault is not None:
                raise faults.CallError(f"Standard output: {out.fault.strerror}.")
            return code
        except KeyboardInterrupt:
            consequence = getattr(args, "interrupted", "")
            text = consequence() if callable(consequence) else consequence
            return faults.end(f"Interrupted. {text}", 130, args)
        except Exception as problem:
            return faults.report(problem, args)


def _parse(grammar: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """The arguments as the grammar reads them; an error in them ends the program."""
    try:
        _refuse_dashes(words)
        args, unknown = grammar.parse_known_args(words)
        if unknown:
            raise faults.CallError(_not_understood(grammar, args, unknown))
    except faults.CallError as problem:
        output_format = argparse.Namespace(json="--json" in words)
        raise SystemExit(faults.end(str(problem), 2, output_format)) from None
    args.words = words
    return args


def _refuse_dashes(words: list[str]) -> None:
    """Refuses `--option=--`, which argparse before Python 3.13 reads as an empty list."""
    for word in words:
        option, _, value = word.partition("=")
        if option.startswith("--") and value == "--":
            raise faults.CallError(f"argument {option}: takes a value, got '--'")


def _not_understood(
    grammar: argparse.ArgumentParser, args: argparse.Namespace, unknown: list[str]
) -> str:
    options = ["--" + name.replace("_", "-") for name in vars(args)]
    hint = nearest(unknown[0].partition("=")[0], options) if unknown[0][:1] == "-" else ""
    more = f"All options: {grammar.prog} {args.command} --help"
    return f"not understood: {' '.join(unknown)}.{hint} {more}"


if __name__ == "__main__":
    sys.exit(main())
