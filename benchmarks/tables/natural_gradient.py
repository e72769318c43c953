"""The tables of the page on natural gradients, from `benchmarks/results/*.json`."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.hmc.reference import COLUMNS
from benchmarks.images.variational import chosen
from benchmarks.regression.ranks import of_entry
from benchmarks.regression.tasks import PUBLISHED
from benchmarks.tables.calls import Result, call, calls

SCORES = {"log_likelihood": "Log-likelihood of a test point", "rmse": "RMSE"}


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """The lines of a table."""
    every = [head, *rows]
    lines = ["| " + " | ".join(row) + " |" for row in every]
    return [lines[0], "|" + "---|" * len(head), *lines[1:]]


def uci(result: Result) -> str:
    """The rows of methods on the UCI sets beside the paper's, by score and number of layers."""
    parts: list[str] = []
    for deep in (False, True):
        rows = [one for one in result["results"] if one.get("two_layers") is deep]
        entries = list(dict.fromkeys(one["entry"] for one in rows))
        if not rows:
            continue
        for score, title in SCORES.items():
            layers = "two hidden layers" if deep else "one hidden layer"
            parts += [f"{title}, {layers}:", "", *_scores(rows, entries, score, deep), ""]
        parts += [*_wins(result, deep), ""]
    parts.append(
        "Means over the standard splits ± standard error, in original units. BBB, PBP, PBP_MV and "
        "NNG-MVG (which is noisy K-FAC): Zhang et al. (2018), Tables 1 and 4, on random splits of "
        "their own; dropout: Gal & Ghahramani's grid search. noisy_kfac and mean_field have the "
        "paper's settings; noisy_kfac-own has the library's, the same for all sets and chosen on "
        "held-out training data."
    )
    if "note" in result:
        parts.append(result["note"])
    machines = dict.fromkeys(one["machine"] for one in result["results"])
    parts.append(f"`{call(result)}`; rows were made on {'; '.join(machines)}.")
    return "\n".join(parts)


def _scores(rows: list[Result], entries: list[str], score: str, deep: bool) -> list[str]:
    known = {entry: of_entry(rows, entry, deep) for entry in entries}
    papers = list(PUBLISHED[deep]["boston"])
    sets = [name for name in PUBLISHED[deep] if any(name in each for each in known.values())]
    lines = [
        [
            name,
            *(_figure(known[entry].get(name), score) for entry in entries),
            *(f"{PUBLISHED[deep][name][who][score][0]:.3f}" for who in papers),
        ]
        for name in sets
    ]
    return table(["set", *entries, *papers], lines)


def _figure(row: Result | None, score: str) -> str:
    if row is None:
        return "–"
    mean, error = row[score]["mean"], row[score]["error"]
    decimals = 3 if abs(mean) >= 0.01 else 6
    return f"{mean:.{decimals}f} ± {error:.{decimals}f}"


def _wins(result: Result, deep: bool) -> list[str]:
    found = [
        f"{one['entry']} is better than {one['over']} on {one['rmse']} (RMSE) and "
        f"{one['log_likelihood']} (log-likelihood) of {one['sets']} sets."
        for one in result["wins"]
        if one["two_layers"] is deep
    ]
    for one in result["ranks"]:
        if one["two_layers"] is deep and one["entry"] != "mean_field":
            ranks = sorted(one["ranks"].items(), key=lambda pair: pair[1])
            shown = ", ".join(f"{who} {rank:.2f}" for who, rank in ranks)
            found.append(f"Mean rank in log-likelihood over {one['sets']} sets: {shown}.")
    return found


def noisy_images(*results: Result) -> str:
    """Noisy methods and plain optimisers on images; means over the seeds of a task."""
    lines = []
    for title in dict.fromkeys(one["title"] for one in results):
        group = [one for one in results if one["title"] == title]
        picked = [{(r["method"], r["way"]): r for r in chosen(one["results"])} for one in group]
        for method, way in picked[0]:
            rows = [one[method, way] for one in picked if (method, way) in one]
            cells = [_over_seeds([row["test"][k] for row in rows], *how) for k, how in _HOW.items()]
            what = {(row["temperature"], row["rate_multiplier"]) for row in rows}
            words = "; ".join(f"T = {t:g}, × {r:g}" for t, r in sorted(what))
            plain = "noisy" not in method
            words = "; ".join(f"× {r:g}" for _, r in sorted(what)) if plain else words
            lines.append([title, f"{method}, {way}", words, *cells])
    held, seeds = results[0]["held_out"], sorted({one["seed"] for one in results})
    text = (
        "Accuracy, NLL and calibration error on the test images. Each method has the temperature "
        f"T and the multiple of its learning rate of least NLL on {held} held-out training images "
        f"(seeds {', '.join(map(str, seeds))} where a ± stands, the standard deviation over them)."
    )
    head = ["net", "prediction", "chosen", "accuracy", "NLL", "ECE"]
    notes = [one["note"] for one in results if "note" in one]
    return "\n".join([text, "", *table(head, lines), "", *notes, calls(list(results))])


_HOW = {"accuracy": (2, " %"), "nll": (3, ""), "ece": (4, "")}


def _over_seeds(values: list[float], decimals: int, unit: str) -> str:
    mean = f"{statistics.mean(values):.{decimals}f}"
    if len(values) == 1:
        return mean + unit
    return f"{mean} ± {statistics.stdev(values):.{decimals}f}{unit}"


def hmc(result: dict[str, Any]) -> str:
    """The table of correlations with the variances of NUTS."""
    places = {(one["set"], one["method"]): one for one in result["results"]}
    methods = list(dict.fromkeys(one["method"] for one in result["results"]))
    head = ["set", *methods, *COLUMNS]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name in dict.fromkeys(one["set"] for one in result["results"]):
        own = [places[name, method] for method in methods]
        cells = [f"{one['correlation']:.3f} ± {one['error']:.3f}" for one in own]
        papers = [f"{value:.3f}" for value in own[0]["published"]]
        lines.append("| " + " | ".join([name, *cells, *papers]) + " |")
    trials = max(one["trials"] for one in result["results"])
    text = (
        f"Pearson correlation of epistemic variances with those of NUTS, means over {trials} "
        f"trials ± standard error. {', '.join(COLUMNS)}: Zhang et al. (2018), Table 3, with rows "
        "of their own."
    )
    return "\n".join([text, "", *lines, "", result.get("note", ""), calls([result])])


def active(result: dict[str, Any]) -> str:
    """The table of errors after active learning."""
    rows = result["results"]
    places = {(one["set"], one["method"], one["criterion"]): one for one in rows}
    columns = sorted({(one["method"], one["criterion"]) for one in rows}, key=_random_first)
    head = ["set", *(f"{method}, {criterion}" for method, criterion in columns)]
    head += ["NNG-MVG, random", "NNG-MVG, variance"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name in dict.fromkeys(one["set"] for one in rows):
        own = [places[name, *column]["rmse"] for column in columns]
        cells = [f"{one['mean']:.3f} ± {one['error']:.3f}" for one in own]
        papers = [_paper_rmse(places, name, kind) for kind in ("random", "variance")]
        lines.append("| " + " | ".join([name, *cells, *papers]) + " |")
    plan, trials = result["plan"], max(one["trials"] for one in rows)
    text = (
        f"RMSE on {plan['test']} test rows after {plan['start']} labels and {plan['steps']} more, "
        f"chosen at random or by a criterion; means over {trials} trials ± standard error. "
        "NNG-MVG: Zhang et al. (2018), Table 2."
    )
    return "\n".join([text, "", *lines, "", calls([result])])


def _random_first(column: tuple[str, str]) -> tuple[str, int]:
    return column[0], ("random", "variance", "bald", "epig").index(column[1])


def _paper_rmse(places: dict[Any, dict[str, Any]], name: str, criterion: str) -> str:
    found = [
        one["published"]["NNG-MVG"][0]
        for (where, _, kind), one in places.items()
        if (where, kind) == (name, criterion) and "NNG-MVG" in one["published"]
    ]
    return f"{found[0]:.3f}" if found else "–"


def many(result: Result) -> str:
    """Nets trained together and one after another."""
    text = (
        f"An epoch of {result['nets']} nets on {result['set']}, batches of {result['batch_size']}; "
        f"medians of {result['rounds']} rounds in turn, and the largest difference between what "
        "they predict (standardised):"
    )
    rows = [
        [
            one["method"],
            f"{one['seconds']['together']:.2f} s",
            f"{one['seconds']['apart']:.1f} s",
            f"{one['ratio']:.0f} ×",
            f"{one['largest_difference']:.0e}",
        ]
        for one in result["results"]
    ]
    head = ["method", "together", "one after another", "faster", "difference"]
    return "\n".join([text, "", *table(head, rows), "", calls([result])])


def widths(result: Result) -> str:
    """The time of a step and the memory of a state, by the width of a layer."""
    known = {(one["method"], one["width"]): one for one in result["results"]}
    known = {place: one for place, one in known.items() if "mean_milliseconds" in one}
    wide = [width for width in (64, 256, 1024, 4096) if any(place[1] == width for place in known)]
    rows = []
    for method in dict.fromkeys(method for method, _ in known):
        each = [known.get((method, width)) for width in wide]
        rows.append([method, *(_step_and_state(one) for one in each)])
    text = f"{result['net']}, batches of {result['batch']}: a mean step, and the state."
    head = ["method", *(f"width {width}" for width in wide)]
    return "\n".join([text, "", *table(head, rows), "", calls([result])])


def _step_and_state(one: Result | None) -> str:
    if one is None:
        return "–"
    size = one["state_bytes"] / 1e6
    return f"{one['mean_milliseconds']:,.1f} ms, {size:,.{0 if size >= 10 else 1}f} MB"


PAGE: dict[str, tuple[list[str], Callable[..., str]]] = {
    "uci-noisy": (["uci_noisy.json"], uci),
    "many": (["many.json"], many),
    "widths": (["widths.json"], widths),
    "hmc": (["hmc.json"], hmc),
    "active": (["active.json"], active),
    "noisy-images": (
        [*(f"noisy_fashion_{seed}.json" for seed in range(3)), "noisy_cifar10.json"],
        noisy_images,
    ),
}
"""The tables between the page's markers, and the files they are made from."""
