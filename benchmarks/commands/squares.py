"""`python -m benchmarks squares`: the GPU kernel for per-example squares."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from typing import Any

from bayesrule.app.commands import faults, options, text
from benchmarks.commands.kept import check_files, kept
from benchmarks.speed import squares, steps
from benchmarks.trials import usable


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "squares",
        help="per-example squares of convolutions on a GPU, checked and timed",
        description="Compares the kernel for per-example squares of convolutions with single "
        "gradients in float64, then times the layers of ResNet-18 and steps of vogn and ogn with "
        f"it and without. Ends with code 1 if an error is above {squares.BAR:g}. Needs Triton "
        "(TRITON_INTERPRET=1 with --errors-only runs it on a CPU).",
        examples="""
            python -m benchmarks squares --device cuda --out squares.json
            python -m benchmarks squares --device cuda --errors-only
        """,
    )
    parser.add_argument("--device", default="cuda", metavar="NAME", help="(default: cuda)")
    parser.add_argument(
        "--cases",
        type=options.names,
        metavar="A,B",
        default=["resnet18"],
        help="nets whose steps are timed (default: resnet18)",
    )
    parser.add_argument(
        "--rounds", type=options.whole(), default=3, metavar="N", help="of steps (default: 3)"
    )
    parser.add_argument("--errors-only", action="store_true", help="check only, without timing")
    parser.add_argument("--out", metavar="FILE", help="write the result as json")
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Nothing was written.")


def run(args: argparse.Namespace) -> int:
    """Checks and times the kernel; returns 1 if an error is above the bar."""
    with faults.of_the_call():
        usable(args.device)
        steps.check(args.cases, squares.METHODS, args.device)
        if find_spec("triton") is None:
            raise faults.CallError(
                "The kernel needs Triton, which is not here: pip install triton."
            )
    check_files(args.out)
    found = squares.run(args.device, args.rounds, args.cases, errors_only=args.errors_only)
    if not kept(args, found):
        _show(found)
    return int(not max(found["errors"].values()) <= squares.BAR)


def _show(found: dict[str, Any]) -> None:
    print(text.table(["layer", "error"], [[k, f"{v:.1e}"] for k, v in found["errors"].items()]))
    if not found["layers"]:
        return
    rows = [
        [one["layer"], *(f"{one[way]:.3f}" for way in ("kernel", "rows", "gradient")), best(one)]
        for one in found["layers"]
    ]
    ways = ("kernel", "rows", "gradient")
    whole = [sum(one[way] * one["times"] for one in found["layers"]) for way in ways]
    rows.append(["all 20", *(f"{value:.3f}" for value in whole), ""])
    print(text.table(["layer", "kernel, ms", "rows, ms", "gradient, ms", "best tiles"], rows))
    lines = [
        [one["case"], way, *(f"{one[way][name]:.2f}" for name in squares.METHODS)]
        for one in found["steps"]
        for way in ("kernel", "rows")
    ]
    print(text.table(["steps, × Adam", "by", *squares.METHODS], lines))
    print(found["machine"])


def best(layer: dict[str, Any]) -> str:
    """The fastest of the other tile sizes and its time, if some were tried."""
    return " ".join(f"{tiles} {took:.3f}" for tiles, took in list(layer["tiles"].items())[:1])
