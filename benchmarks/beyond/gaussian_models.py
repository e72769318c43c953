"""Gaussian graphical models compared with other libraries, on the same data in the same run.

`rows(splits)` is everything: one row for each model and set. `objective` is the mean log-likelihood
of held-out rows, larger is better; `seconds` are those of a fit, or of a pass where both count
theirs, and then there is a `ratio`. `good(rows)` is whether ours are at least as good.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

import bayesrule as br
from bayesrule.app.provenance import machine, versions
from bayesrule.graphical import RBF, Kalman, LinearRegression, LogisticRegression, Season, Trend
from bayesrule.graphical._filtering import Chain, Smoothed, filtered, smoothed
from bayesrule.graphical._process import Process
from benchmarks.data.timeseries import timeseries
from benchmarks.data.uci import uci

Row = dict[str, Any]
Array = NDArray[np.float64]
SETS = ("yacht", "boston")
MARGIN = 0.01
"""How much lower a held-out log-likelihood may be, in nats a row: optima of a model differ."""
STARTS = 5
"""How many starts both libraries get: the evidence has several maxima."""
ROUNDS = 9
LARGEST_RATIO = 2.0
"""The largest accepted ratio of our time for a pass to theirs."""
AHEAD = 0.2
"""The share of a series at its end that is held out."""
WEEKS = 365.2425 / 7.0


def run(splits: int, progress: Callable[[str], None] = print) -> Row:
    """All rows, with versions and machine."""
    others = ("scikit-learn", "statsmodels")
    found = {name: _version(name) for name in others}
    return {
        "task": "gaussians",
        "splits": splits,
        "results": rows(splits, progress),
        "versions": {**versions(), **{name: v for name, v in found.items() if v}},
        "machine": machine(),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def rows(splits: int = 3, progress: Callable[[str], None] = print) -> list[Row]:
    """All models on all sets."""
    found: list[Row] = []
    _process("yacht", 0)  # what is loaded once is not timed
    for name in SETS:
        for split in range(splits):
            found += [_linear(name, split), _process(name, split)]
            progress(f"{name}, split {split}: {_said(found[-2])}; {_said(found[-1])}")
    for split in range(splits):
        found += [_logistic(split), _answers(split)]
        progress(f"answers, split {split}: {_said(found[-2])}; {_said(found[-1])}")
    found.append(_series("mauna_loa_co2_weekly"))
    progress(f"series: {_said(found[-1])}")
    return found


def good(found: list[Row]) -> bool:
    """Whether passes are fast enough, and mean objectives within the margin of the peers'."""
    if any(one.get("ratio", 0.0) > LARGEST_RATIO for one in found):
        return False
    pairs = {(one["model"], one["set"]) for one in found if "their_objective" in one}
    for model, name in pairs:
        alike = [one for one in found if (one["model"], one["set"]) == (model, name)]
        gains = [one["objective"] - one["their_objective"] + one["margin"] for one in alike]
        if float(np.mean(gains)) < 0.0:
            return False
    return True


def _row(model: str, name: str, split: int, size: int, **figures: Any) -> Row:
    given = {"model": model, "set": name, "split": split, "size": size, "margin": MARGIN}
    return {**given, **figures}


def _said(row: Row) -> str:
    other = row.get("their_objective")
    beside = "no peer installed" if other is None else f"{row['peer']} {other:.3f}"
    return f"{row['model']} {row['objective']:.3f} ({beside})"


def _timed(action: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.perf_counter()
    return action(), time.perf_counter() - begun


def _normal(y: Array, mean: Array, std: Array) -> float:
    """The mean log-density of independent Gaussians."""
    return float(np.mean(-0.5 * ((y - mean) / std) ** 2 - np.log(std * np.sqrt(2.0 * np.pi))))


def _regression(name: str, split: int) -> tuple[Array, Array, Array, Array]:
    """Inputs and targets standardised by the training rows."""
    data = uci(name, split)
    x, y = np.asarray(data.x_train, np.float64), np.asarray(data.y_train, np.float64).reshape(-1)
    new, truth = np.asarray(data.x_test, np.float64), np.asarray(data.y_test, np.float64)
    scale = np.where(x.std(0) > 0, x.std(0), 1.0)
    centre, spread = y.mean(), y.std()
    targets = (y - centre) / spread, (truth.reshape(-1) - centre) / spread
    return (x - x.mean(0)) / scale, targets[0], (new - x.mean(0)) / scale, targets[1]


def _linear(name: str, split: int) -> Row:
    from sklearn.linear_model import BayesianRidge

    x, y, new, truth = _regression(name, split)
    ours, seconds = _timed(lambda: LinearRegression().fit(x, y))
    theirs, others = _timed(lambda: BayesianRidge().fit(x, y))
    peer = _normal(truth, *theirs.predict(new, return_std=True))
    return _row(
        "LinearRegression", name, split, len(x), objective=ours.score(new, truth),
        their_objective=peer, seconds=seconds, their_seconds=others, peer="BayesianRidge",
    )  # fmt: skip


def _process(name: str, split: int) -> Row:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF as Theirs
    from sklearn.gaussian_process.kernels import ConstantKernel, WhiteKernel

    x, y, new, truth = _regression(name, split)
    lengths = np.full(x.shape[1], x.shape[1] ** 0.5)
    kernel = ConstantKernel(1.0, (1e-4, 1e4)) * Theirs(lengths, (1e-4, 1e5)) + WhiteKernel(0.09)
    theirs = GaussianProcessRegressor(kernel, n_restarts_optimizer=STARTS - 1, random_state=split)
    with _counted(GaussianProcessRegressor, "log_marginal_likelihood") as passes:
        _, others = _timed(lambda: _quiet(lambda: theirs.fit(x, y)))
    peer = _normal(truth, *theirs.predict(new, return_std=True))
    once, alone = _timed(lambda: br.graphical.GP(mean=0.0).fit(x, y))
    assert once.report_ is not None
    own, other = alone / once.report_.passes, others / len(passes)
    ours, seconds = _timed(lambda: br.graphical.GP(mean=0.0, starts=STARTS).fit(x, y))
    return _row(
        "GP", name, split, len(x), objective=ours.score(new, truth), their_objective=peer,
        seconds=own, their_seconds=other, ratio=own / other, peer="GaussianProcessRegressor",
        evidence=ours.log_evidence, their_evidence=float(theirs.log_marginal_likelihood_value_),
        fit_seconds=seconds, their_fit_seconds=others,
    )  # fmt: skip


def _quiet(action: Callable[[], Any]) -> Any:
    """Silences warnings about parameters at their bounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return action()


def _answered(split: int) -> tuple[Array, Array, Array, Array]:
    """Breast tumours, malignant or not: 300 rows to learn from, 30 columns standardised."""
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(split).permutation(len(x))
    known, new = order[:300], order[300:]
    centre, scale = x[known].mean(0), x[known].std(0)
    x = (x - centre) / scale
    return x[known], y[known].astype(np.float64), x[new], y[new].astype(np.float64)


def _logistic(split: int) -> Row:
    from sklearn.linear_model import LogisticRegression as Theirs

    x, y, new, truth = _answered(split)
    ours, seconds = _timed(lambda: LogisticRegression().fit(x, y))
    theirs, others = _timed(lambda: Theirs(C=1.0 / ours.prior_precision_, max_iter=5000).fit(x, y))
    peer = _logs(theirs.predict_proba(new), truth)
    return _row(
        "LogisticRegression", "breast_cancer", split, len(x), objective=ours.score(new, truth),
        their_objective=peer, seconds=seconds, their_seconds=others,
        peer="LogisticRegression of the same prior",
    )  # fmt: skip


def _answers(split: int) -> Row:
    from sklearn.gaussian_process import GaussianProcessClassifier, _gpc
    from sklearn.gaussian_process.kernels import RBF as Theirs
    from sklearn.gaussian_process.kernels import ConstantKernel

    x, y, new, truth = _answered(split)
    length = x.shape[1] ** 0.5
    kernel = ConstantKernel(1.0) * Theirs(length)
    once = GaussianProcessClassifier(kernel)
    inner = _gpc._BinaryGaussianProcessClassifierLaplace
    with _counted(inner, "log_marginal_likelihood") as theirs:
        _, others = _timed(lambda: _quiet(lambda: once.fit(x, y)))
    model = br.graphical.GP(kernel=RBF(1.0, length), likelihood=br.BernoulliLikelihood(), mean=0.0)
    # What the first fit of a process loads is no part of a pass.
    model.fit(x[:50], y[:50])
    # Each evaluation of the bound takes its slope once.
    with _counted(Process, "slope") as own:
        ours, seconds = _timed(lambda: model.fit(x, y))
    a_pass, their_pass = seconds / len(own), others / len(theirs)
    peer = _logs(once.predict_proba(new), truth)
    return _row(
        "GP of answers", "breast_cancer", split, len(x), objective=ours.score(new, truth),
        their_objective=peer, seconds=a_pass, their_seconds=their_pass, ratio=a_pass / their_pass,
        peer="GaussianProcessClassifier", fit_seconds=seconds, their_fit_seconds=others,
    )  # fmt: skip


@contextmanager
def _counted(owner: type, name: str) -> Iterator[list[None]]:
    """A list that has an item for each call of a method."""
    calls: list[None] = []
    method = getattr(owner, name)

    def counting(*given: Any, **more: Any) -> Any:
        calls.append(None)
        return method(*given, **more)

    with patch.object(owner, name, counting):
        yield calls


def _logs(probs: Array, truth: Array) -> float:
    chosen = probs[np.arange(len(truth)), truth.astype(int)]
    return float(np.log(chosen.clip(1e-300)).mean())


def _series(name: str) -> Row:
    """A trend and a yearly season: forecasts, and filled gaps of 1 and of 26 steps.

    The peer gets our parameters, so that both do the same computation.
    """
    y = timeseries(name).values[:, 0]
    cut = int(len(y) * (1.0 - AHEAD))
    known, ahead = y[:cut], y[cut:]
    ours, seconds = _timed(lambda: _model().fit(known))

    def both() -> Smoothed:
        return smoothed(ours.chain_, filtered(ours.chain_, y[:, None]))

    assert ours.report_ is not None
    return _row(
        "Kalman", name, 0, len(y), objective=ours.score(ahead),
        **_peer(ours.chain_, y[:, None], cut, both), fit_seconds=seconds,
        passes=ours.report_.passes, converged=ours.report_.converged,
        missing=int(np.isnan(y).sum()), gaps=[_gaps(known, length) for length in (1, 26)],
    )  # fmt: skip


def _model() -> Kalman:
    return Kalman(parts=(Trend(), Season(period=WEEKS, harmonics=2)))


def _gaps(y: Array, length: int) -> Row:
    """Hides about a tenth of the values in gaps of one length and fills them in; errors: RMSE."""
    starts = np.random.default_rng(0).choice(len(y) - length, len(y) // 10 // length, replace=False)
    where = np.unique(starts[:, None] + np.arange(length))
    where = where[~np.isnan(y[where])]
    truth, left = y[where], y.copy()
    left[where] = np.nan
    filled, at = _model().fit(left).smooth(), torch.as_tensor(where)
    low, high = (edge[at].numpy() for edge in filled.interval(0.9))
    return {
        "length": length,
        "error": _rms(filled.mean[at].numpy() - truth),
        "error_of_lines": _rms(_line(left, where) - truth),
        "coverage_of_90_%": float(np.mean((low < truth) & (truth < high))),
    }


def _rms(errors: Array) -> float:
    return float(np.sqrt(np.mean(errors**2)))


def _line(y: Array, where: NDArray[np.intp]) -> Array:
    """Gaps filled by straight lines."""
    known = np.flatnonzero(~np.isnan(y))
    return np.asarray(np.interp(where, known, y[known]))


def _peer(chain: Chain, y: Array, cut: int, ours: Callable[[], Any]) -> Row:
    """Seconds of filter and smoother, and the mean log-density after `cut`, here and there."""
    if importlib.util.find_spec("statsmodels") is None:
        return {"seconds": _quickest(ours)[0]}
    module = importlib.import_module("statsmodels.tsa.statespace.kalman_smoother")
    other = module.KalmanSmoother(1, chain.states)
    other.bind(y.copy())
    other["transition"], other["state_cov"] = chain.transition, chain.process
    other["design"], other["obs_cov"] = chain.observation, chain.noise
    other["selection"] = np.eye(chain.states)
    other.initialize_known(chain.first_mean, chain.first_covariance)
    own, seconds = _quickest(ours, other.smooth)
    logs = float(other.smooth().llf_obs[cut:][~np.isnan(y[cut:, 0])].mean())
    return {
        "their_objective": logs,
        "seconds": own,
        "their_seconds": seconds,
        "ratio": own / seconds,
        "peer": "statsmodels",
    }


def _quickest(*actions: Callable[[], Any]) -> list[float]:
    """The shortest of several times of each, measured in turn, because the machine is shared."""
    rounds = [[_timed(action)[1] for action in actions] for _ in range(ROUNDS)]
    return [min(times) for times in zip(*rounds, strict=True)]
