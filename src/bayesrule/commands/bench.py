"""`bayesrule bench`: speed, and the papers' tables."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from bayesrule.bench import speed, uci
from bayesrule.commands import (
    bench_active,
    bench_images,
    bench_tagi,
    faults,
    numbers,
    options,
    text,
)
from bayesrule.commands.kept import kept


def add(commands: Any) -> None:
    """The grammar of the command."""
    parser = options.add_command(
        commands,
        "bench",
        help="speed and published tables, reproduced",
        description="Benchmarks. Results can be kept as json with command, versions and machine.",
        examples="""
            bayesrule bench speed
            bayesrule bench uci --sets boston,yacht
        """,
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="WHAT")
    _add_speed(kinds)
    _add_uci(kinds)
    bench_images.add(kinds)
    bench_images.add_text(kinds)
    bench_tagi.add_speed(kinds)
    bench_active.add(kinds)


def _add_speed(kinds: Any) -> None:
    fast = options.add_command(
        kinds,
        "speed",
        help="what a step costs, as a multiple of an Adam step",
        description="Times a training step of each method against torch.optim.Adam on the same "
        "net, in turn within one run, so that a noisy machine disturbs all alike. ivon-opt and "
        "BackPACK run beside them where installed. Keep the machine quiet.",
        examples="""
            bayesrule bench speed
            bayesrule bench speed --cases mlp --methods vogn,ivon --rounds 5 --out speed.json
        """,
    )
    fast.add_argument(
        "--cases",
        type=numbers.names,
        metavar="A,B",
        help=f"nets (default: {','.join(speed.default_cases('cpu'))}, and on cuda all of "
        f"{','.join(speed.CASES)})",
    )
    fast.add_argument(
        "--methods",
        type=numbers.names,
        metavar="A,B,C",
        help=f"(default: {','.join(speed.METHODS)}; variational_laplace on softplus)",
    )
    fast.add_argument(
        "--rounds", type=numbers.whole(), default=15, metavar="N", help="(default: 15)"
    )
    fast.add_argument("--device", default="cpu", metavar="NAME", help="cpu or cuda (default: cpu)")
    fast.add_argument("--out", metavar="FILE", help="keep the result as json")
    options.add_seed(fast, "of inputs and first weights (default: 0)")
    options.add_json(fast)
    fast.set_defaults(run=run_speed, interrupted="Nothing was written.")


def run_speed(args: argparse.Namespace) -> int:
    """Times steps and prints a table for each net."""
    cases = args.cases or speed.default_cases(args.device)
    with faults.of_the_call():
        speed.check(cases, args.methods, args.device)
    if args.out:
        options.writable(Path(args.out).parent)
    found = speed.run(
        cases,
        args.methods,
        rounds=args.rounds,
        device=args.device,
        seed=args.seed,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
    )
    if kept(args, found):
        return 0
    for result in found["results"]:
        print(f"\n{result['title']}")
        columns = {"× Adam": "multiple_of_adam", "× map": "multiple_of_map"}
        columns = {head: name for head, name in columns.items() if name in result}
        rows = [
            [name, f"{each:.2f}", *(f"{result[column][name]:.2f}" for column in columns.values())]
            for name, each in result["milliseconds"].items()
        ]
        print(text.table(["step of", "ms", *columns], rows))
        for name, why in result["missing"].items():
            print(f"({name} did not run: {why})")
    print(f"\n{found['machine']}; medians of {args.rounds} rounds.")
    return 0


def _add_uci(kinds: Any) -> None:
    table = options.add_command(
        kinds,
        "uci",
        help="TAGI on the nine UCI regression sets, beside pytagi's table",
        description="Trains one net of 50 ReLU units by TAGI for each standard split of each set, "
        "all splits at once, and compares RMSE and mean test log-likelihood in original units with "
        "what pytagi reports. 'table' takes the noise and the number of epochs that pytagi chose "
        "for each set, 'learned' learns the noise and chooses nothing. A * marks what is at least "
        "as good. Some ten minutes on one core; set OMP_NUM_THREADS=1, since the nets are small.",
        examples="""
            bayesrule bench uci --sets boston,yacht
            bayesrule bench uci --sets protein --settings learned --splits 1
            bayesrule bench uci --out benchmarks/results/uci_tagi.json
        """,
    )
    for name, choices, what in (
        ("sets", uci.PYTAGI, "data sets"),
        ("settings", uci.SETTINGS, "how noise and epochs are chosen"),
    ):
        given = ",".join(choices)
        table.add_argument(
            f"--{name}",
            type=numbers.names,
            default=given,
            metavar="A,B",
            help=f"{what} (default: {given})",
        )
    table.add_argument(
        "--splits", type=numbers.whole(), metavar="N", help="only the first N (default: all)"
    )
    table.add_argument("--out", metavar="FILE", help="keep the result as json")
    options.add_seed(table, "of first weights and the order of data (default: 0)")
    options.add_json(table)
    table.set_defaults(run=run_uci, interrupted="Nothing was written.")


def run_uci(args: argparse.Namespace) -> int:
    """Trains, scores and prints a table for each setting."""
    with faults.of_the_call():
        uci.check(args.sets, args.settings)
    if args.out:
        options.writable(Path(args.out).parent)
    found = uci.run(
        args.sets,
        args.settings,
        splits=args.splits,
        seed=args.seed,
        progress=lambda line: print(line, file=sys.stderr, flush=True),
    )
    if kept(args, found):
        return 0
    for setting, title in found["settings"].items():
        rows = [_uci_row(one) for one in found["results"] if one["setting"] == setting]
        print(f"\n{title}")
        print(text.table(["set", "RMSE", "pytagi", "log-likelihood", "pytagi"], rows))
        count = found["counts"][setting]
        print(
            f"At least as good on {count['rmse']} (RMSE), {count['log_likelihood']} "
            f"(log-likelihood) and {count['both']} (both) of {count['sets']} sets."
        )
    print(f"\n{found['machine']}; means over splits and their standard errors.")
    return 0


def _uci_row(result: dict[str, Any]) -> list[str]:
    cells = [result["set"]]
    for name, sign in (("rmse", 1.0), ("log_likelihood", -1.0)):
        own, other = result[name], result["published"][name]
        good = sign * own["mean"] <= sign * other
        shown = text.with_error(own["mean"], own["error"])
        cells += [shown + (" *" if good else "  "), f"{other:g}"]
    return cells
