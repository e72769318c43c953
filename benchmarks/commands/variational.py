"""`python -m benchmarks images` and `text`: methods and ranks, beside the papers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bayesrule.app.commands import faults, text
from benchmarks.commands.kept import check_places, drawn, keeper, say
from benchmarks.images import tied, variational
from benchmarks.pictures import training
from benchmarks.trials import read

COLUMNS = {
    "T": ("temperature", "the temperature"),
    "×": ("scale_multiplier", "the multiplier of the scales' learning rate"),
    "rate ×": ("rate_multiplier", "the multiplier of the learning rate"),
}
"""Settings of trials: a column's heading, the field, and its meaning."""


def run_methods(args: argparse.Namespace) -> int:
    """Trains methods at temperatures and prints the best of each, then all of them."""
    task = variational.TASKS[args.task]
    methods = [name.lower().replace("-", "_") for name in args.methods or task.methods]
    with faults.of_the_call():
        trials = variational.every_trial(
            methods,
            args.temperatures or task.temperatures,
            args.multipliers or (variational.MULTIPLIER,),
            args.rates or (1.0,),
            known=task.methods,
        )
    settings = {
        **_settings(args),
        "held_out": args.held_out or variational.HELD_OUT,
        "seed": args.seed or 0,
    }
    found = variational.run(
        args.task,
        trials,
        **settings,
        jobs=args.jobs or 1,
        previous=_previous(args, variational.facts(args.task, **settings)),
        show=say,
        keep=keeper(args),
    )
    drawn(args, args.task, found, training.of_variational)
    if args.json:
        print(text.as_json(found))
        return 0
    _show_chosen(found)
    _show_all(found)
    return 0


def run_tied(args: argparse.Namespace) -> int:
    """Trains ranks for seeds and prints their means, the ratios and the truncations."""
    settings = {**_settings(args), "marks": tuple(args.marks or tied.MARKS)}
    found = tied.run(
        args.task,
        ranks=args.ranks or (0, 2, 3),
        seeds=args.seeds or (0, 1, 2),
        **settings,
        jobs=args.jobs or 1,
        previous=_previous(args, tied.facts(args.task, **settings)),
        show=say,
        keep=keeper(args),
    )
    drawn(args, args.task, found, training.of_tied)
    if args.json:
        print(text.as_json(found))
        return 0
    _show_ranks(found)
    _show_ratios(found)
    _show_truncated(found)
    return 0


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    return {"device": args.device, "epochs": args.epochs, "num": args.num}


def _previous(args: argparse.Namespace, facts: dict[str, Any]) -> dict[str, Any] | None:
    """The earlier result in --out, after checking that everything can be written."""
    check_places(args)
    if not args.out:
        return None
    found = read(Path(args.out), facts)
    if found:
        say(f"{len(found['results'])} results are there already")
    return found


def _show_chosen(found: dict[str, Any]) -> None:
    columns = _columns(found["results"])
    papers = bool(found["published"])
    rows = []
    for one in variational.chosen(found["results"]):
        name, test = f"{one['method']}, {one['way']}", one["test"]
        published = found["published"].get(name, (None, None, None))
        figures = zip(
            ("nll", "accuracy", "ece"), (3, 1 if papers else 2, 3), published, strict=True
        )
        pairs = [_pair(test[key], paper, digits) for key, digits, paper in figures]
        cells = [cell for pair in pairs for cell in pair[: 2 if papers else 1]]
        rows.append([name, *_setting(one, columns), *cells])
    scores = ["NLL", "paper", "accuracy %", "paper", "ECE", "paper"][:: 1 if papers else 2]
    print(f"\n{found['title']}: test images")
    print(text.table(["prediction", *columns, *scores], rows))
    what = "; ".join(f"{sign}, {COLUMNS[sign][1]}" for sign in columns)
    chosen = f"Settings are those of the least NLL on {found['held_out']} held-out training images"
    print(f"{chosen}{': ' if what else ''}{what}. {found.get('source', '')}".rstrip())


def _show_all(found: dict[str, Any]) -> None:
    columns = _columns(found["results"])
    rows = [
        [
            f"{one['method']}, {one['way']}",
            *_setting(one, columns),
            *(_figure(one["held_out"][key], digits) for key, digits in (("nll", 4), ("ece", 3))),
            *(_figure(one["test"][key], digits) for key, digits in (("nll", 4), ("accuracy", 2))),
        ]
        for one in found["results"]
    ]
    scores = ["NLL, held out", "ECE, held out", "NLL, test", "accuracy %"]
    print("\nAll settings")
    print(text.table(["prediction", *columns, *scores], rows))
    print(f"\n{found['machine']}; {found['epochs']} epochs, seed {found['seed']}.")


def _show_ranks(found: dict[str, Any]) -> None:
    rows = []
    for method, own in tied.summary(found).items():
        published = found["published"].get(method, (None,) * 4)
        bound = _pair(own["negative_elbo"], published[0], 3)
        nll = [text.with_error(own["nll"], own["nll_error"]), _paper(published[1])]
        right = _pair(own["accuracy"], published[2], 2)
        size = _pair(own["parameters"] / 1000, published[3], 0)
        rows.append([method, *bound, *nll, *right, *size])
    columns = ("−ELBO", "NLL", "accuracy %", "parameters / 1000")
    head = ["posterior", *(name for column in columns for name in (column, "paper"))]
    seeds = sorted({one["seed"] for one in found["results"]})
    print(f"\n{found['title']}: test data, means over seeds {', '.join(map(str, seeds))}")
    print(text.table(head, rows))
    print(
        f"Predictions average {found['draws']} draws; ± is over the test data. Swiatkowski et al. "
        f"(2020). {found['machine']}; {found['epochs']} epochs."
    )


def _show_ratios(found: dict[str, Any]) -> None:
    rows = tied.ratio_summary(found)
    if rows:
        head = ["posterior", "step", "SNR, median", "SNR, mean", "−ELBO"]
        print("\nSignal-to-noise ratio of the gradients in the scales, means over seeds")
        cells = [[m, str(step), *(text.figure(v) for v in values)] for m, step, *values in rows]
        print(text.table(head, cells))


def _show_truncated(found: dict[str, Any]) -> None:
    cut = tied.truncated_summary(found)
    if cut:
        print("\nMean-field with its standard deviations cut to a rank after training")
        rows = [
            [name, _figure(own["nll"], 3), _figure(own["accuracy"], 2)] for name, own in cut.items()
        ]
        print(text.table(["rank", "NLL", "accuracy %"], rows))


def _pair(own: float, paper: float | None, digits: int) -> list[str]:
    """Our figure and the paper's."""
    return [_figure(own, digits), _paper(paper)]


def _paper(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


def _columns(results: list[dict[str, Any]]) -> list[str]:
    """The settings that some method in a result has, or that are not the usual ones."""
    had = {name for one in results for name in variational.METHODS[one["method"]].settings}
    if any(one.get("rate_multiplier", 1.0) != 1.0 for one in results):
        had.add("rate_multiplier")
    return [sign for sign, (name, _) in COLUMNS.items() if name in had]


def _setting(one: dict[str, Any], columns: list[str]) -> list[str]:
    """The cells of the settings; empty for a setting that the method does not have."""
    own = {*variational.METHODS[one["method"]].settings, "rate_multiplier"}
    names = [COLUMNS[sign][0] for sign in columns]
    return [f"{one.get(name, 1.0):g}" if name in own else "" for name in names]


def _figure(value: float, digits: int) -> str:
    return "–" if value != value else f"{value:.{digits}f}"
