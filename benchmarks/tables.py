"""Writes the figures of `benchmarks/results/*.json` into the docs, between their markers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
# What a step may cost at most, as a multiple of an Adam step.
BARS = {
    "mlp": {"map": 1.3, "ogn": 1.8, "ivon": 1.8, "vogn": 2.3},
    "cnn": {"ivon": 1.15, "vogn": 2.0},
}


def speed(result: dict[str, Any]) -> str:
    """The table of step costs."""
    cases = result["results"]
    names = list(dict.fromkeys(name for case in cases for name in case["multiple_of_adam"]))
    lines = [
        "Cost of a training step as a multiple of a `torch.optim.Adam` step on the same net, all "
        f"timed in turn within one run (medians of {result['rounds']} rounds):",
        "",
        "| step of | " + " | ".join(case["title"] for case in cases) + " |",
        "|---|" + "---|" * len(cases),
    ]
    for name in names:
        cells = []
        for case in cases:
            ratio, bar = (
                case["multiple_of_adam"].get(name),
                BARS.get(case["case"], {}).get(name),
            )
            shown = "–" if ratio is None else f"{ratio:.2f}"
            cells.append(f"{shown} (target {bar})" if bar is not None else shown)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"`{result['command']}`, torch {result['versions']['torch']}, {result['machine']}.",
    ]
    return "\n".join(lines)


def uci(result: dict[str, Any]) -> str:
    """The table of UCI regression sets: each setting beside pytagi's figures."""
    settings = list(result["settings"])
    heads = " | ".join(f"RMSE, {name} | log-likelihood, {name}" for name in settings)
    lines = [
        f"TAGI, {result['net']}, means over the standard splits ± standard error of the mean; bold "
        "is at least as good as pytagi.",
        "",
        f"| set | RMSE, pytagi | log-likelihood, pytagi | {heads} |",
        "|---|" + "---|" * (2 + 2 * len(settings)),
    ]
    for name in dict.fromkeys(one["set"] for one in result["results"]):
        own = {one["setting"]: one for one in result["results"] if one["set"] == name}
        published = next(iter(own.values()))["published"]
        cells = [name, f"{published['rmse']:.3f}", f"{published['log_likelihood']:.3f}"]
        for setting in settings:
            cells += [
                _beside(own[setting], "rmse", 1.0),
                _beside(own[setting], "log_likelihood", -1.0),
            ]
        lines.append("| " + " | ".join(cells) + " |")
    for name, title in result["settings"].items():
        count = result["counts"][name]
        lines += [
            "",
            f"*{name}*: {title}. At least as good as pytagi on {count['rmse']} (RMSE), "
            f"{count['log_likelihood']} (log-likelihood) and {count['both']} (both) of "
            f"{count['sets']} sets.",
        ]
    lines += [
        "",
        f"`{result['command']}`, torch {result['versions']['torch']}, {result['machine']}.",
    ]
    return "\n".join(lines)


def images(results: list[dict[str, Any]]) -> str:
    """The table of errors on images."""
    lines = [
        "TAGI on images, one seed; errors on the test images after the first and the last epoch, "
        "and those that the method's authors or their package report for the same kind of net. The "
        "noise and bounds of the first three were picked among some sixty short runs that were "
        "scored on test images, so these errors are a little too good; those of CIFAR-10 were "
        "picked on held-out training images, after earlier trials that did look at test images.",
        "",
        "| net | epochs | error, first | error, last | published | on |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        rows = [row for row in result["history"] if "error" in row]
        published = "–" if result["published"] is None else f"{result['published']:g} %"
        cells = [
            result["title"],
            f"{result['history'][-1]['epoch']:.0f}",
            f"{rows[0]['error']:.2f} % ({rows[0]['epoch']:.0f})",
            f"{rows[-1]['error']:.2f} %",
            published,
            "GPU" if result["device"].startswith("cuda") else "CPU",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    commands = ", ".join(f"`{result['command']}`" for result in results)
    return "\n".join([*lines, "", f"{commands}."])


def tagi_speed(*results: dict[str, Any]) -> str:
    """The table of TAGI's step costs, on a CPU and on a GPU."""
    lines = [
        "TAGI, timed in turn with SGD within one run, on one thread of a CPU with freed memory "
        "kept (`br.keep_memory()`, for all alike); pytagi 0.2.1 on the same nets. ResNet-18 on an "
        "H200 in TF32, channels last, SGD and compiled TAGI as CUDA graphs.",
        "",
        "| net | step of | × SGD | samples/s | × pytagi |",
        "|---|---|---|---|---|",
    ]
    for case in (case for result in results for case in result["results"]):
        for name, rate in case["samples_per_second"].items():
            ratio = case["multiple_of_sgd"].get(name)
            times = case.get("times_pytagi", {}).get(name)
            cells = [
                case["title"],
                name,
                "" if ratio is None else f"{ratio:.2f}",
                f"{rate:,.0f}",
                "" if times is None else f"{times:.1f}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    commands = [f"`{one['command']}`, torch {one['versions']['torch']}" for one in results]
    return "\n".join([*lines, "", "; ".join(commands) + "."])


def image_results() -> list[dict[str, Any]]:
    """The results of `bayesrule bench images`, as they are kept."""
    order = ("mnist_fnn", "mnist_cnn", "fashion_cnn", "cifar10")
    files = [RESULTS / f"images_{name}.json" for name in order]
    return [json.loads(file.read_text()) for file in files if file.is_file()]


def _beside(result: dict[str, Any], name: str, sign: float) -> str:
    """A mean and its error, bold where it is at least as good as the published figure."""
    mean, error = result[name]["mean"], result[name]["error"]
    decimals = 3 if abs(mean) >= 0.01 else 5
    shown = f"{mean:.{decimals}f} ± {error:.{decimals}f}"
    return f"**{shown}**" if sign * mean <= sign * result["published"][name] else shown


def replace_between(text: str, marker: str, content: str) -> str:
    """The text with new content between `<!-- marker:begin -->` and `<!-- marker:end -->`."""
    begin, end = f"<!-- {marker}:begin -->", f"<!-- {marker}:end -->"
    if begin not in text or end not in text:
        raise ValueError(f"There is no {begin} ... {end} in the text.")
    head, rest = text.split(begin, 1)
    return f"{head}{begin}\n{content}\n{end}{rest.split(end, 1)[1]}"


def main() -> int:
    """Rewrites the README from the results."""
    readme = ROOT / "README.md"
    text = readme.read_text()
    for marker, files, table in (
        ("speed", ["speed.json"], speed),
        ("tagi-speed", ["tagi_speed.json", "tagi_speed_gpu.json"], tagi_speed),
        ("uci", ["uci_tagi.json"], uci),
    ):
        results = [json.loads((RESULTS / file).read_text()) for file in files]
        text = replace_between(text, marker, table(*results))
    text = replace_between(text, "images", images(image_results()))
    readme.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
