"""`python -m benchmarks adversarial`: images that deceive a network trained by TAGI."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bayesrule.app.commands import faults, options, text
from bayesrule.training import checkpoint
from benchmarks.commands.kept import check_files, kept, say
from benchmarks.images import adversarial, tagi
from benchmarks.trials import usable


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "adversarial",
        help="images that deceive a network trained by TAGI",
        description="Trains a network as `python -m benchmarks images` does, or loads one, and "
        "infers changes of test images for which it sees another class, drawn at random. The "
        "first variant is br.explore.attack at its defaults; the others show what its choices "
        "are worth. The exit code is 1 if the first deceives the network with fewer than "
        f"{adversarial.BAR:.0%} of the images.",
        examples="""
            python -m benchmarks adversarial --short --num 100
            python -m benchmarks adversarial --save net.safetensors --out adversarial.json
            python -m benchmarks adversarial --state net.safetensors --first 1000 --short
        """,
    )
    parser.add_argument(
        "--task", choices=list(tagi.TASKS), default="mnist-cnn", help="(default: mnist-cnn)"
    )
    parser.add_argument("--device", default="cpu", metavar="NAME", help="(default: cpu)")
    for name, default, what in (
        ("epochs", 1, "of training (default: 1)"),
        ("train", None, "learn from the first N images only"),
        ("num", 1000, "how many test images to attack (default: 1000)"),
    ):
        parser.add_argument(
            f"--{name}", type=options.whole(), default=default, metavar="N", help=what
        )
    parser.add_argument(
        "--first",
        type=options.whole(0),
        default=0,
        metavar="N",
        help="the first test image to attack (default: 0)",
    )
    parser.add_argument("--short", action="store_true", help="only the first variant")
    parser.add_argument(
        "--state", metavar="FILE", help="load this trained state instead of training"
    )
    parser.add_argument("--save", metavar="FILE", help="save the trained state (safetensors)")
    parser.add_argument("--out", metavar="FILE", help="write the result as json")
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Nothing was written.")


def run(args: argparse.Namespace) -> int:
    """Attacks a network in several ways and prints a table; 1 if the first misses the bar."""
    with faults.of_the_call():
        usable(args.device)
    check_files(args.out, args.save)
    learner, state = adversarial.trained(
        args.task,
        device=args.device,
        epochs=args.epochs,
        num=args.train,
        state=Path(args.state) if args.state else None,
        progress=say,
    )
    if args.save:
        checkpoint.save(args.save, state)
    result = adversarial.run(
        args.task,
        learner,
        state,
        first=args.first,
        num=args.num,
        variants=list(adversarial.VARIANTS)[: 1 if args.short else None],
        device=args.device,
        progress=say,
    )
    result["epochs"] = args.epochs
    if not kept(args, result):
        _show(result)
    return int(next(iter(result["results"].values()))["success"] < adversarial.BAR)


def _show(result: dict[str, Any]) -> None:
    names = ("mean_iterations", "mean_distance", "mean_largest")
    rows = [
        [
            variant,
            f"{one['success']:.1%}",
            *("–" if one[name] is None else f"{one[name]:.2f}" for name in names),
        ]
        for variant, one in result["results"].items()
    ]
    print(text.table(["variant", "deceived", "iterations", "distance", "largest"], rows))
    print(f"{result['num_images']} test images of {result['task']}; {result['machine']}.")
