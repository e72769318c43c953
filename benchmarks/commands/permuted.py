"""`python -m benchmarks permuted`: binary weights, a posterior as the next prior."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Any

from bayesrule.app.commands import options, text
from benchmarks.beyond import permuted
from benchmarks.beyond.permuted import Setting
from benchmarks.commands.kept import check_files, keeper, printed, say, several
from benchmarks.trials import read


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "permuted",
        help="binary weights on tasks that come one after another",
        description="Permuted MNIST: each task has the pixels in another order. `bayesbinn` "
        "with its posterior as the prior of the next task is compared with `bayesbinn` that goes "
        "on without a prior, and with `ste`. Prints the accuracy on all tasks after each. Ends "
        "with code 1 if the prior does not remember more. With --out, finished trials are kept "
        "and the same call resumes.",
        examples="""
            python -m benchmarks permuted --tasks 3 --epochs 2 --num 5000 --seeds 0
            python -m benchmarks permuted --num 20000 --held-out 5000 --rate 0.003
            python -m benchmarks permuted --device cuda --out permuted.json
        """,
    )
    usual = Setting()
    for name, what in (
        ("tasks", "how many orders of the pixels"),
        ("epochs", "of each task"),
        ("width", "of the two hidden layers"),
    ):
        default = getattr(usual, name)
        options.add_option(parser, f"--{name}", "N", what, read=options.whole(), default=default)
    for name, what in (
        ("num", "learn from the first N images only"),
        ("held-out", "use N training images in place of the test images"),
    ):
        parser.add_argument(f"--{name}", type=options.whole(), metavar="N", help=what)
    for name, what in (
        ("rate", "the first learning rate of bayesbinn"),
        ("temperature", "of its posterior, with a prior and without"),
        ("free-rate", "the first learning rate of bayesbinn without a prior"),
        ("straight-rate", "that of ste"),
    ):
        default = getattr(usual, name.replace("-", "_"))
        options.add_option(parser, f"--{name}", "X", what, read=options.positive, default=default)
    parser.add_argument("--device", default="cpu", metavar="NAME", help="(default: cpu)")
    parser.add_argument(
        "--seeds", type=several(options.seed), default=[0, 1, 2], metavar="N,N", help="(0,1,2)"
    )
    parser.add_argument("--out", metavar="FILE", help="write the result as json")
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Finished trials are in --out, if given.")


def run(args: argparse.Namespace) -> int:
    """Learns all tasks by all methods, prints what each remembers; 1 if the prior is behind."""
    check_files(args.out)
    given = {one.name: getattr(args, one.name) for one in fields(Setting) if one.name in args}
    setting = Setting(**{**given, "held_out": args.held_out or 0})
    previous = read(Path(args.out), permuted.facts(setting)) if args.out else None
    found = permuted.run(setting, seeds=args.seeds, previous=previous, show=say, keep=keeper(args))
    if not printed(args, found):
        _show(found)
    return int(not permuted.better(found))


def _show(found: dict[str, Any]) -> None:
    """The accuracy on each task after the last one, means over seeds."""
    rows = []
    for name, mean in permuted.means(found).items():
        own = [one["accuracy"][-1] for one in found["results"] if one["method"] == name]
        each = [f"{100.0 * sum(task) / len(own):.2f}" for task in zip(*own, strict=True)]
        rows.append([name, *each, f"{100.0 * mean:.2f}"])
    head = ["method", *(f"task {k + 1}" for k in range(found["tasks"])), "mean"]
    print(text.table(head, rows))
    where = "held-out training images" if found["held_out"] else "test images"
    seeds = sorted({one["seed"] for one in found["results"]})
    print(
        f"Accuracy in percent on {where} after the last task, means over seeds "
        f"{', '.join(map(str, seeds))}; {found['epochs']} epochs each; {found['machine']}."
    )
