"""`python -m benchmarks images` and `text`: the tasks and their options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bayesrule.app.commands import options
from bayesrule.app.commands.faults import CallError
from bayesrule.app.data.errors import nearest
from benchmarks.commands import tagi as bench_tagi
from benchmarks.commands import variational as bench_variational
from benchmarks.commands.kept import several
from benchmarks.images import binary_tasks, noisy_tasks, tagi, tied, variational, variational_tasks

TEXT = ("imdb-tied",)


@dataclass(frozen=True)
class Kind:
    """Tasks that are run in the same way, and their options."""

    tasks: dict[str, Any]
    options: tuple[str, ...]
    run: Callable[[argparse.Namespace], int]
    interrupted: str = "Finished trials are in --out, if that was given."


METHODS, KEPT = ("methods", "temperatures", "rates"), ("jobs", "seed", "out", "json")
KINDS = (
    Kind(
        tagi.TASKS,
        ("epochs", "every", "held-out", "num", "device", "fused", "seed", "out", "save", "json"),
        bench_tagi.run_images,
        "Nothing was written.",
    ),
    Kind(
        variational_tasks.TASKS,
        (*METHODS, "multipliers", *("epochs", "num", "held-out", "device"), *KEPT, "pictures"),
        bench_variational.run_methods,
    ),
    Kind(
        noisy_tasks.TASKS,
        (*METHODS, *("epochs", "num", "held-out", "device"), *KEPT),
        bench_variational.run_methods,
    ),
    Kind(
        binary_tasks.TASKS,
        ("methods", "rates", *("epochs", "num", "held-out", "device"), *KEPT),
        bench_variational.run_methods,
    ),
    Kind(
        tied.TASKS,
        ("ranks", "seeds", "marks", "epochs", "num", "device", "jobs", "out", "pictures", "json"),
        bench_variational.run_tied,
    ),
)


def add(kinds: Any) -> None:
    """Adds `python -m benchmarks images` and its options."""
    parser = options.add_command(
        kinds,
        "images",
        help="TAGI, variational posteriors and noisy natural gradients on images",
        description="Trains nets of published tables. TAGI's tasks show error, negative "
        "log-likelihood and calibration on the test images after each epoch; --held-out scores the "
        "last training images instead, for choosing settings. The -preact and -noisy tasks compare "
        "methods at temperatures, of which each method gets the one that predicts held-out "
        "training images best; -binary is about nets of weights that are ±1. "
        "The -tied tasks compare ranks of standard deviations. These keep "
        "each trial in --out when it is done, and the same call goes on from there. MNIST and "
        "fashion-noisy take minutes on a CPU; the residual nets want a GPU.",
        examples="""
            python -m benchmarks images mnist-fnn
            python -m benchmarks images cifar10-resnet18 --device cuda --every 5
            python -m benchmarks images fashion-preact --device cuda --jobs 3 --out fashion.json
            python -m benchmarks images fashion-preact --methods mean_field --multipliers 1,3,10,30
            python -m benchmarks images fashion-noisy --methods adam,noisy_kfac --rates 0.3,1,3
            python -m benchmarks images mnist-tied --ranks 0,1,2,3 --out mnist.json --pictures out
        """,
    )
    parser.add_argument("task", metavar="TASK", help=_titles())
    _add_common(parser)
    group = parser.add_argument_group("TAGI's tasks")
    group.add_argument("--every", type=options.whole(), metavar="N", help="score every N epochs")
    group.add_argument("--fused", action="store_true", help="compile the step on a CPU, too")
    group.add_argument("--save", metavar="FILE", help="save the trained state (safetensors)")
    _add_methods(parser)
    _add_tied(parser)
    options.add_seed(parser, "of first weights and the order of data (default: 0)")
    parser.set_defaults(run=run, seed=None)


def add_text(kinds: Any) -> None:
    """Adds `python -m benchmarks text` and its options."""
    parser = options.add_command(
        kinds,
        "text",
        help="k-tied posteriors of a recurrent net on IMDB",
        description="Trains the LSTM of the k-tied paper on film reviews, for each rank of the "
        "standard deviations and each seed. Trials that are done are kept in --out, and the same "
        "call goes on from there. An epoch takes minutes on a CPU.",
        examples="""
            python -m benchmarks text --device cuda --out imdb.json --pictures pictures
            python -m benchmarks text --ranks 0,2 --seeds 0 --epochs 1 --num 2000
        """,
    )
    parser.add_argument(
        "task", nargs="?", default=TEXT[0], metavar="TASK", help=f"(default: {TEXT[0]})"
    )
    _add_common(parser, held_out=False)
    _add_tied(parser)
    parser.set_defaults(run=run)


def _add_common(parser: argparse.ArgumentParser, *, held_out: bool = True) -> None:
    for name, what in (
        ("epochs", "how many (default: the task's own)"),
        ("num", "train on the first N examples only"),
    ):
        parser.add_argument(f"--{name}", type=options.whole(), metavar="N", help=what)
    if held_out:
        what = "use N training images in place of the test images, or (-preact, -noisy, "
        what += f"-binary) to choose the settings (default there: {variational.HELD_OUT})"
        parser.add_argument("--held-out", type=options.whole(), metavar="N", help=what)
    parser.add_argument("--device", default="cpu", metavar="NAME", help="(default: cpu)")
    what = "run N trials at a time, each in its own process (default: 1; not TAGI's tasks); "
    what += "two or three residual nets share a large GPU well, best under CUDA's MPS"
    parser.add_argument("--jobs", type=options.whole(), metavar="N", help=what)
    parser.add_argument("--out", metavar="FILE", help="write the result as json")
    options.add_json(parser)


def _add_methods(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("-preact, -noisy and -binary tasks")
    every = ",".join(variational.METHODS)
    what = f"of {every} (default: all that the task has)"
    group.add_argument("--methods", type=options.names, metavar="A,B", help=what)
    for name, letter, what in (
        ("temperatures", "T", "(default: the task's own)"),
        ("rates", "M", "multipliers of the methods' learning rates (default: 1)"),
        ("multipliers", "M", f"of the scales' learning rate (default: {variational.MULTIPLIER:g})"),
    ):
        kind = several(options.positive)
        group.add_argument(f"--{name}", type=kind, metavar=f"{letter},{letter}", help=what)


def _add_tied(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("-tied tasks")
    for name, each, default, what in (
        ("ranks", options.whole(0), "0,2,3", "of the standard deviations; 0 is mean-field"),
        ("seeds", options.seed, "0,1,2", "of first weights, order of data and draws"),
        ("marks", options.whole(10), "1000,5000,9000", "steps at which gradients are measured"),
    ):
        group.add_argument(
            f"--{name}",
            type=several(each),
            metavar="N,N",
            help=f"{what} (default: {default})",
        )
    parser.add_argument("--pictures", metavar="FOLDER", help="draw svg files of the result")


def _titles() -> str:
    found = (f"{name}: {task.title}" for kind in KINDS for name, task in kind.tasks.items())
    return "; ".join(one for one in found if not one.startswith(TEXT))


def run(args: argparse.Namespace) -> int:
    """Finds the task, refuses options that it does not have, and runs it."""
    wanted = [name for kind in KINDS for name in kind.tasks]
    wanted = [name for name in wanted if (name in TEXT) == (args.command == "text")]
    if args.task not in wanted:
        raise CallError(_unknown(args.task, args.command, wanted))
    kind = next(kind for kind in KINDS if args.task in kind.tasks)
    _refuse_others(args, kind)
    args.interrupted = kind.interrupted
    return kind.run(args)


def _unknown(task: str, command: str, wanted: Sequence[str]) -> str:
    other = "images" if command == "text" else "text"
    if any(task in kind.tasks for kind in KINDS):
        return f"{task!r} is a task of python -m benchmarks {other}."
    return f"Unknown task {task!r}.{nearest(task, wanted)} Tasks: {', '.join(wanted)}."


def _refuse_others(args: argparse.Namespace, kind: Kind) -> None:
    """Refuses options that belong to other tasks."""
    every = dict.fromkeys(name for one in KINDS for name in one.options)
    for name in every:
        given = getattr(args, name.replace("-", "_"), None)
        if name not in kind.options and given is not None and given is not False:
            known = ", ".join(f"--{one}" for one in kind.options)
            raise CallError(f"The task {args.task!r} has no --{name}; it takes {known}.")
