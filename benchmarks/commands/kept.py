"""Results of benchmarks as json, on paper and on the screen."""

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
    """What commands that time something in rounds have in common."""
    parser.add_argument(
        "--rounds", type=options.whole(), default=rounds, metavar="N", help=f"(default: {rounds})"
    )
    add_threads(parser)
    parser.add_argument("--out", metavar="FILE", help="keep the result as json")
    options.add_json(parser)


def several(read: Callable[[str], T]) -> Callable[[str], list[T]]:
    """Reads values between commas, without repetitions.

    >>> several(options.positive)("1, 0.1,1")
    [1.0, 0.1]
    """
    return lambda text: list(dict.fromkeys(read(part) for part in options.names(text)))


def add_threads(parser: argparse.ArgumentParser) -> None:
    """How many threads torch has."""
    parser.add_argument(
        "--threads", type=options.whole(), default=2, metavar="N", help="of torch (default: 2)"
    )


def command(args: argparse.Namespace) -> str:
    """The call as it can be given again."""
    return shlex.join(["python", "-m", "benchmarks", *args.words])


def say(line: str) -> None:
    """A line about what is going on, beside the result."""
    print(line, file=sys.stderr, flush=True)


def check_places(args: argparse.Namespace) -> None:
    """Refuses folders of --out and --pictures that cannot be written to."""
    check_files(args.out)
    if args.pictures:
        options.writable(Path(args.pictures))


def check_files(*files: str | None) -> None:
    """Refuses files that cannot be written, before the work; their folders are made."""
    for file in files:
        if file:
            options.writable(Path(file).parent)


def drawn(
    args: argparse.Namespace, name: str, found: Any, draw: Callable[[Any], dict[str, str]]
) -> None:
    """Draws a result where pictures are asked for."""
    if args.pictures:
        for file in panels.write(Path(args.pictures), name, draw(found)):
            say(f"drawn: {file}")


def printed(args: argparse.Namespace, found: dict[str, Any]) -> bool:
    """Whether json was asked for, which is then printed."""
    if args.json:
        print(text.as_json({**found, "command": command(args)}))
    return bool(args.json)


def write(args: argparse.Namespace, found: dict[str, Any]) -> None:
    """Keeps the result as json where it is asked for."""
    found["command"] = command(args)
    if args.out:
        write_atomically(Path(args.out), (text.as_json(found) + "\n").encode())


def kept(args: argparse.Namespace, found: dict[str, Any]) -> bool:
    """Keeps the result as json where it is asked for; whether it was printed as json."""
    write(args, found)
    return printed(args, found)


def keeper(args: argparse.Namespace) -> Callable[[dict[str, Any]], None]:
    """Writes a result while it grows, if it is to be kept at all.

    Where it goes on from a file, the calls that made that stand before this one.
    """
    commands = dict.fromkeys([*_earlier(args.out), command(args)])

    def keep(found: dict[str, Any]) -> None:
        if args.out:
            document = {**found, "command": BETWEEN.join(commands)}
            write_atomically(Path(args.out), (text.as_json(document) + "\n").encode())

    return keep


def _earlier(file: str | None) -> list[str]:
    """The calls that a file was made by; none if it is no result."""
    try:
        found = json.loads(Path(file or "").read_text())
        return str(found["command"]).split(BETWEEN)
    except (OSError, ValueError, KeyError, TypeError):
        return []
