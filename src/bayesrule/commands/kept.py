"""Results of benchmarks as json, on paper and on the screen."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bayesrule.checkpoint import write_atomically
from bayesrule.commands import options


def kept(args: argparse.Namespace, found: dict[str, Any]) -> bool:
    """Keeps the result as json where it is asked for; whether it was printed as json."""
    found["command"] = options.command(args)
    if args.out:
        write_atomically(Path(args.out), (options.as_json(found) + "\n").encode())
    if args.json:
        print(options.as_json(found))
    return bool(args.json)


def keeper(args: argparse.Namespace) -> Callable[[dict[str, Any]], None]:
    """Writes a result while it grows, if it is to be kept at all."""

    def keep(found: dict[str, Any]) -> None:
        if args.out:
            document = {**found, "command": options.command(args)}
            write_atomically(Path(args.out), (options.as_json(document) + "\n").encode())

    return keep
