"""One recommendation in words: what to take, how clear its lead is, how good baselines are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from .columns import Metric, digits_of, order, primary, show
from .contents import ClassificationPredictions, Comparison, MethodResult, Statistic
from .markup import count, duration


@dataclass(frozen=True)
class Recommendation:
    """The method or baseline to `take`, None where none finished; `sentences` say why."""

    take: str | None
    sentences: tuple[str, ...]

    @property
    def text(self) -> str:
        """All of it as one paragraph."""
        return " ".join(self.sentences)


def recommend(c: Comparison) -> Recommendation:
    """Recommends the fastest of the methods tied with the best, unless a baseline is better."""
    metric = primary(c)
    ranked = [c.methods[i] for i in order(c, metric)]
    scored = [m for m in ranked if not m.error and math.isfinite(m.statistic(metric.key).mean)]
    methods = [m for m in scored if not m.baseline]
    rivals = [m for m in scored if m.baseline]
    words = _Words(metric, c.methods)
    if not methods:
        return _without_methods(words, rivals)
    chosen = _cheapest_of_the_best(metric, methods)
    better = bool(rivals) and _lead(metric, rivals[0], chosen).sure
    why, sure = _why(words, methods, chosen), _how_sure(words, methods, chosen)
    verdict = [_verdict(words, chosen, rivals)] if rivals else []
    if better:
        sentences = (*verdict, f"Of the methods here, {why[0].lower()}{why[1:]}", sure)
    else:
        sentences = (why, sure, *verdict)
    take = rivals[0] if better else chosen
    return Recommendation(take.name, (*sentences, *_warnings(methods, chosen)))


def _without_methods(words: _Words, rivals: Sequence[MethodResult]) -> Recommendation:
    first = "No method finished with a score."
    if not rivals:
        return Recommendation(None, (first,))
    best = rivals[0]
    second = f"Take scikit-learn's {best.name}, a baseline, with {words.label} {words.score(best)}."
    return Recommendation(best.name, (first, second))


@dataclass(frozen=True)
class Lead:
    """By how much one method is better than another, and the standard error of that gap.

    Methods share the splits, so their scores are compared split by split where those are known.
    """

    gap: float
    error: float

    @property
    def sure(self) -> bool:
        """Whether the gap exceeds two standard errors; with one split, whether there is a gap."""
        return self.gap > 2 * self.error if math.isfinite(self.error) else self.gap > 0

    @property
    def unsure(self) -> bool:
        """Whether the difference, either way, is less than two standard errors."""
        return abs(self.gap) < 2 * self.error


def lead(metric: Metric, one: Statistic, other: Statistic) -> Lead:
    """The lead of one score over another."""
    sign = -1.0 if metric.direction == "higher" else 1.0
    if len(one.values) == len(other.values) > 1:
        paired = Statistic.of((sign * np.subtract(other.values, one.values)).tolist())
        return Lead(paired.mean, paired.sem)
    return Lead(sign * (other.mean - one.mean), math.hypot(one.sem, other.sem))


def _lead(metric: Metric, one: MethodResult, other: MethodResult) -> Lead:
    return lead(metric, one.statistic(metric.key), other.statistic(metric.key))


def _cheapest_of_the_best(metric: Metric, ranked: Sequence[MethodResult]) -> MethodResult:
    """The method that trains fastest among those tied with the first."""
    best = ranked[0]
    tied = [m for m in ranked[1:] if _tied(metric, best, m)]
    return min([best, *tied], key=lambda m: m.statistic("seconds").mean)


def _tied(metric: Metric, best: MethodResult, other: MethodResult) -> bool:
    """Whether `other` is behind by no more than one standard error of the difference.

    One split on which it fails badly makes that error large. So it must not be behind by more than
    the scores of the best vary between splits, either.
    """
    behind = _lead(metric, best, other)
    varies = float(np.std(best.statistic(metric.key).values or [0.0]))
    return behind.gap <= min(behind.error, varies) if math.isfinite(behind.error) else False


@dataclass(frozen=True)
class _Words:
    """How scores of one metric are written."""

    metric: Metric
    methods: Sequence[MethodResult]

    @property
    def label(self) -> str:
        return self.metric.label if self.metric.label.isupper() else self.metric.label.lower()

    def score(self, method: MethodResult) -> str:
        """The mean, with as many digits as in the table."""
        digits = digits_of(self.metric, self.methods)
        return show(method.statistic(self.metric.key).mean, self.metric, digits)


def _why(words: _Words, methods: Sequence[MethodResult], chosen: MethodResult) -> str:
    best = methods[0]
    if len(methods) == 1:
        return (
            f"Take {chosen.name}: with {words.label} {words.score(chosen)} it is the only method."
        )
    if chosen is best:
        return (
            f"Take {chosen.name}: its {words.label} {words.score(chosen)} is the best of "
            f"{len(methods)} methods."
        )
    seconds, of_best = (duration(m.statistic("seconds").mean) for m in (chosen, best))
    return (
        f"Take {chosen.name}: its {words.label} {words.score(chosen)} cannot be told from that of "
        f"{best.name}, {words.score(best)}, the best of {len(methods)} methods, and it trains in "
        f"{seconds} instead of {of_best}."
    )


def _how_sure(words: _Words, methods: Sequence[MethodResult], chosen: MethodResult) -> str:
    values = chosen.statistic(words.metric.key).values
    if not math.isfinite(chosen.statistic(words.metric.key).sem):
        return "One split cannot show how much of this is chance: use more splits."
    splits = f"The {len(values)} splits are" if values else "The splits are"
    near = [m.name for m in methods if m is not chosen and _lead(words.metric, chosen, m).unsure]
    if not near:
        return f"{splits} sure of it: all others are behind by more than two standard errors."
    return (
        f"{splits} not sure of it: the difference to {_listed(near)} is within two standard errors "
        "and may be chance."
    )


def _verdict(words: _Words, chosen: MethodResult, rivals: Sequence[MethodResult]) -> str:
    """How the baselines, the best first, compare with the chosen method."""
    metric, best = words.metric, rivals[0]
    score = f"{words.label} {words.score(best)} against {words.score(chosen)} of {chosen.name}"
    if _lead(metric, best, chosen).sure:
        return (
            f"A baseline is better than every method here: take scikit-learn's {best.name}, with "
            f"{score}."
        )
    equal = [
        m.name for m in rivals if _lead(metric, m, chosen).gap >= 0 or _tied(metric, chosen, m)
    ]
    if equal:
        who = (
            "A baseline of scikit-learn is" if len(equal) == 1 else "Baselines of scikit-learn are"
        )
        return f"{who} as good: {_listed(equal)} ({score})."
    near = [m.name for m in rivals if _lead(metric, m, chosen).unsure]
    if near:
        return f"Of scikit-learn's baselines, {_listed(near)} may be as good ({score})."
    return f"No baseline is as good; the best, scikit-learn's {best.name}, has {score}."


def _listed(names: Sequence[str]) -> str:
    """A few names, and how many more there are.

    >>> _listed(["a"]), _listed(["a", "b"]), _listed(["a", "b", "c", "d", "e"])
    ('a', 'a and b', 'a, b, c and 2 others')
    """
    first = list(names[:3])
    last = count(len(names) - 3, "other") if names[3:] else first.pop()
    return f"{', '.join(first)} and {last}" if first else last


def _warnings(methods: Sequence[MethodResult], chosen: MethodResult) -> Iterator[str]:
    """Warns of methods that predict one class for all rows."""
    blind = [m for m in methods if _only_class(m) is not None]
    if not blind or (len(blind) < len(methods) and chosen not in blind):
        return
    classes = {_only_class(m) for m in blind}
    who = "every method" if len(blind) == len(methods) else chosen.name
    what = f"the class '{classes.pop()}'" if len(classes) == 1 else "one class only"
    yield (
        f"Warning: {who} predicts {what} for all test rows of the first split. Accuracy says "
        "nothing then; look at balanced accuracy, AUROC and average precision."
    )


def _only_class(method: MethodResult) -> str | None:
    """The class that a method predicts for all rows; None where it predicts several."""
    predictions = method.predictions
    if not isinstance(predictions, ClassificationPredictions) or not len(predictions.y):
        return None
    predicted = np.unique(predictions.probabilities.argmax(axis=1))
    return predictions.classes[predicted[0]] if len(predicted) == 1 else None
