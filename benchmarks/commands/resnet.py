"""`python -m benchmarks resnet`: a user's own net on images, methods at their defaults."""

from __future__ import annotations

import argparse
from typing import Any

from bayesrule.app.commands import faults, options, text
from bayesrule.app.data.errors import listing, nearest
from benchmarks.commands.defaults import add_keeping, grown
from benchmarks.commands.kept import printed, several
from benchmarks.defaults import resnet
from benchmarks.defaults.resnet import METHODS, PLAIN, SIZES, Plan
from benchmarks.defaults.variants import VARIANTS
from benchmarks.trials import usable

_COLUMNS = {
    "nll": "NLL",
    "ece": "ECE",
    "accuracy": "accuracy",
    "auroc_entropy": "AUROC, entropy",
    "auroc_information": "AUROC, information",
    "seconds": "seconds",
    "test_seconds": "of testing",
}


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "resnet",
        help="methods at their defaults on Fashion-MNIST, with a user's own residual net",
        description="Trains a residual net with batch norm and dropout on the first 2,000 and "
        "on all images of Fashion-MNIST: with a plain loop of Adam, and with methods at their "
        "defaults for as many epochs in batches of the same size. Prints test NLL, calibration "
        "error, accuracy, and how well entropy and mutual information tell MNIST from test "
        "images (AUROC). With --out, each row is kept when it is done.",
        examples="""
            python -m benchmarks resnet --sizes 200 --test 200 --epochs 1
            python -m benchmarks resnet --device cuda --out resnet.json
            python -m benchmarks resnet --sizes 2000 --methods map,ivon --seeds 3
        """,
    )
    parser.add_argument(
        "--methods", type=options.names, default=list(METHODS), metavar="A,B",
        help=f"(default: {','.join(METHODS)})",
    )  # fmt: skip
    parser.add_argument(
        "--sizes", type=several(options.whole()), default=list(SIZES), metavar="N,N",
        help=f"how many images are learned from (default: {','.join(map(str, SIZES))})",
    )  # fmt: skip
    for name, what in (
        ("epochs", "passes through the images"),
        ("batch_size", "images in a batch"),
        ("test", "how many test images"),
        ("members", "nets of a method of the library whose predictions are averaged"),
    ):
        usual = getattr(Plan, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=options.whole(), default=usual, metavar="N",
            help=f"{what} (default: {usual})",
        )  # fmt: skip
    parser.add_argument(
        "--seeds", type=options.whole(), default=1, metavar="N",
        help="nets of each kind (default: 1)",
    )  # fmt: skip
    parser.add_argument("--device", default="cpu", metavar="NAME", help="(default: cpu)")
    add_keeping(parser, jobs=False)
    parser.set_defaults(run=run, interrupted="Finished rows are in --out, if it was given.")


def run(args: argparse.Namespace) -> int:
    """Trains the missing nets and prints a table for each number of images."""
    known = [PLAIN, *VARIANTS]
    for name in args.methods:
        if name not in known:
            hint = nearest(name, known)
            raise faults.CallError(f"No method '{name}'.{hint} There are {listing(known)}.")
    with faults.of_the_call():
        usable(args.device)
    plan = Plan(args.epochs, args.batch_size, args.test, args.device, args.members)
    rows = resnet.comparison(args.methods, args.sizes, plan, seeds=args.seeds)
    found = grown(args, rows)
    if not printed(args, found):
        _show(found)
    return 0


def _show(found: dict[str, Any]) -> None:
    for size in dict.fromkeys(row["size"] for row in found["results"]):
        own = [row for row in found["results"] if row["size"] == size]
        cells = [
            [row["method"], str(row["seed"]), *(_cell(row, name) for name in _COLUMNS)]
            for row in own
        ]
        print(f"\n{size:,} images, {found['plan']['epochs']} epochs")
        print(text.table(["method", "seed", *_COLUMNS.values()], cells))
        for row in own:
            if "failed" in row:
                print(f"({row['method']}: {row['failed']})")
    print(f"\n{found['machine']}")


def _cell(row: dict[str, Any], name: str) -> str:
    return text.figure(row[name]) if name in row else "–"
