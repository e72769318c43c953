"""Results of benchmarks as json, on paper and on the screen."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bayesrule.app.commands import options
from bayesrule.training.checkpoint import write_atomically
from benchmarks import pictures

BETWEEN = "; "


def say(line: str) -> None:
    """A line about what is going on, beside the result."""
    print(line, file=sys.stderr, flush=True)


def check_places(args: argparse.Namespace) -> None:
    """Refuses folders of --out and --pictures that cannot be written to."""
    for folder in (args.pictures, Path(args.out).parent if args.out else None):
        if folder:
            options.writable(Path(folder))


def drawn(
    args: argparse.Namespace, name: str, found: Any, draw: Callable[[Any], dict[str, str]]
) -> None:
    """Draws a result where pictures are asked for."""
    if args.pictures:
        for file in pictures.write(Path(args.pictures), name, draw(found)):
            say(f"drawn: {file}")


def printed(args: argparse.Namespace, found: dict[str, Any]) -> bool:
    """Whether json was asked for, which is then printed."""
    if args.json:
        print(options.as_json({**found, "command": options.command(args)}))
    return bool(args.json)


def kept(args: argparse.Namespace, found: dict[str, Any]) -> bool:
    """Keeps the result as json where it is asked for; whether it was printed as json."""
    found["command"] = options.command(args)
    if args.out:
        write_atomically(Path(args.out), (options.as_json(found) + "\n").encode())
    return printed(args, found)


def keeper(args: argparse.Namespace) -> Callable[[dict[str, Any]], None]:
    """Writes a result while it grows, if it is to be kept at all.

    Where it goes on from a file, the calls that made that stand before this one.
    """
    commands = dict.fromkeys([*_earlier(args.out), options.command(args)])

    def keep(found: dict[str, Any]) -> None:
        if args.out:
            document = {**found, "command": BETWEEN.join(commands)}
            write_atomically(Path(args.out), (options.as_json(document) + "\n").encode())

    return keep


def _earlier(file: str | None) -> list[str]:
    """The calls that a file was made by; none if it is no result."""
    try:
        found = json.loads(Path(file or "").read_text())
        return str(found["command"]).split(BETWEEN)
    except (OSError, ValueError, KeyError, TypeError):
        return []
