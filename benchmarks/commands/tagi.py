"""TAGI's part of `python -m benchmarks images`, and `python -m benchmarks tagi`: its speed."""

from __future__ import annotations

import argparse
from typing import Any

from bayesrule.app.commands import faults, options, text
from bayesrule.training import checkpoint
from benchmarks.commands.kept import check_files, kept, say
from benchmarks.images import tagi
from benchmarks.speed import tagi_steps


def run_images(args: argparse.Namespace) -> int:
    """Trains and prints a row for each epoch that is scored."""
    check_files(args.out, args.save)
    found, _, state = tagi.run(
        args.task,
        device=args.device,
        epochs=args.epochs,
        seed=args.seed or 0,
        fused=args.fused or None,
        every=args.every or 1,
        held_out=args.held_out or 0,
        num=args.num,
        show=_show,
    )
    if args.save:
        checkpoint.save(args.save, state)
    if kept(args, found):
        return 0
    rows = [
        [f"{row['epoch']:.0f}", *(f"{row[k]:.3f}" for k in ("error", "nll", "ece")), _seconds(row)]
        for row in found["history"]
        if "error" in row
    ]
    print(text.table(["epoch", "error %", "NLL", "ECE", "seconds"], rows))
    published = f"Published error: {found['published']} %. " if found["published"] else ""
    print(f"{published}{found['machine']}.")
    return 0


def _seconds(row: dict[str, float]) -> str:
    return f"{row['seconds']:.1f}"


def _show(figures: dict[str, float]) -> None:
    error = f", error {figures['error']:.2f} %" if "error" in figures else ""
    line = f"epoch {figures['epoch']:.0f}: {figures['seconds']:.1f} s{error}"
    say(line)


def add_speed(kinds: Any) -> None:
    """Adds `python -m benchmarks tagi` and its options."""
    parser = options.add_command(
        kinds,
        "tagi",
        help="the cost of a TAGI step, relative to SGD's",
        description="Times TAGI's step, plain and compiled, and that of torch.optim.SGD on the "
        "same net, in turn within one run on one thread. With --pytagi, an interpreter that has "
        "pytagi 0.2.1 runs the same nets. Keep the machine quiet.",
        examples="""
            python -m benchmarks tagi
            python -m benchmarks tagi --cases resnet18 --device cuda
            python -m benchmarks tagi --pytagi pytagi/bin/python --out tagi_speed.json
        """,
    )
    default = "mlp,cnn,tiny"
    parser.add_argument(
        "--cases",
        type=options.names,
        default=default,
        metavar="A,B",
        help=f"of {', '.join(tagi_steps.CASES)} (default: {default})",
    )
    parser.add_argument("--rounds", type=options.whole(), default=15, metavar="N")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="(default: cpu)")
    parser.add_argument("--pytagi", metavar="PYTHON", help="an interpreter that has pytagi")
    parser.add_argument("--out", metavar="FILE", help="write the result as json")
    options.add_json(parser)
    parser.set_defaults(run=run_speed, interrupted="Nothing was written.")


def run_speed(args: argparse.Namespace) -> int:
    """Times steps and prints a table for each net."""
    with faults.of_the_call():
        tagi_steps.check(args.cases)
    check_files(args.out)
    found = tagi_steps.run(
        args.cases,
        rounds=args.rounds,
        device=args.device,
        pytagi=args.pytagi,
        progress=say,
    )
    if kept(args, found):
        return 0
    for result in found["results"]:
        print(f"\n{result['title']}")
        rows = [_row(result, name) for name in result["milliseconds"]]
        print(text.table(["step of", "ms", "× SGD", "samples/s", "× pytagi"], rows))
    print(f"\n{found['machine']}; medians of {args.rounds} rounds.")
    return 0


def _row(result: dict[str, Any], name: str) -> list[str]:
    ratio = result["multiple_of_sgd"].get(name)
    pytagi = result.get("times_pytagi", {}).get(name)
    return [
        name,
        f"{result['milliseconds'][name]:.3f}",
        "" if ratio is None else f"{ratio:.2f}",
        f"{result['samples_per_second'][name]:,.0f}",
        "" if pytagi is None else f"{pytagi:.1f}",
    ]
