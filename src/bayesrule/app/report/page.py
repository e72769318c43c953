"""The whole page, the guide to reading it, and writing it to disk."""

from __future__ import annotations

import base64
import hashlib
import os
from importlib import resources
from pathlib import Path

from .closer import closer
from .columns import columns
from .contents import Comparison
from .leaderboard import table
from .markup import count, duration, facts, swatch
from .recommendation import recommend
from .side_by_side import calibration, highlighted, learning, scores
from .svg import escape, look

_COMMON = (
    ("Two kinds of uncertainty",
     "Epistemic uncertainty is what the model does not know because it has seen too little data: "
     "it shrinks with more data. Aleatoric uncertainty is noise in the data itself: it stays. "
     "A useful method has high epistemic uncertainty where it is wrong."),
    ("Is the lead real?",
     "Each method saw the same splits into training and test rows. The number after ± is the "
     "standard error over the splits. Differences smaller than about twice that may be chance."),
    ("How were the rows used?",
     "Scores are means over all splits. Pictures of single rows, calibration and confusion come "
     "from the test rows of the first split."),
)  # fmt: skip

_REGRESSION = (
    ("Coverage",
     "If a method says “90 % interval”, nine true values in ten should lie inside. The coverage "
     "picture shows this for every level. On the dashed line the intervals are right."),
    ("Which number matters?",
     "RMSE looks at the predicted mean only. The log-likelihood and the CRPS judge the whole "
     "prediction: being confident and wrong costs most. For decisions under risk, trust these "
     "more."),
)  # fmt: skip

_CLASSIFICATION = (
    ("Reliability",
     "Of all the rows where a method is 80 % sure, four in five should be right. On the dashed "
     "line they are. Below it the method is overconfident."),
    ("Which number matters?",
     "Accuracy looks at the most probable class only. The negative log-likelihood (NLL) and the "
     "Brier score judge the probabilities: being confident and wrong costs most."),
)  # fmt: skip


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _header(c: Comparison) -> str:
    data = [
        ("Data", c.dataset),
        ("Task", c.task),
        ("Rows", f"{c.rows:,}"),
        ("Features", f"{c.features:,}"),
        ("Splits", str(c.splits)),
        ("Methods", str(sum(not m.baseline for m in c.methods))),
        ("Baselines", str(sum(m.baseline for m in c.methods))),
        ("Whole comparison", duration(c.seconds)),
    ]
    return (
        '<header><div class="top"><p class="eyebrow">bayesrule compare</p>'
        '<button type="button" id="theme" class="quiet" hidden>Dark mode</button></div>'
        f"<h1>{escape(c.title)}</h1>{_recommendation(c)}"
        f'<p class="lead">{escape(c.summary)}</p>{facts(data, "facts")}</header>'
    )


def _recommendation(c: Comparison) -> str:
    """The recommended method, in the first sentence, and how clear its lead is."""
    first, *rest = recommend(c).sentences
    more = "".join(f"<p>{escape(sentence)}</p>" for sentence in rest)
    return (
        '<section id="recommendation" class="card"><h2>Recommendation</h2>'
        f'<p class="take">{escape(first)}</p>{more}</section>'
    )


def _legend(c: Comparison) -> str:
    shown = highlighted(c)
    chips = "".join(
        f'<button type="button" class="chip" aria-pressed="{str(i in shown).lower()}" '
        f'data-toggles="{i}">'
        f"{swatch(look(i))}{escape(m.name)}</button>"
        for i, m in enumerate(c.methods)
        if m.error is None or m.predictions is not None or m.metrics
    )
    kind = "legend" if len(c.methods) <= 16 else "legend long"
    return (
        f'<div class="{kind}" role="group" aria-label="Methods that have a colour in the pictures">'
        f'<div class="chips">{chips}</div>'
        '<button type="button" class="quiet" data-all="true">All</button>'
        '<button type="button" class="quiet" data-all="false">None</button></div>'
    )


def _guide(c: Comparison) -> str:
    """Questions a reader has, then every metric of the table in one sentence."""
    questions = _REGRESSION if c.task == "regression" else _CLASSIFICATION
    blocks = "".join(f"<div><h3>{q}</h3><p>{a}</p></div>" for q, a in (*questions, *_COMMON))
    metrics = "".join(
        f"<div><dt>{escape(m.label)}</dt><dd>{escape(m.explanation)}"
        f"{' ' + escape(m.hint.capitalize()) + '.' if m.hint else ''}</dd></div>"
        for m in columns(c)
        if m.explanation
    )
    return (
        f'<div class="guide">{blocks}</div><h3>The metrics</h3><dl class="metrics">{metrics}</dl>'
    )


def _footer(c: Comparison) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in c.notes)
    versions = ", ".join(f"{k} {v}" for k, v in c.versions.items())
    origin = [("Seed", str(c.seed)), ("Versions", versions), ("Machine", c.machine)]
    listed = f"<h3>Notes</h3><ul>{notes}</ul>" if notes else ""
    return (
        f"<footer><h2>How this was made</h2>{listed}"
        f"<pre><code>{escape(c.command)}</code></pre>{facts(origin, 'provenance')}</footer>"
    )


def _section(name: str, title: str, body: str) -> str:
    return f'<section id="{name}"><h2>{title}</h2>{body}</section>'


def render(c: Comparison) -> str:
    """The page as text: one file without any outside reference."""
    script, style = _asset("script.js"), _asset("style.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Only our own script may run and nothing may be fetched, whatever the data contains.
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src 'sha256-{digest}'"
    )
    error = "± is the standard error over the splits" if c.splits > 1 else ""
    best = '<span class="best-sample">best in column</span>' if len(c.methods) > 1 else ""
    parts = [count(c.splits, "split"), error, best]
    caption = f'<p class="muted">{"; ".join(p for p in parts if p)}. Click a header to sort.</p>'
    pictures = f'<div class="grid">{calibration(c)}{scores(c)}</div>'
    intro = '<p class="intro">One method at a time.</p>'
    body = (
        _section("leaderboard", "Leaderboard", table(c) + caption)
        + f'<div class="compared">{_legend(c)}'
        + _section("quality", "Side by side", pictures)
        + _section("learning", "Learning", learning(c))
        + "</div>"
        + _section("closer-look", "A closer look", intro + closer(c))
        + _section("guide", "How to read this", _guide(c))
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{escape(c.title)}</title><style>{style}</style></head>"
        f"<body>{_header(c)}<main>{body}</main>{_footer(c)}"
        f"<script>{script}</script></body></html>\n"
    )


def write_report(comparison: Comparison, path: str | os.PathLike[str]) -> Path:
    """Write the report to `path` atomically: readers see the old file or the new one, whole."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"Cannot write {target}: the folder {target.parent} does not exist. "
            "Create it, or give a path in a folder that does."
        )
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        # File names need not be text in UTF-8.
        temporary.write_bytes(render(comparison).encode("utf-8", "backslashreplace"))
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target
