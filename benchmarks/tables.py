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
    result = json.loads((RESULTS / "speed.json").read_text())
    readme.write_text(replace_between(readme.read_text(), "speed", speed(result)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
