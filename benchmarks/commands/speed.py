"""`python -m benchmarks speed`: what a step costs, as a multiple of an Adam step."""

from __future__ import annotations

import argparse
from typing import Any

from bayesrule.app.commands import faults, options, text
from benchmarks.commands.kept import check_files, kept, say
from benchmarks.speed import steps


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    fast = options.add_command(
        kinds,
        "speed",
        help="the cost of a training step, relative to Adam's",
        description="Times a training step of each method and of torch.optim.Adam on the same "
        "net, in turn within one run, so that a noisy machine disturbs all alike. ivon-opt and "
        "BackPACK are timed, too, if installed. Keep the machine quiet.",
        examples="""
            python -m benchmarks speed
            python -m benchmarks speed --rounds 9 --processes 3
            python -m benchmarks speed --cases mlp --methods vogn,ivon --rounds 5 --out speed.json
        """,
    )
    fast.add_argument(
        "--cases",
        type=options.names,
        metavar="A,B",
        help=f"nets (default: {','.join(steps.default_cases('cpu'))}, and on cuda all of "
        f"{','.join(steps.CASES)})",
    )
    fast.add_argument(
        "--methods",
        type=options.names,
        metavar="A,B,C",
        help=f"(default: {','.join(steps.METHODS)}; variational_laplace on softplus)",
    )
    fast.add_argument(
        "--rounds", type=options.whole(), default=15, metavar="N", help="(default: 15)"
    )
    fast.add_argument(
        "--processes",
        type=options.whole(),
        default=1,
        metavar="N",
        help="run N processes one after another, each with all rounds: the memory layout of a "
        "process favours some methods (default: 1)",
    )
    fast.add_argument("--device", default="cpu", metavar="NAME", help="cpu or cuda (default: cpu)")
    fast.add_argument("--out", metavar="FILE", help="write the result as json")
    options.add_seed(fast, "of inputs and first weights (default: 0)")
    options.add_json(fast)
    fast.set_defaults(run=run_speed, interrupted="Nothing was written.")


def run_speed(args: argparse.Namespace) -> int:
    """Times steps and prints a table for each net."""
    cases = args.cases or steps.default_cases(args.device)
    with faults.of_the_call():
        steps.check(cases, args.methods, args.device)
    check_files(args.out)
    found = steps.run(
        cases,
        args.methods,
        rounds=args.rounds,
        processes=args.processes,
        device=args.device,
        seed=args.seed,
        progress=say,
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
    print(f"\n{found['machine']}; medians of {steps.in_words(found)}.")
    return 0
