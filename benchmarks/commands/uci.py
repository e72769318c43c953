"""`python -m benchmarks uci`: methods on the nine UCI regression sets, beside the papers'."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bayesrule.app.commands import faults, options, text
from benchmarks.commands.kept import check_places, drawn, keeper, printed, say
from benchmarks.pictures import by_set
from benchmarks.regression import runs, uci
from benchmarks.regression.settings import SETTINGS, entries
from benchmarks.regression.tasks import PUBLISHED
from benchmarks.trials import usable

_SCORES = {"rmse": "RMSE", "log_likelihood": "log-likelihood"}


def add(kinds: Any) -> None:
    """Adds the command and its options."""
    parser = options.add_command(
        kinds,
        "uci",
        help="methods on the nine UCI regression sets, beside the papers' tables",
        description="Trains one net for each standard split of each set, all splits at once if "
        "the method can, and compares RMSE and mean test log-likelihood (of each point, in "
        "original units) with published figures. noisy_kfac, mean_field and their relatives are "
        "trained as by Zhang et al. (2018): 50 hidden units, 1000 epochs, which takes hours on "
        "one core for all sets; noisy_kfac-own is the library's own setting, the same for all "
        "sets. tagi is compared with pytagi's table and takes ten minutes: 'table' has the noise "
        "and the epochs that pytagi chose for each set, 'learned' learns the noise and chooses "
        "nothing. With --out, each row is kept when it is done and the same call resumes. Set "
        "OMP_NUM_THREADS=1, because the nets are small.",
        examples="""
            python -m benchmarks uci --sets boston,yacht
            python -m benchmarks uci --methods noisy_kfac,mean_field --sets yacht --epochs 50
            python -m benchmarks uci --methods noisy_kfac,noisy_kfac-own,mean_field --out uci.json
            python -m benchmarks uci --methods noisy_kfac,mean_field --two-layers --pictures out
            python -m benchmarks uci --methods noisy_kfac --sets protein --device cuda --out p.json
            python -m benchmarks uci --methods noisy_kfac --add p.json --out uci.json
        """,
    )
    every = ", ".join(["tagi", *SETTINGS])
    for name, given, what in (
        ("methods", "tagi", f"of {every} (default: tagi)"),
        ("sets", ",".join(uci.PYTAGI), f"(default: all, {', '.join(uci.PYTAGI)})"),
        ("settings", None, f"tagi's noise and epochs (default: {','.join(uci.SETTINGS)})"),
    ):
        parser.add_argument(
            f"--{name}", type=options.names, default=given, metavar="A,B", help=what
        )
    parser.add_argument(
        "--two-layers", action="store_true", help="two hidden layers instead of one; not for tagi"
    )
    for name, what in (
        ("splits", "only the first N (default: all)"),
        ("epochs", "instead of each method's own; not for tagi"),
    ):
        parser.add_argument(f"--{name}", type=options.whole(), metavar="N", help=what)
    parser.add_argument(
        "--device", default="cpu", metavar="NAME", help="cpu or cuda; not for tagi (default: cpu)"
    )
    parser.add_argument(
        "--out", metavar="FILE", help="write the result as json, and resume from there"
    )
    parser.add_argument(
        "--add",
        action="append",
        default=[],
        metavar="PLACE",
        help="take in the rows of another result, or of a folder of them (may be repeated)",
    )
    parser.add_argument("--pictures", metavar="FOLDER", help="draw svg files of the result")
    options.add_seed(parser, "of first weights, order of data and draws (default: 0)")
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Finished rows are in --out, if that was given.")


def run(args: argparse.Namespace) -> int:
    """Trains the missing rows and prints tables."""
    plan = runs.Plan(args.splits, args.epochs, args.seed)
    with faults.of_the_call():
        uci.check(args.sets, args.settings or ())
        if args.settings and "tagi" not in args.methods:
            raise faults.CallError("--settings are tagi's, which is not among --methods.")
        if args.device != "cpu" and "tagi" in args.methods:
            raise faults.CallError("tagi trains on the CPU here: leave it or --device out.")
        usable(args.device)
        chosen = entries(args.methods, args.settings)
        runs.check(chosen, args.sets, two_layers=args.two_layers, plan=plan)
    check_places(args)
    keep = keeper(args)
    found = runs.run(
        chosen,
        args.sets,
        two_layers=args.two_layers,
        plan=plan,
        known=_known(args, plan),
        keep=keep,
        progress=say,
        device=args.device,
    )
    keep(found)
    drawn(args, "uci", found, by_set.of_uci)
    if not printed(args, found):
        _show(found)
    return 0


def _known(args: argparse.Namespace, plan: runs.Plan) -> list[dict[str, Any]]:
    """The rows of earlier results; those of --out come first."""
    rows: dict[object, dict[str, Any]] = {}
    for file in [*([Path(args.out)] if args.out else []), *_added(args.add)]:
        for row in runs.read(file, plan):
            rows.setdefault(runs.key(row), row)
    return list(rows.values())


def _added(given: Sequence[str]) -> list[Path]:
    """The files of --add; for a folder, all its json files."""
    found: list[Path] = []
    for place in map(Path, given):
        files = sorted(place.glob("*.json")) if place.is_dir() else [place]
        if not files or not all(file.is_file() for file in files):
            raise faults.CallError(f"There is no json file at '{place}' whose rows could be added.")
        found += files
    return found


def _show(found: dict[str, Any]) -> None:
    for setting in found.get("settings", ()):
        _show_tagi(found, setting)
    for deep in (False, True):
        rows = [one for one in found["results"] if "setting" not in one]
        rows = [one for one in rows if one["two_layers"] is deep]
        if rows:
            _show_tables(rows, deep)
            _show_summary(found, deep)
    print(f"\n{found['machine']}; means over splits and their standard errors.")


def _show_tagi(found: dict[str, Any], setting: str) -> None:
    rows = [_beside_pytagi(one) for one in found["results"] if one.get("setting") == setting]
    print(f"\nTAGI, {found['settings'][setting]}")
    print(text.table(["set", "RMSE", "pytagi", "log-likelihood", "pytagi"], rows))
    count = found["counts"][setting]
    print(
        f"At least as good (*) on {count['rmse']} (RMSE), {count['log_likelihood']} "
        f"(log-likelihood) and {count['both']} (both) of {count['sets']} sets."
    )


def _beside_pytagi(result: dict[str, Any]) -> list[str]:
    cells = [result["set"]]
    for name, sign in (("rmse", 1.0), ("log_likelihood", -1.0)):
        own, other = result[name], result["published"][name]
        good = sign * own["mean"] <= sign * other
        shown = text.with_error(own["mean"], own["error"])
        cells += [shown + (" *" if good else "  "), f"{other:g}"]
    return cells


def _show_tables(rows: Sequence[dict[str, Any]], deep: bool) -> None:
    places = {(one["entry"], one["set"]): one for one in rows}
    own = list(dict.fromkeys(entry for entry, _ in places))
    sets = list(dict.fromkeys(name for _, name in places))
    papers = list(PUBLISHED[deep]["boston"])
    for score, title in _SCORES.items():
        cells = [
            [
                name,
                *(_cell(places.get((entry, name)), score) for entry in own),
                *(f"{PUBLISHED[deep][name][who][score][0]:g}" for who in papers),
            ]
            for name in sets
        ]
        print(f"\n{title}, {'two hidden layers' if deep else 'one hidden layer'}")
        print(text.table(["set", *own, *papers], cells))
    print(
        f"{', '.join(papers[:4])}: Zhang et al. (2018), Table {4 if deep else 1}, on random splits "
        "of their own." + ("" if deep else " Dropout: Gal & Ghahramani's grid search.")
    )
    for one in rows:
        if "failed" in one:
            print(f"({runs.line(one)})")


def _cell(one: dict[str, Any] | None, score: str) -> str:
    if one is None or "failed" in one:
        return "–"
    return text.with_error(one[score]["mean"], one[score]["error"])


def _show_summary(found: dict[str, Any], deep: bool) -> None:
    for one in (one for one in found["wins"] if one["two_layers"] is deep):
        print(
            f"{one['entry']} beats {one['over']} on {one['rmse']} (RMSE), {one['log_likelihood']} "
            f"(log-likelihood) and {one['both']} (both) of {one['sets']} sets."
        )
    for one in (one for one in found["ranks"] if one["two_layers"] is deep):
        shown = (f"{who} {rank:.2f}" for who, rank in sorted(one["ranks"].items(), key=_second))
        print(f"Mean rank in log-likelihood over {one['sets']} sets: {', '.join(shown)}.")


def _second(pair: tuple[str, float]) -> float:
    return pair[1]
