"""The whole page, and how it is written to the disk."""

from __future__ import annotations

import base64
import hashlib
import os
from importlib import resources
from pathlib import Path

from . import classification, regression, uncertainty
from .calibration import calibration
from .columns import order, primary
from .contents import Comparison, MethodResult, RegressionPredictions
from .guide import guide
from .leaderboard import headline, table
from .learning import learning
from .markup import count, duration, facts, selector, swatch
from .palette import look
from .scores import scores
from .svg import escape


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _header(c: Comparison) -> str:
    data = [
        ("Data", c.dataset),
        ("Task", c.task),
        ("Rows", f"{c.rows:,}"),
        ("Features", f"{c.features:,}"),
        ("Splits", str(c.splits)),
        ("Methods", str(len(c.methods))),
        ("Time", duration(c.seconds)),
    ]
    return (
        '<header><div class="top"><p class="eyebrow">bayesrule compare</p>'
        '<button type="button" id="theme" class="quiet" hidden>Dark mode</button></div>'
        f"<h1>{escape(c.title)}</h1>"
        f'<p class="lead">{escape(c.summary)}</p>{facts(data, "facts")}</header>'
    )


def _legend(c: Comparison) -> str:
    chips = "".join(
        f'<button type="button" class="chip" aria-pressed="true" data-toggles="{i}">'
        f"{swatch(look(i))}{escape(m.name)}</button>"
        for i, m in enumerate(c.methods)
        if m.error is None or m.predictions is not None or m.metrics
    )
    kind = "legend" if len(c.methods) <= 16 else "legend long"
    return (
        f'<div class="{kind}" role="group" aria-label="Methods shown in the pictures">'
        f'<div class="chips">{chips}</div>'
        '<button type="button" class="quiet" data-all="true">All</button>'
        '<button type="button" class="quiet" data-all="false">None</button></div>'
    )


def _figures(index: int, method: MethodResult, frames: _Frames) -> str:
    style, p, many = look(index), method.predictions, frames.methods
    if p is None:
        return ""
    cloud = uncertainty.scatter(frames.cloud, style, method.name, p, many)
    if isinstance(p, RegressionPredictions):
        return regression.intervals(frames.target, style, method.name, p, many) + cloud
    return (
        classification.reliability(style, method.name, p)
        + classification.histogram(style, method.name, p)
        + classification.confusion(style, method.name, p, many)
        + cloud
    )


class _Frames:
    """Axes that all methods share."""

    def __init__(self, c: Comparison) -> None:
        self.methods = sum(m.predictions is not None for m in c.methods)
        self.cloud = uncertainty.frame(c)
        self.target = regression.frame(c) if c.task == "regression" else (0.0, 1.0)


def _closer(c: Comparison) -> str:
    """One panel per method with predictions, best first, and a selector."""
    shown = [i for i in order(c, primary(c)) if c.methods[i].predictions is not None]
    if not shown:
        return '<p class="muted">No method made predictions.</p>'
    frames = _Frames(c)
    panels = "".join(_panel(index, c.methods[index], frames) for index in shown)
    choices = [(str(index), c.methods[index].name) for index in shown]
    return (
        f'<div class="picker">{selector("Method", choices, "closer")}'
        '<button type="button" class="quiet" data-step="-1" aria-label="Previous">←</button>'
        '<button type="button" class="quiet" data-step="1" aria-label="Next">→</button></div>'
        f'<div id="closer">{panels}</div>'
    )


def _panel(index: int, method: MethodResult, frames: _Frames) -> str:
    parts = facts([(k, v) for k, v in method.parts.items() if v], "facts small")
    return (
        f'<div class="panel" data-panel="{index}" id="method-{index}">'
        f'<h3 class="who">{swatch(look(index))}{escape(method.name)}</h3>{parts}'
        f'<div class="grid">{_figures(index, method, frames)}</div></div>'
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


def _section(name: str, title: str, intro: str, body: str) -> str:
    lead = f'<p class="intro">{intro}</p>' if intro else ""
    return f'<section id="{name}"><h2>{title}</h2>{lead}{body}</section>'


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
    body = (
        _section("leaderboard", "Leaderboard", headline(c), table(c) + caption)
        + f'<div class="compared">{_legend(c)}'
        + _section("quality", "Side by side", "", pictures)
        + _section("learning", "Learning", "", learning(c))
        + "</div>"
        + _section("closer-look", "A closer look", "One method at a time.", _closer(c))
        + _section("guide", "How to read this", "", guide(c))
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
    """Write the report to `path` in one go: readers see the old file or the new one, whole."""
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"Cannot write {target}: the folder {target.parent} does not exist. "
            "Create it, or give a path in a folder that does."
        )
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        temporary.write_text(render(comparison), encoding="utf-8", newline="\n")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target
