"""`bayesrule bench`: speed, and the papers' tables."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bayesrule.bench import speed
from bayesrule.checkpoint import write_atomically
from bayesrule.commands import options, text


def add(commands: Any) -> None:
    """The grammar of the command."""
    parser = commands.add_parser(
        "bench",
        help="speed and published tables, reproduced",
        description="Benchmarks. Results can be kept as json with command, versions and machine.",
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="WHAT")
    fast = kinds.add_parser(
        "speed",
        help="what a step costs, as a multiple of an Adam step",
        description="Times a training step of each method against torch.optim.Adam on the same "
        "net, in turn within one run, so that a noisy machine disturbs all alike. ivon-opt and "
        "BackPACK run beside them where installed. Keep the machine quiet.",
    )
    fast.add_argument(
        "--cases", default=",".join(speed.CASES), metavar="A,B", help="nets (default: all)"
    )
    fast.add_argument("--methods", default=",".join(speed.METHODS), metavar="A,B,C")
    fast.add_argument("--rounds", type=int, default=15, metavar="N", help="(default: 15)")
    fast.add_argument("--device", default="cpu", metavar="NAME", help="cpu or cuda (default: cpu)")
    fast.add_argument("--out", metavar="FILE", help="keep the result as json")
    options.add_common(fast)
    fast.set_defaults(run=run_speed)


def run_speed(args: argparse.Namespace) -> int:
    """Times steps and prints a table for each net."""
    if args.rounds < 1:
        raise ValueError(f"--rounds must be at least 1, got {args.rounds}.")
    found = speed.run(
        args.cases.split(","),
        args.methods.split(","),
        rounds=args.rounds,
        device=args.device,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
    )
    found["command"] = f"bayesrule bench speed --cases {args.cases} --methods {args.methods} " + (
        f"--rounds {args.rounds} --device {args.device}"
    )
    if args.out:
        write_atomically(Path(args.out), (json.dumps(found, indent=2) + "\n").encode())
    if args.json:
        options.show_json(found)
        return 0
    for result in found["results"]:
        print(f"\n{result['title']}")
        rows = [
            [name, f"{result['milliseconds'][name]:.2f}", f"{ratio:.2f}"]
            for name, ratio in result["multiple_of_adam"].items()
        ]
        print(text.table(["step of", "ms", "× Adam"], rows))
        for name, why in result["missing"].items():
            print(f"({name} did not run: {why})")
    print(f"\n{found['machine']}; medians of {args.rounds} rounds.")
    return 0
