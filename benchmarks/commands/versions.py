"""`python -m benchmarks versions`: the cost of a step relative to an older checkout."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bayesrule.app.commands import faults, options, text
from benchmarks.commands.kept import add_timing, check_files, kept, say
from benchmarks.speed import versions


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "versions",
        help="the cost of a step, relative to an older checkout",
        description="Times a training step of every method with the source of this checkout and "
        "of another one, on the CPU, in alternating processes, and an epoch of twenty small nets "
        "that are trained at once. A ratio above 1 means that a step has become slower. 'torch' "
        "is a step of torch.optim.Adam, the same in both, so its ratio is the machine's noise. "
        "Keep the machine quiet.",
        examples="""
            git worktree add /tmp/before v0.1
            python -m benchmarks versions --before /tmp/before
            python -m benchmarks versions --before /tmp/before --cases mlp --methods vogn,map
            python -m benchmarks versions --before /tmp/before --processes 7 --out versions.json
        """,
    )
    parser.add_argument(
        "--before",
        required=True,
        metavar="FOLDER",
        help="the other checkout (the folder that contains src)",
    )
    parser.add_argument(
        "--cases",
        type=options.names,
        default=list(versions.TITLES),
        metavar="A,B",
        help=f"(default: all, {','.join(versions.TITLES)})",
    )
    parser.add_argument(
        "--methods",
        type=options.names,
        metavar="A,B",
        help=f"(default: all; of many nets {','.join(versions.MANY)})",
    )
    parser.add_argument(
        "--processes",
        type=options.whole(),
        default=3,
        metavar="N",
        help="of each checkout, each with all rounds (default: 3)",
    )
    add_timing(parser, rounds=5)
    parser.set_defaults(run=run, interrupted="Nothing was written.")


def run(args: argparse.Namespace) -> int:
    """Times both checkouts and prints a table for each case."""
    with faults.of_the_call():
        versions.check(Path(args.before), args.cases, args.methods)
    check_files(args.out)
    result = versions.run(
        Path(args.before),
        args.cases,
        args.methods,
        rounds=args.rounds,
        processes=args.processes,
        threads=args.threads,
        progress=say,
    )
    if not kept(args, result):
        _show(result)
    return 0


def _show(result: dict[str, Any]) -> None:
    for case, title in versions.TITLES.items():
        rows = [
            [
                one["method"],
                *(f"{one[f'{tree}_milliseconds']:.3f}" for tree in ("before", "after")),
                f"{one['ratio']:.3f}",
                f"{min(one['ratios']):.2f} to {max(one['ratios']):.2f}",
            ]
            for one in result["results"]
            if one["case"] == case
        ]
        if rows:
            print(f"\n{title}")
            heads = ["method", "before, ms", "after, ms", "after / before", "over processes"]
            print(text.table(heads, rows))
    for name, why in _refusals(result["missing"]).items():
        print(f"({name} did not run: {why})")
    commits = ", ".join(f"{tree} {commit}" for tree, commit in result["commits"].items())
    print(
        f"\n{commits}; {result['machine']}; medians of {result['rounds']} rounds in each of "
        f"{result['processes']} processes."
    )


def _refusals(missing: dict[str, dict[str, str]]) -> dict[str, str]:
    """Why something did not run, one line each, naming the checkout if only one refuses."""
    lines: dict[str, str] = {}
    for tree, reasons in missing.items():
        for name, why in reasons.items():
            in_both = all(name in each for each in missing.values())
            lines[name] = " ".join(why.split()) + ("" if in_both else f" ({tree} only)")
    return lines
