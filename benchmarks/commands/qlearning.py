"""`python -m benchmarks qlearning`: Q-learning by TAGI with Thompson draws beside a DQN."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bayesrule.app.commands import faults, options, text
from benchmarks.commands.kept import check_files, keeper, printed, say
from benchmarks.explore import q_learning


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "qlearning",
        help="Q-learning by TAGI with Thompson draws beside a DQN",
        description="Runs examples/q_learning.py, and the DQN of stable-baselines3 with the "
        "settings of its zoo, for as many steps on the same environments. Prints the returns of "
        f"{q_learning.OF_EACH} episodes without exploration at the end, and on how many seeds "
        "their mean reaches the bar. Needs the extra 'explore', and 'explore-peers' for the DQN. "
        "With --out, finished runs are kept and the same call resumes. Set OMP_NUM_THREADS=1, "
        "because the nets are small.",
        examples="""
            python -m benchmarks qlearning --envs DeepSea-v0 --size 8 --steps 4000 --seeds 2
            python -m benchmarks qlearning --jobs 16 --out q_learning.json
        """,
    )
    for name, known, what in (
        ("envs", "CartPole-v1,DeepSea-v0", f"of {', '.join(q_learning.BARS)}"),
        ("agents", ",".join(q_learning.AGENTS), "who learns"),
    ):
        parser.add_argument(
            f"--{name}",
            type=options.names,
            default=known,
            metavar="A,B",
            help=f"{what} (default: {known})",
        )
    options.add_option(parser, "--seeds", "N", "of each", read=options.whole(), default=10)
    options.add_option(parser, "--size", "N", "of Deep Sea", read=options.whole(), default=20)
    options.add_option(
        parser, "--first-seed", "N", "100 for tuning", read=options.whole(least=0), default=0
    )
    parser.add_argument(
        "--settings",
        type=options.names,
        default=[],
        metavar="NAME=NUMBER,...",
        help="numbers that differ from the example's Settings, such as noise=0.1,lag=100",
    )
    parser.add_argument(
        "--steps", type=options.whole(), metavar="N", help="(default: the example's own)"
    )
    options.add_option(parser, "--jobs", "N", "processes", read=options.whole(), default=1)
    parser.add_argument(
        "--out", metavar="FILE", help="write runs and result as json, and resume from there"
    )
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Finished runs are in --out, if it was given.")


def run(args: argparse.Namespace) -> int:
    """Runs the missing games and prints a table."""
    with faults.of_the_call():
        q_learning.check(args.envs, args.agents)
        settings = dict(_setting(one) for one in args.settings)
        q_learning.check_settings(settings)
    plan = q_learning.Plan(args.steps, args.size, settings)
    check_files(args.out)
    keep = keeper(args)
    found = q_learning.run(
        args.envs,
        args.agents,
        seeds=range(args.first_seed, args.first_seed + args.seeds),
        plan=plan,
        jobs=args.jobs,
        known=q_learning.read(Path(args.out), plan) if args.out else (),
        keep=keep,
        progress=say,
    )
    keep(found)
    if not printed(args, found):
        _show(found)
    return 0


def _setting(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise ValueError(f"--settings takes NAME=NUMBER, got {text!r}.") from None


def _show(found: dict[str, Any]) -> None:
    rows = [
        [
            one["env"],
            one["agent"],
            f"{one['steps']:,}",
            f"{one['solved']} of {one['seeds']}",
            f"{one['median']:.4g}",
            f"{one['least']:.4g}",
            f"{one['seconds']:.0f}",
        ]
        for one in found["results"]
    ]
    heads = ["environment", "agent", "steps", "at the bar", "median return", "least", "seconds"]
    print(text.table(heads, rows))
    print(f"Bars: {', '.join(f'{k} {v:g}' for k, v in found['bars'].items())}; {found['machine']}.")
