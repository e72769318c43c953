"""`python -m benchmarks bandits`: the library's methods compared with the usual agents."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bayesrule.app.commands import faults, options, text
from benchmarks.commands.kept import check_files, keeper, printed, say
from benchmarks.explore import bandits
from benchmarks.explore.problems import PROBLEMS
from benchmarks.explore.settings import AGENTS


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "bandits",
        help="contextual bandits: Thompson draws of the library's methods beside the usual agents",
        description="Plays the bandits of Riquelme et al. (2018) whose data are free, with "
        "fewer rounds. Each agent tries the same number of settings on tuning seeds; the best is "
        "played on the test seeds. Prints the regret in per cent of that of random actions, with "
        "standard errors, and the differences from linear Thompson and from the greedy net by "
        "seed. With --out, finished games are kept and the same call resumes; a game takes some "
        "seconds. Set OMP_NUM_THREADS=1, because the nets are small.",
        examples="""
            python -m benchmarks bandits --sets statlog --agents linear,greedy,tagi --seeds 2
            python -m benchmarks bandits --jobs 16 --out bandits.json
        """,
    )
    for name, known, what in (("sets", PROBLEMS, "problems"), ("agents", AGENTS, "who plays")):
        parser.add_argument(
            f"--{name}",
            type=options.names,
            default=",".join(known),
            metavar="A,B",
            help=f"{what} (default: {', '.join(known)})",
        )
    options.add_option(parser, "--seeds", "N", "test seeds", read=options.whole(), default=10)
    options.add_option(
        parser, "--tuning-seeds", "N", "seeds of each try", read=options.whole(), default=2
    )
    parser.add_argument(
        "--rounds", type=options.whole(), metavar="N", help="(default: the problem's own)"
    )
    options.add_option(parser, "--jobs", "N", "processes", read=options.whole(), default=1)
    parser.add_argument(
        "--out", metavar="FILE", help="write games and result as json, and resume from there"
    )
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Finished games are in --out, if it was given.")


def run(args: argparse.Namespace) -> int:
    """Plays the missing games and prints a table."""
    with faults.of_the_call():
        bandits.check(args.sets, args.agents)
    plan = bandits.Plan(args.rounds)
    check_files(args.out)
    keep = keeper(args)
    found = bandits.run(
        args.sets,
        args.agents,
        seeds=args.seeds,
        tuning_seeds=args.tuning_seeds,
        plan=plan,
        jobs=args.jobs,
        known=bandits.read(Path(args.out), plan) if args.out else (),
        keep=keep,
        progress=say,
    )
    keep(found)
    if not printed(args, found):
        _show(found)
    return 0


def _show(found: dict[str, Any]) -> None:
    rows = [
        [
            one["set"],
            one["agent"],
            text.with_error(one["mean"], one["error"]),
            *(
                text.with_error(*one["beside"][other]) if other in one["beside"] else "–"
                for other in ("linear", "greedy")
            ),
            ", ".join(f"{name}={value:g}" for name, value in one["options"].items()),
        ]
        for one in found["results"]
    ]
    heads = ["problem", "agent", "regret, %", "− linear", "− greedy", "settings"]
    print(text.table(heads, rows))
    print(f"{found['machine']}; means over test seeds and their standard errors.")
