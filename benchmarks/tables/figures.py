"""The tables of speed, images, text and UCI sets, from `benchmarks/results/*.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.images.tied import ratio_summary, summary, truncated_summary
from benchmarks.images.variational import chosen
from benchmarks.speed.steps import in_words
from benchmarks.tables.calls import call, calls

RESULTS = Path(__file__).resolve().parents[1] / "results"
# Targets: the largest cost of a step relative to Adam's, by device and net.
BARS = {
    "cpu": {
        "mlp": {
            "map": 1.3,
            "ogn": 1.8,
            "ivon": 1.8,
            "vogn": 2.3,
            "mean_field": 2.5,
            "noisy_adam": 1.8,
            "noisy_kfac": 3.5,
        },
        "cnn": {"ivon": 1.15, "vogn": 2.0, "mean_field": 1.4, "noisy_adam": 1.2, "noisy_kfac": 2.2},
    },
    "cuda": {"resnet18": {"mean_field": 1.4}},
}
# The same relative to map's, and methods whose target is another method's cost.
BARS_OF_MAP = {name: {"variational_laplace": 2.75} for name in ("softplus", "preact18")}
BARS_OF_OTHERS = {"k_tied": "mean_field"}
# The methods that were replayed in results that do not say so.
REPLAYED = ("map", "mean_field", "k_tied", "variational_laplace", "noisy_adam", "noisy_kfac")
TIED = ("mnist", "cifar10", "imdb")
VARIATIONAL = ("fashion_short", "fashion", "cifar10")


def speed(*results: dict[str, Any]) -> str:
    """The tables of step costs, one for each device."""
    lines = [
        "Cost of a training step as a multiple of a `torch.optim.Adam` step on the same net, all "
        "timed in turn within one run. On a GPU in TF32 with channels last; Adam's step is a CUDA "
        f"graph there, and so are those of {', '.join(_replayed(results))} "
        "(`br.fit(..., fused=True)`), not those of the others.",
    ]
    for result in results:
        cases = result["results"]
        names = dict.fromkeys(name for case in cases for name in case["multiple_of_adam"])
        lines += ["", "| step of | " + " | ".join(case["title"] for case in cases) + " |"]
        lines.append("|---|" + "---|" * len(cases))
        for name in names:
            costs = (_cost(case, name, result["device"]) for case in cases)
            lines.append(f"| {name} | " + " | ".join(costs) + " |")
        lines += [
            "",
            f"`{call(result)}`, torch {result['versions']['torch']}, {result['machine']}; "
            f"medians of {in_words(result)}.",
        ]
    return "\n".join(lines)


def _replayed(results: Sequence[dict[str, Any]]) -> list[str]:
    """The methods whose steps were CUDA graphs on a GPU."""
    cases = [case for one in results if one["device"] != "cpu" for case in one["results"]]
    return list(dict.fromkeys(name for case in cases for name in case.get("replayed", REPLAYED)))


def _cost(case: dict[str, Any], name: str, device: str) -> str:
    """The cost of a step in a case, and its target."""
    ratio = case["multiple_of_adam"].get(name)
    if ratio is None:
        return "–"
    bar = BARS[device].get(case["case"], {}).get(name)
    if bar is not None:
        return f"{ratio:.2f} (target {bar})"
    bar, of_map = BARS_OF_MAP.get(case["case"], {}).get(name), case.get("multiple_of_map", {})
    if bar is not None and name in of_map:
        return f"{ratio:.2f} ({of_map[name]:.2f} × map, target {bar})"
    other = BARS_OF_OTHERS.get(name)
    if other in case["multiple_of_adam"]:
        return f"{ratio:.2f} (target: that of {other})"
    return f"{ratio:.2f}"


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
        f"`{call(result)}`, torch {result['versions']['torch']}, {result['machine']}.",
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
    commands = ", ".join(f"`{call(result)}`" for result in results)
    return "\n".join([*lines, "", f"{commands}."])


def tagi_speed(*results: dict[str, Any]) -> str:
    """The table of TAGI's step costs, on a CPU and on a GPU."""
    lines = [
        "TAGI, timed in turn with SGD within one run, on one thread of a CPU with freed memory "
        "kept (`br.execution.keep_memory()`, for all alike); pytagi 0.2.1 on the same nets. "
        "ResNet-18 on an H200 in TF32, channels last, SGD and compiled TAGI as CUDA graphs.",
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
    commands = [f"`{call(one)}`, torch {one['versions']['torch']}" for one in results]
    return "\n".join([*lines, "", "; ".join(commands) + "."])


def variational(results: list[dict[str, Any]]) -> str:
    """The table of methods at the temperature that held-out training images chose."""
    held = results[0]["held_out"]
    lines = [
        "Posteriors by the ELBO's gradient on images, one seed; NLL, accuracy and calibration "
        "error on the test images, at the one of its temperatures that has the least NLL on "
        f"{held} held-out training images, and in brackets what Unlu & Aitchison (2021) report.",
        "",
        "| net | epochs | prediction | temperature | NLL | accuracy | ECE |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        for one in chosen(result["results"]):
            name, test = f"{one['method']}, {one['way']}", one["test"]
            papers = result["published"].get(name, (None, None, None))
            cells = [
                _in_brackets(f"{test['nll']:.3f}", papers[0]),
                _in_brackets(f"{test['accuracy']:.1f} %", papers[1]),
                _in_brackets(f"{test['ece']:.3f}", papers[2]),
            ]
            setting = [str(result["epochs"]), name, f"{one['temperature']:g}"]
            row = [result["title"], *setting, *cells]
            lines.append("| " + " | ".join(row) + " |")
    notes = dict.fromkeys(one["note"] for one in results if "note" in one)
    return "\n".join([*lines, "", *notes, calls(results)])


def tied(results: list[dict[str, Any]]) -> str:
    """The table of mean-field and k-tied posteriors."""
    lines = [
        "The k-tied Normal beside mean-field, means over seeds; predictions average "
        f"{results[0]['draws']} draws, ± is over the test data, in brackets what Swiatkowski et "
        "al. (2020) report (parameters in thousands); SNR is the median signal-to-noise ratio of "
        "the gradients in the scales, at the first step where it was measured.",
        "",
        "| net | posterior | −ELBO | NLL | accuracy | parameters | SNR |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        ratios: dict[str, str] = {}
        for method, step, median, *_ in ratio_summary(result):
            ratios.setdefault(method, f"{median:,.1f} (step {step})")
        for method, own in summary(result).items():
            papers = result["published"].get(method, (None,) * 4)
            row = [
                result["title"],
                method,
                _in_brackets(f"{own['negative_elbo']:.3f}", papers[0]),
                _in_brackets(f"{own['nll']:.3f} ± {own['nll_error']:.3f}", papers[1]),
                _in_brackets(f"{own['accuracy']:.2f} %", papers[2]),
                _in_brackets(f"{own['parameters']:,}", papers[3]),
                ratios.get(method, "–"),
            ]
            lines.append("| " + " | ".join(row) + " |")
    return "\n".join([*lines, "", *_truncations(results), calls(results)])


def _truncations(results: list[dict[str, Any]]) -> list[str]:
    """A sentence for each net on mean-field cut to a rank after training."""
    found = []
    for result in results:
        cut = truncated_summary(result)
        if cut:
            whole, shown = cut.pop("all"), [f"{v['nll']:.3f} (rank {k})" for k, v in cut.items()]
            found.append(
                f"{result['title']}: the standard deviations of mean-field cut to a low rank after "
                f"training have an NLL of {', '.join(shown)}, where all of them have "
                f"{whole['nll']:.3f}."
            )
    return [*found, ""] if found else []


def _in_brackets(own: str, paper: float | None) -> str:
    return own if paper is None else f"{own} ({paper:g})"


def kept(kind: str, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """The existing results of a kind, such as `tied_mnist.json`."""
    files = [RESULTS / f"{kind}_{name}.json" for name in names]
    return [json.loads(file.read_text()) for file in files if file.is_file()]


def image_results() -> list[dict[str, Any]]:
    """The kept results of `python -m benchmarks images`."""
    order = ("mnist_fnn", "mnist_cnn", "fashion_cnn", "cifar10")
    return kept("images", order)


def _beside(result: dict[str, Any], name: str, sign: float) -> str:
    """A mean and its error, bold where it is at least as good as the published figure."""
    mean, error = result[name]["mean"], result[name]["error"]
    decimals = 3 if abs(mean) >= 0.01 else 5
    shown = f"{mean:.{decimals}f} ± {error:.{decimals}f}"
    return f"**{shown}**" if sign * mean <= sign * result["published"][name] else shown


SPEED_PAGE = {
    "speed": (["speed.json", "speed_gpu.json"], speed),
    "tagi-speed": (["tagi_speed.json", "tagi_speed_gpu.json"], tagi_speed),
}
"""The tables of docs/speed.md: the results they are made from, and what makes them."""

UCI_PAGE = {"uci": (["uci_tagi.json"], uci)}
"""The table of docs/uci.md."""
