"""Mixtures, topics, factors and hidden Markov models beside scikit-learn and hmmlearn, by pass."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import metadata, util
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bayesrule.app.provenance import machine, versions
from bayesrule.graphical import EM, HMM, LDA, SVI, VB, FactorAnalysis, GaussianMixture
from benchmarks.data import imdb, tokenize
from benchmarks.data.timeseries import timeseries
from benchmarks.data.uci import uci

COMPONENTS, COLUMNS, TOPICS, STATES = 10, 10, 20, 4
WORDS, TOO_COMMON = 5000, 100
# The largest accepted ratio of our time for a pass to theirs.
LARGEST_RATIO = 2.0
# The largest accepted ratio of times for twice the data; 2 is in proportion.
LARGEST_GROWTH = 3.0
_MISSING, _ROUNDS = 0.05, 3

Fit = Callable[[int], Any]
Row = dict[str, Any]


def run(rows: int, documents: int, passes: int, progress: Callable[[str], None] = print) -> Row:
    """All comparisons, with at most `rows` for the mixture and `documents` for the topics."""
    results: list[Row] = []
    parts = (4, 2, 1)
    mixtures = (_mixture(rows // part, passes) for part in parts)
    series = (_states(part, passes) for part in parts)
    for found in chain(mixtures, _topics(documents, passes), [_factors()], series):
        results.append(found)
        progress(" ".join(f"{name} {_brief(value)}" for name, value in found.items()))
    return {
        "task": "graphical",
        "passes": passes,
        "results": results,
        "growth": {name: _growth(results, name) for name in ("mixture", "topics", "states")},
        "versions": {**versions(), **_others()},
        "machine": machine(),
    }


def good(result: Row) -> bool:
    """Whether passes are fast enough, fits good enough, and time is in proportion to the data."""
    rows = [one for one in result["results"] if "ratio" in one]
    quick = all(one["ratio"] <= LARGEST_RATIO for one in rows)
    likely = all(one["objective"] >= one["their_objective"] - one["margin"] for one in rows)
    return quick and likely and all(one <= LARGEST_GROWTH for one in result["growth"].values())


def _growth(results: list[Row], name: str) -> float:
    """The time for the largest data set relative to that for half of it."""
    seconds = [one["seconds"] for one in results if one["model"] == name]
    return round(seconds[-1] / seconds[-2], 2)


def _brief(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _others() -> dict[str, str]:
    names = ("scikit-learn", "scipy", "hmmlearn")
    return {name: metadata.version(name) for name in names if util.find_spec(_module(name))}


def _module(name: str) -> str:
    return {"scikit-learn": "sklearn"}.get(name, name)


def _per_pass(passes: int, rounds: int, *fits: Fit) -> list[tuple[float, Any]]:
    """Seconds of one pass of each, without the start of a fit, and the last fit.

    Rounds alternate. A pass is the difference of the shortest times, because other work on the
    machine only adds.
    """
    found = [[_timed(fit, passes) for fit in fits] for _ in range(rounds)]
    return [_shortest(own, passes) for own in zip(*found, strict=True)]


class _Timed(NamedTuple):
    """Seconds with one pass and with several, and the latter fit."""

    one: float
    more: float
    model: Any


def _timed(fit: Fit, passes: int) -> _Timed:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a few passes do not converge
        begun = time.perf_counter()
        fit(1)
        middle = time.perf_counter()
        model = fit(1 + passes)
        return _Timed(middle - begun, time.perf_counter() - middle, model)


def _shortest(rounds: Sequence[_Timed], passes: int) -> tuple[float, Any]:
    extra = min(own.more for own in rounds) - min(own.one for own in rounds)
    return extra / passes, rounds[-1].model


def _row(model: str, size: int, ours: float, theirs: float, **more: Any) -> Row:
    times = {"seconds": round(ours, 4), "their_seconds": round(theirs, 4)}
    return {"model": model, "size": size, **times, "ratio": round(ours / theirs, 3), **more}


def _mixture(num: int, passes: int) -> Row:
    """EM from the same responsibilities as scikit-learn's GaussianMixture."""
    from sklearn.mixture import GaussianMixture as Theirs

    rng = np.random.default_rng(0)
    centres = 3.0 * rng.normal(size=(COMPONENTS, COLUMNS))
    which = rng.integers(COMPONENTS, size=num)
    x = centres[which] + rng.normal(size=(num, COLUMNS))
    start = np.full((num, COMPONENTS), 0.05)
    start[np.arange(num), which] += 0.5
    start /= start.sum(1, keepdims=True)

    def ours(count: int) -> GaussianMixture:
        how = EM(passes=count, tol=0.0)
        return GaussianMixture(components=COMPONENTS, inference=how).fit(x, responsibilities=start)

    def theirs(count: int) -> Any:
        model = Theirs(COMPONENTS, max_iter=count, tol=0.0)
        model._initialize_parameters = lambda data, _, **__: model._initialize(data, start)
        return model.fit(x)

    (own, found), (other, beside) = _per_pass(passes, _ROUNDS, ours, theirs)
    assert found.report_ is not None
    reached = found.report_.objective[-1] / num
    scores = {"objective": reached, "their_objective": float(beside.lower_bound_), "margin": 1e-6}
    return _row("mixture", num, own, other, **scores)


def _topics(documents: int, passes: int) -> Iterator[Row]:
    """Variational Bayes and SVI, compared with LatentDirichletAllocation on film reviews."""
    from sklearn.decomposition import LatentDirichletAllocation as Theirs

    x = _corpus(documents)

    def ours(count: int, part: int = 1) -> LDA:
        some = x[: x.shape[0] // part]
        return LDA(topics=TOPICS, inference=VB(passes=count, tol=0.0)).fit(some)

    def batches(count: int) -> LDA:
        how = SVI(passes=count, tol=0.0, batch_size=512)
        return LDA(topics=TOPICS, inference=how).fit(x)

    def theirs(count: int) -> Any:
        return Theirs(TOPICS, max_iter=count, random_state=0).fit(x)

    def online(count: int) -> Any:
        how = {"learning_method": "online", "batch_size": 512, "total_samples": x.shape[0]}
        return Theirs(TOPICS, max_iter=count, random_state=0, **how).fit(x)

    # The largest last, directly before theirs: what is compared is timed close together.
    parts = (4, 2, 1)
    sizes = (partial(ours, part=part) for part in parts)
    *own, (their_seconds, beside) = _per_pass(passes, 2, *sizes, theirs)
    for part, (seconds, _) in zip(parts[:-1], own, strict=False):
        yield {"model": "topics", "size": x.shape[0] // part, "seconds": round(seconds, 4)}
    seconds, model = own[-1]
    yield _row("topics", x.shape[0], seconds, their_seconds, **_scores(model, beside, x))
    (seconds, model), (their_seconds, beside) = _per_pass(passes, 1, batches, online)
    yield _row("topics in batches", x.shape[0], seconds, their_seconds, **_scores(model, beside, x))


def _scores(model: LDA, beside: Any, x: Any) -> Row:
    """Both bounds in nats a word."""
    words = float(x.sum())
    own, other = model.score(x) / words, float(beside.score(x)) / words
    return {"objective": own, "their_objective": other, "margin": 0.0}


def _corpus(documents: int) -> Any:
    """Counts of frequent words, without the most frequent ones, in reviews in a random order."""
    from scipy import sparse  # type: ignore[import-untyped]

    tallies = [Counter(tokenize(text)) for text in imdb().train_texts]
    order = np.random.default_rng(0).permutation(len(tallies))[:documents]
    total: Counter[str] = Counter()
    for document in order:
        total.update(tallies[document])
    known = {w: i for i, (w, _) in enumerate(total.most_common(WORDS + TOO_COMMON)[TOO_COMMON:])}
    cells = [
        (row, known[word], count)
        for row, document in enumerate(order)
        for word, count in tallies[document].items()
        if word in known
    ]
    rows, words, counts = np.array(cells).T
    shape = len(order), len(known)
    return sparse.csr_matrix((counts.astype(float), (rows, words)), shape=shape)


def _factors(passes: int = 100) -> Row:
    """Three factors behind the nine columns of the protein set; theirs by its exact SVD."""
    from sklearn.decomposition import FactorAnalysis as Theirs

    x = np.asarray(uci("protein", 0).x_train, np.float64)
    x = (x - x.mean(0)) / x.std(0)

    def ours(count: int) -> FactorAnalysis:
        return FactorAnalysis(components=3, inference=EM(passes=count, tol=0.0)).fit(x)

    def theirs(count: int) -> Any:
        return Theirs(3, max_iter=count, tol=0.0, svd_method="lapack").fit(x)

    (own, found), (other, beside) = _per_pass(passes, _ROUNDS, ours, theirs)
    scores = {"objective": found.score(x), "their_objective": float(beside.score(x))}
    return _row("factors", len(x), own, other, **scores, margin=1e-3)


def _states(part: int, passes: int) -> Row:
    """EM for a hidden Markov model of hourly loads with gaps; hmmlearn's has no gaps."""
    values = timeseries("ETTh1").values
    values = values[: len(values) // part]
    values = (values - values.mean(0)) / values.std(0)
    holes = np.where(np.random.default_rng(0).random(values.shape) < _MISSING, np.nan, values)
    ((own, model),) = _per_pass(passes, _ROUNDS, lambda count: _own_states(holes, count))
    assert model.report_ is not None
    filled = model.impute(holes).numpy()[np.isnan(holes)]
    error = float(np.sqrt(np.mean((filled - values[np.isnan(holes)]) ** 2)))
    row = {"model": "states", "size": len(values), "seconds": round(own, 4), "fill_error": error}
    return {**row, **(_beside_hmmlearn(values, passes) if util.find_spec("hmmlearn") else {})}


def _own_states(x: NDArray[np.float64], count: int) -> HMM:
    return HMM(states=STATES, inference=EM(passes=count, tol=0.0)).fit(x)


def _beside_hmmlearn(x: NDArray[np.float64], passes: int) -> Row:
    """Both without missing numbers, from the same parameters."""
    from hmmlearn.hmm import GaussianHMM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = _own_states(x, 1)

    def theirs(count: int) -> Any:
        # The first pass was ours, and set all parameters.
        options = {"n_iter": count - 1, "tol": -np.inf, "init_params": "", "covars_prior": 0.0}
        model = GaussianHMM(STATES, "full", **options)
        model.startprob_, model.transmat_ = first.startprob_.numpy(), first.transmat_.numpy()
        model.means_, model.covars_ = first.means_.numpy(), first.covars_.numpy()
        return model.fit(x)

    def ours(count: int) -> HMM:
        return _own_states(x, count)

    (own, model), (other, beside) = _per_pass(passes, _ROUNDS, ours, theirs)
    return {
        "whole_seconds": round(own, 4),
        "their_seconds": round(other, 4),
        "ratio": round(own / other, 3),
        "objective": model.score(x) / len(x),
        "their_objective": float(beside.score(x)) / len(x),
        "margin": 1e-4,
    }
