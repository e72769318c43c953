"""`python -m benchmarks transformer`: methods on a small transformer, whole and by adapters."""

from __future__ import annotations

import argparse
from typing import Any

from bayesrule.app.commands import faults, options, text
from bayesrule.app.data.errors import listing
from benchmarks.commands.defaults import add_keeping, grown
from benchmarks.commands.kept import printed
from benchmarks.language import transformer
from benchmarks.language.reviews import Plan
from benchmarks.language.transformer import METHODS, SCORES

_SIZES = {
    "train": "reviews to learn from scratch",
    "pretrain": "other reviews that the body of the adapters has learned",
    "few": "reviews that the adapters learn from",
    "test": "reviews to test on",
    "epochs": "passes through the reviews",
}


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "transformer",
        help="methods on a small transformer of Hugging Face, from scratch and by adapters",
        description="Trains a small DistilBERT of Hugging Face on film reviews (IMDB). Stage "
        "scratch: from random weights. Stage adapters: adapters of low rank (LoRA) and a new "
        "head, on a body that has learned other reviews. AdamW and ivon learn in Hugging Face's "
        "Trainer, the other methods by fit at their defaults. Prints test NLL, calibration "
        "error, accuracy and AUROC. With --out, each row is kept when it is done. Needs "
        "bayesrule[hugging].",
        examples="""
            python -m benchmarks transformer --train 600 --pretrain 600 --epochs 1 --test 500
            python -m benchmarks transformer --seeds 3 --jobs 8 --out transformer.json
            python -m benchmarks transformer --stages adapters --methods adamw,ivon
        """,
    )
    for name, known in (("stages", METHODS), ("methods", _methods())):
        parser.add_argument(
            f"--{name}", type=options.names, metavar="A,B",
            help=f"(default: {','.join(known)})",
        )  # fmt: skip
    for name, what in _SIZES.items():
        parser.add_argument(
            f"--{name}", type=options.whole(), default=getattr(Plan, name), metavar="N",
            help=f"{what} (default: {getattr(Plan, name)})",
        )  # fmt: skip
    parser.add_argument(
        "--seeds", type=options.whole(), default=1, metavar="N",
        help="classifiers of each kind (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--tokens", metavar="FOLDER", help="where the tokens of the reviews are, or will be, kept"
    )
    add_keeping(parser)
    parser.set_defaults(run=run, interrupted="Finished rows are in --out, if it was given.")


def _methods() -> list[str]:
    return list(dict.fromkeys(name for own in METHODS.values() for name in own))


def run(args: argparse.Namespace) -> int:
    """Trains the missing classifiers and prints a table."""
    for kind, known in (("stages", list(METHODS)), ("methods", _methods())):
        if strange := [name for name in getattr(args, kind) or () if name not in known]:
            raise faults.CallError(f"No {kind[:-1]} '{strange[0]}'. There are {listing(known)}.")
    plan = Plan(**{name: getattr(args, name) for name in _SIZES})
    stages = args.stages or list(METHODS)
    rows = transformer.comparison(stages, args.methods, plan, seeds=args.seeds, folder=args.tokens)
    found = grown(args, rows, args.jobs)
    if not printed(args, found):
        names = [*SCORES, "seconds", "weights"]
        cells = [
            [row["stage"], row["method"], str(row["seed"]), *_cells(row, names)]
            for row in found["results"]
        ]
        print(text.table(["stage", "method", "seed", *names], cells))
        for row in found["results"]:
            if "failed" in row:
                print(f"({row['stage']}, {row['method']}: {row['failed']})")
        print(f"\n{found['machine']}")
    return 0


def _cells(row: dict[str, Any], names: list[str]) -> list[str]:
    return [text.figure(row[name]) if name in row else "–" for name in names]
