"""The table of methods: one row each, one column per metric, baselines marked as such."""

from __future__ import annotations

import math

from .columns import MISSING, Metric, columns, digits_of, order, primary, show, show_error
from .contents import Comparison, MethodResult
from .markup import swatch
from .svg import escape, look

BASELINE = ' <span class="tag">baseline</span>'


def best_text(comparison: Comparison, metric: Metric) -> str:
    """The best value of a column as displayed; empty where nothing can be called best."""
    if metric.direction == "unknown":
        return ""
    means = [m.statistic(metric.key).mean for m in comparison.methods if m.error is None]
    finite = [v for v in means if math.isfinite(v)]
    # One method alone is not called best.
    if len(finite) < 2:
        return ""
    return show(min(finite, key=metric.badness), metric, digits_of(metric, comparison.methods))


def _cell(comparison: Comparison, metric: Metric, method: MethodResult) -> str:
    s = method.statistic(metric.key)
    digits = digits_of(metric, comparison.methods)
    text = show(s.mean, metric, digits)
    if text == MISSING:
        return f'<td data-value="">{MISSING}</td>'
    best = method.error is None and text == best_text(comparison, metric)
    error = f'<small class="sem">± {show_error(s.sem, metric, digits)}</small>'
    error = error if math.isfinite(s.sem) else ""
    mark = '<span class="unseen"> (best)</span>' if best else ""
    value = metric.sort_key(s.mean)
    kind = ' class="best"' if best else ""
    return f'<td{kind} data-value="{value!r}"><span>{text}</span>{mark}{error}</td>'


def _error(text: str) -> str:
    """The error's last line, which says what happened; a click unfolds the whole text."""
    lines = [line for line in text.strip().splitlines() if line.strip()] or ["unknown error"]
    last, badge = escape(lines[-1].strip()), '<span class="badge">failed</span>'
    if len(lines) == 1:
        return f'<p class="error">{badge} {last}</p>'
    return (
        f'<details class="error"><summary>{badge} {last}</summary>'
        f"<pre>{escape(text.strip())}</pre></details>"
    )


def _row(comparison: Comparison, shown: list[Metric], index: int) -> str:
    method = comparison.methods[index]
    # Hard spaces: a line may break between parts, not inside one.
    made = " · ".join(escape(part).replace(" ", "\u00a0") for part in method.parts.values() if part)
    name = f"<b>{escape(method.name)}</b>"
    if method.predictions is not None:
        name = f'<a href="#method-{index}">{name}</a>'
    mark = BASELINE if method.baseline else ""
    head = f'{swatch(look(index))}{name}{mark}<small class="parts">{made}</small>'
    failed = _error(method.error) if method.error is not None else ""
    if failed and not method.metrics:
        cells, below = f'<td class="wide" colspan="{len(shown)}">{failed}</td>', ""
    else:
        cells, below = "".join(_cell(comparison, metric, method) for metric in shown), failed
    kind = ' class="failed"' if failed else ""
    sort = escape(method.name.casefold())
    return f'<tr{kind}><th scope="row" data-value="{sort}">{head}{below}</th>{cells}</tr>'


def _header(metric: Metric, ordered_by: Metric) -> str:
    first = "descending" if metric.direction == "higher" else "ascending"
    now = first if metric.key == ordered_by.key else "none"
    hint = f"<small>{escape(metric.hint)}</small>" if metric.hint else ""
    return (
        f'<th scope="col" aria-sort="{now}" data-first="{first}">'
        f'<button type="button" title="{escape(metric.explanation)}">'
        f'<span class="name">{escape(metric.label)}</span>{hint}</button></th>'
    )


def table(comparison: Comparison) -> str:
    """The leaderboard, ordered by likelihood; headers sort it by a click or the keyboard."""
    shown, by = columns(comparison), primary(comparison)
    rows = "".join(_row(comparison, shown, index) for index in order(comparison, by))
    heads = "".join(_header(metric, by) for metric in shown)
    method = (
        '<th scope="col" aria-sort="none" data-first="ascending" data-kind="text">'
        '<button type="button"><span class="name">Method</span></button></th>'
    )
    return (
        '<div class="scroll card" tabindex="0" role="region" aria-label="Leaderboard">'
        f'<table id="leaderboard-table"><thead><tr>{method}{heads}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )
