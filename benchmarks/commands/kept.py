"""Results of benchmarks: as json, as pictures and on the screen."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from bayesrule.app.commands import options, text
from bayesrule.training.checkpoint import write_atomically
from benchmarks.pictures import panels

BETWEEN = "; "
T = TypeVar("T")


def add_timing(parser: argparse.ArgumentParser, *, rounds: int) -> None:
    """Adds the options of commands that time something in rounds."""
    parser.add_argument(
        "--rounds", type=options.whole(), default=rounds, metavar="N", help=f"(default: {rounds})"
    )
    add_threads(parser)
    parser.add_argument("--out", metavar="FILE", help="write the result as json")
    options.add_json(parser)


def several(read: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Reads comma-separated values, without repetitions.

    >>> several(options.positive)("1, 0.1,1")
    [1.0, 0.1]
    """
    return lambda text: list(dict.fromkeys(read(part) for part in options.names(text)))


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Adds the option for torch's number of threads."""
    parser.add_argument(
        "--threads", type=options.whole(), default=2, metavar="N", help="of torch (default: 2)"
    )


def command(args: argparse.Namespace) -> str:
    """The command line, so that it can be repeated."""
    return shlex.join(["python", "-m", "benchmarks", *args.words])


def say(line: str) -> None:
    """Prints a line of progress, apart from the result."""
    print(line, file=sys.stderr, flush=True)


def check_places(args: argparse.Namespace) -> None:
    """Refuses folders of --out and --pictures that cannot be written to."""
    check_files(args.out)
    if args.pictures:
        options.writable(Path(args.pictures))


def check_files(*files: str | None) -> None:
    """Refuses files that cannot be written before the work begins; makes their folders."""
    for file in files:
        if file:
            options.writable(Path(file).parent)


def drawn(
    args: argparse.Namespace, name: str, found: Any, draw: Callable[[Any], dict[str, str]]
) -> None:
    """Draws a result if pictures were requested."""
    if args.pictures:
        for file in panels.write(Path(args.pictures), name, draw(found)):
            say(f"drawn: {file}")


def printed(args: argparse.Namespace, found: dict[str, Any]) -> bool:
    """Prints the json if it was requested; returns whether it was."""
    if args.json:
        print(text.as_json({**found, "command": command(args)}))
    return bool(args.json)


def write(args: argparse.Namespace, found: dict[str, Any]) -> None:
    """Writes the result as json if --out was given."""
    found["command"] = command(args)
    if args.out:
        write_atomically(Path(args.out), (text.as_json(found) + "\n").encode())


def kept(args: argparse.Namespace, found: dict[str, Any]) -> bool:
    """Writes the result if --out was given; returns whether it was printed as json."""
    write(args, found)
    return printed(args, found)


def keeper(args: argparse.Namespace) -> Callable[[dict[str, Any]], None]:
    """Writes a result as it grows, if --out was given.

    If it resumes from a file, the earlier commands are listed before this one.
    """
    commands = dict.fromkeys([*_earlier(args.out), command(args)])

    def keep(found: dict[str, Any]) -> None:
        if args.out:
            document = {**found, "command": BETWEEN.join(commands)}
            write_atomically(Path(args.out), (text.as_json(document) + "\n").encode())

    return keep


def _earlier(file: str | None) -> list[str]:
    """The commands that made a file; none if it is not a result."""
    try:
        found = json.loads(Path(file or "").read_text())
        return str(found["command"]).split(BETWEEN)
    except (OSError, ValueError, KeyError, TypeError):
        return []
