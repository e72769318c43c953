"""Dropout as a posterior, compared with the same net without it, on a UCI set and Fashion-MNIST."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import bayesrule as br
from bayesrule.app.provenance import machine, versions
from bayesrule.likelihoods import Likelihood
from bayesrule.predicting import metrics
from bayesrule.training.models import mlp
from benchmarks.data import fashion_mnist
from benchmarks.data.uci import uci
from benchmarks.trials import loaded

IMAGES = "fashion_mnist"
LEVELS = torch.arange(1, 20, dtype=torch.float64) / 20.0
METHODS = ("map", "dropout")


@dataclass(frozen=True)
class Kind:
    """How both methods train on one kind of set: hidden layers, epochs, batches, most examples."""

    hidden: tuple[int, ...]
    epochs: int
    batch_size: int
    likelihood: Callable[[], Likelihood]
    most: int | None = None


TABLE = Kind((50, 50), 400, 32, br.GaussianLikelihood)
PICTURES = Kind((256, 256), 20, 100, br.CategoricalLikelihood, most=10_000)


@dataclass(frozen=True)
class Data:
    """Training and test data; targets are divided by their standard deviation `scale`."""

    x: Tensor
    y: Tensor
    asked: Tensor
    answers: Tensor
    scale: float = 1.0

    def held_out(self) -> Data:
        """The last fifth of the training rows, in place of the test rows."""
        last = len(self.x) // 5
        x, y = self.x[:-last], self.y[:-last]
        return Data(x, y, self.x[-last:], self.y[-last:], self.scale)


def run(
    sets: Sequence[str],
    splits: int,
    drops: Sequence[float],
    progress: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Both methods on all splits of each set; image sets have one split and as many seeds.

    The drop probability maximises the log-likelihood of a held-out fifth of the first split's
    training rows.
    """
    rows, chosen = [], {}
    for name in sets:
        chosen[name] = _chosen(name, drops, progress)
        for split in range(splits):
            for method in METHODS:
                found = _one(name, split, method, chosen[name], _data(name, split))
                rows.append({"set": name, "method": method, "split": split, **found})
                progress(f"{name}, split {split}, {method}: {_rounded(found)}")
    return {
        "task": "dropout",
        "splits": splits,
        "drops": list(drops),
        "drop": chosen,
        "results": rows,
        "means": {name: means(rows, name) for name in sets},
        "versions": versions(),
        "machine": machine(),
    }


def better(result: dict[str, Any]) -> bool:
    """Whether dropout has the better log-likelihood and the better calibration on every set."""
    pairs = [[found[one] for one in METHODS] for found in result["means"].values()]
    return all(
        dropped["calibration_error"] < plain["calibration_error"]
        and dropped["log_likelihood"] > plain["log_likelihood"]
        for plain, dropped in pairs
    )


def means(rows: Sequence[dict[str, Any]], name: str) -> dict[str, dict[str, float]]:
    """The mean of every figure, by method, on one set."""
    found = {}
    for method in METHODS:
        own = [row for row in rows if (row["set"], row["method"]) == (name, method)]
        figures = [key for key, value in own[0].items() if isinstance(value, float)]
        found[method] = {key: sum(row[key] for row in own) / len(own) for key in figures}
    return found


def _chosen(name: str, drops: Sequence[float], progress: Callable[[str], None]) -> float:
    data = _data(name, 0).held_out()
    likely = {}
    for drop in drops if len(drops) > 1 else ():
        found = _one(name, 0, "dropout", drop, data)
        likely[drop] = found["log_likelihood"]
        progress(f"{name}, held out, drop {drop:g}: {_rounded(found)}")
    return max(likely, key=lambda drop: likely[drop], default=drops[0])


def _rounded(found: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in found.items()}


def _one(name: str, split: int, method: str, drop: float, data: Data) -> dict[str, float]:
    """One method's prediction of the test data, without calibration after training."""
    kind = PICTURES if name == IMAGES else TABLE
    outputs = 10 if name == IMAGES else 1
    model = mlp(data.x.shape[1], outputs, hidden=kind.hidden, seed=split)
    options = {"drop": drop} if method == "dropout" else {}
    learner = getattr(br, method)(model, kind.likelihood(), num_data=len(data.x), **options)
    found = br.fit(
        learner,
        (data.x, data.y),
        epochs=kind.epochs,
        batch_size=kind.batch_size,
        seed=split,
        calibrate=False,
        progress=False,
    )
    p = found.predict(data.asked)
    likely = float(p.log_prob(data.answers).mean())
    if name == IMAGES:
        wrong = 100.0 * float((p.labels != data.answers).double().mean())
        ece = float(metrics.ece(p.probs, data.answers))
        return {"log_likelihood": likely, "error": wrong, "calibration_error": ece}
    return {
        "log_likelihood": likely - float(torch.tensor(data.scale).log()),
        "error": float((p.mean - data.answers).square().mean().sqrt()) * data.scale,
        "calibration_error": _calibration_error(p, data.answers),
    }


def _data(name: str, split: int) -> Data:
    if name == IMAGES:
        found = loaded(fashion_mnist).standardised()
        x, y = found.x_train[: PICTURES.most].flatten(1), found.y_train[: PICTURES.most]
        return Data(x, y, found.x_test.flatten(1), found.y_test)
    rows = uci(name, split)
    x, y, asked, answers = (
        torch.as_tensor(one) for one in (rows.x_train, rows.y_train, rows.x_test, rows.y_test)
    )
    inputs, targets = _scale(x), _scale(y[:, None])
    return Data(
        _scaled(x, inputs),
        _scaled(y[:, None], targets),
        _scaled(asked, inputs),
        _scaled(answers[:, None], targets),
        float(targets[1]),
    )


def _scale(values: Tensor) -> tuple[Tensor, Tensor]:
    return values.mean(0), values.std(0).clamp_min(1e-12)


def _scaled(rows: Tensor, by: tuple[Tensor, Tensor]) -> Tensor:
    return ((rows - by[0]) / by[1]).float()


def _calibration_error(p: Any, y: Tensor) -> float:
    """The mean difference between the coverage of intervals and their level."""
    gaps = []
    for level in LEVELS.tolist():
        low, high = p.interval(level)
        gaps.append(abs(float(((y >= low) & (y <= high)).double().mean()) - level))
    return sum(gaps) / len(gaps)
