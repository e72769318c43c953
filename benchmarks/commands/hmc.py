"""`python -m benchmarks hmc`: predictive variances beside those of NUTS."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bayesrule.app.commands import faults, options, text
from bayesrule.training.checkpoint import write_atomically
from benchmarks.commands.kept import check_places, command, drawn, keeper, printed, say
from benchmarks.data.uci import uci_set
from benchmarks.hmc import correlations, reference
from benchmarks.pictures import by_set

# The repository's own references, found when the command is called from its root.
COMMITTED = Path("benchmarks/results/hmc_reference.json")
METHODS = ("noisy_kfac", "noisy_tridiagonal", "mean_field")


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "hmc",
        help="predictive variances beside those of NUTS, as in the noisy natural gradient paper",
        description=f"Learns from {reference.TRAIN} rows of a set with {reference.HIDDEN[0]} "
        f"hidden units and prints how the epistemic variances at {reference.POOL} other rows "
        "correlate with those of the No-U-Turn sampler for the same net, prior and noise (mean "
        "over trials and standard error), beside Table 3 of Zhang et al. (2018). Variances of "
        "the sampler are read from --reference. Missing ones are sampled (some 40 s a trial) and "
        "kept there; that needs nutpie (pip install 'bayesrule[hmc]'). With --out, finished "
        "trials of a set are kept and the same call resumes. Ten trials, which learn at once, "
        "take half a minute on one core; set OMP_NUM_THREADS=1, because the nets are small.",
        examples="""
            python -m benchmarks hmc --sets boston,yacht --trials 2
            python -m benchmarks hmc --methods noisy_full,vogn --out hmc.json --pictures pictures
        """,
    )
    for name, default, what in (
        ("methods", ",".join(METHODS), "methods"),
        ("sets", ",".join(reference.PUBLISHED), "data sets"),
    ):
        parser.add_argument(
            f"--{name}",
            type=options.names,
            default=default,
            metavar="A,B",
            help=f"{what} (default: {default.replace(',', ', ')})",
        )
    for name, default_number, what in (
        ("trials", 10, "each with rows of its own"),
        ("epochs", correlations.EPOCHS, "steps on all rows"),
    ):
        parser.add_argument(
            f"--{name}",
            type=options.whole(),
            default=default_number,
            metavar="N",
            help=f"{what} (default: {default_number})",
        )
    parser.add_argument(
        "--reference",
        metavar="FILE",
        help=f"variances of NUTS (default: {COMMITTED} where it is, else {COMMITTED.name})",
    )
    parser.add_argument(
        "--out", metavar="FILE", help="write trials and result as json, and resume from there"
    )
    parser.add_argument("--pictures", metavar="FOLDER", help="draw svg files of the result")
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Finished trials are in --out, if that was given.")


def run(args: argparse.Namespace) -> int:
    """Runs the missing trials and prints a table."""
    sets = list(dict.fromkeys(uci_set(name).name for name in args.sets))
    with faults.of_the_call():
        correlations.check(args.methods)
    check_places(args)
    plan = reference.Plan()
    known = correlations.read(Path(args.out), plan, args.epochs) if args.out else []
    found = correlations.run(
        args.methods,
        _references(args, sets, plan),
        plan,
        epochs=args.epochs,
        known=known,
        keep=keeper(args),
        progress=say,
    )
    drawn(args, "hmc", found, by_set.of_hmc)
    if not printed(args, found):
        _show(found)
    return 0


def _references(
    args: argparse.Namespace, sets: Sequence[str], plan: reference.Plan
) -> list[dict[str, Any]]:
    """The requested variances of NUTS; missing ones are sampled."""
    file = Path(args.reference or (COMMITTED if COMMITTED.exists() else COMMITTED.name))
    known = reference.read(file, plan)
    have = {(one["set"], one["trial"]) for one in known}
    lacking = [(n, t) for t in range(args.trials) for n in sets if (n, t) not in have]
    if lacking:
        if importlib.util.find_spec("nutpie") is None:
            raise faults.CallError(
                f"'{file}' lacks the variances of NUTS for {len(lacking)} trials (first: "
                f"{lacking[0][0]}, trial {lacking[0][1] + 1}), and sampling them needs nutpie: pip "
                "install 'bayesrule[hmc]'. Or name a file that has them with --reference, or take "
                "fewer --trials."
            )
        options.writable(file.parent)
        say(f"{len(lacking)} trials are not in '{file}' and are sampled first")
        called = command(args)
        found = reference.references(
            sets,
            args.trials,
            plan,
            known=known,
            keep=lambda one: write_atomically(
                file, (text.as_json({**one, "command": called}) + "\n").encode()
            ),
            progress=say,
        )
        known = found["references"]
    return [one for one in known if one["set"] in sets and one["trial"] < args.trials]


def _show(found: dict[str, Any]) -> None:
    places = {(one["method"], one["set"]): one for one in found["results"]}
    methods = list(dict.fromkeys(method for method, _ in places))
    rows = []
    for name in dict.fromkeys(where for _, where in places):
        own = [_cell(places.get((method, name))) for method in methods]
        papers = reference.PUBLISHED.get(name)
        rows.append([name, *own, *(f"{v:.3f}" for v in papers or ())])
        rows[-1] += ["–"] * (0 if papers else len(reference.COLUMNS))
    counts = sorted({one["trials"] for one in found["results"]})
    spoken = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    print(f"\nCorrelation of predictive variances with those of NUTS, {spoken} trials")
    print(text.table(["set", *methods, *reference.COLUMNS], rows))
    if failed := sum(one["failed"] for one in found["results"]):
        print(f"({failed} trials failed and are left out.)")
    print(
        f"\n{found['machine']}; means over trials and their standard errors. "
        f"{', '.join(reference.COLUMNS)}: Zhang et al. (2018), Table 3, with rows and HMC of "
        "their own."
    )


def _cell(one: dict[str, Any] | None) -> str:
    if one is None or not one["trials"]:
        return "–"
    return text.with_error(one["correlation"], one["error"])
