"""TAGI on the nine UCI regression sets, beside what pytagi reports for them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.app.data.errors import nearest
from bayesrule.execution.stacked.stack import Stacked
from bayesrule.learner import Learner
from bayesrule.likelihoods import GaussianLikelihood
from bayesrule.methods import tagi
from bayesrule.predicting.prediction import Prediction
from bayesrule.rules import Conditioning
from bayesrule.tensors import seeds
from bayesrule.types import State
from benchmarks.data.uci import uci, uci_set

BATCH = 10
HIDDEN = 50


@dataclass(frozen=True)
class Published:
    """What pytagi reports for a set, with its noise (of standardised targets) and epochs."""

    rmse: float
    log_likelihood: float
    noise: float
    epochs: int


PYTAGI = {
    "boston": Published(3.146, -2.578, 0.3, 13),
    "concrete": Published(5.865, -3.204, 0.3, 15),
    "energy": Published(1.317, -1.808, 0.1, 36),
    "kin8nm": Published(0.095, 0.893, 0.3, 25),
    "naval": Published(0.007, 3.540, 0.6, 24),
    "power": Published(4.129, -2.879, 0.2, 9),
    "protein": Published(4.615, -2.954, 0.7, 10),
    "wine_red": Published(0.639, -0.975, 0.7, 7),
    "yacht": Published(1.037, -1.597, 0.1, 25),
}


@dataclass(frozen=True)
class Setting:
    """The settings for all sets; `given` says whether noise and epochs are the table's.

    The first means of the hidden layer are N(0, width² / fan-in); `reach` is that of the rule.
    """

    title: str
    given: bool
    width: float
    reach: float


SETTINGS = {
    "table": Setting("noise and epochs of the table", True, width=2.0, reach=2.0),
    "learned": Setting("learned noise, nothing chosen for a set", False, width=1.0, reach=0.5),
}
# With learned noise, train for about this many steps, in 20 to 100 epochs.
STEPS = 2500
# The prior noise of standardised targets is about √0.1.
SHAPE, RATE = 1.0, 0.1


@dataclass(frozen=True, eq=False)
class Splits:
    """All splits of a set; inputs and targets are standardised on each training part.

    `x` (K, n, d) and `y` (K, n, 1) are padded with NaN targets if a split is shorter. Tests are in
    original units; `shift` and `scale` (K,) standardise the targets.
    """

    x: Tensor
    y: Tensor
    x_test: list[Tensor]
    y_test: list[Tensor]
    shift: Tensor
    scale: Tensor


def check(sets: Sequence[str], settings: Sequence[str]) -> None:
    """Refuses unknown names before anything is trained."""
    for name in sets:
        uci_set(name)
    for name in settings:
        if name not in SETTINGS:
            raise ValueError(
                f"Unknown setting {name!r}.{nearest(name, SETTINGS)} Settings: "
                f"{', '.join(SETTINGS)}."
            )


def counts(results: Sequence[dict[str, Any]], setting: str) -> dict[str, int]:
    """On how many sets the mean is at least as good as the published one."""
    own = [result for result in results if result.get("setting") == setting]
    rmse = [r["rmse"]["mean"] <= r["published"]["rmse"] for r in own]
    likelihood = [r["log_likelihood"]["mean"] >= r["published"]["log_likelihood"] for r in own]
    return tally(rmse, likelihood)


def tally(rmse: Sequence[bool], log_likelihood: Sequence[bool]) -> dict[str, int]:
    """The number of sets, and on how many each statement and both are true."""
    both = [a and b for a, b in zip(rmse, log_likelihood, strict=True)]
    return {
        "sets": len(rmse),
        "rmse": sum(rmse),
        "log_likelihood": sum(log_likelihood),
        "both": sum(both),
    }


def load(name: str, splits: int | None = None) -> Splits:
    """The first splits of a set, or all."""
    entry = uci_set(name)
    parts = [uci(name, k) for k in range(min(splits or entry.n_splits, entry.n_splits))]
    scaled = []
    for part in parts:
        scale = part.x_train.std(0)
        scale[scale == 0] = 1.0  # naval has two columns that never change
        middle = part.x_train.mean(0)
        scaled.append(((part.x_train - middle) / scale, (part.x_test - middle) / scale))
    shift = torch.tensor([part.y_train.mean() for part in parts])
    spread = torch.tensor([part.y_train.std() for part in parts])
    targets = [torch.from_numpy(part.y_train) for part in parts]
    standard = [(y - a) / b for y, a, b in zip(targets, shift, spread, strict=True)]
    return Splits(
        x=_filled([torch.from_numpy(x).float() for x, _ in scaled], 0.0),
        y=_filled([y.float().unsqueeze(1) for y in standard], math.nan),
        x_test=[torch.from_numpy(x).float() for _, x in scaled],
        y_test=[torch.from_numpy(part.y_test).float() for part in parts],
        shift=shift.float(),
        scale=spread.float(),
    )


def _filled(rows: Sequence[Tensor], value: float) -> Tensor:
    """Rows (n_k, *) of each split as one tensor (K, n, *)."""
    return nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=value)


class _Linear(nn.Linear):
    """A layer whose weights and biases start as N(0, width² / fan-in)."""

    def __init__(self, inputs: int, outputs: int, width: float = 1.0) -> None:
        self.width = width
        super().__init__(inputs, outputs)

    def reset_parameters(self) -> None:
        for value in (self.weight, self.bias):
            nn.init.normal_(value, std=self.width * self.in_features**-0.5)


def epochs_of(name: str, setting: str, size: int) -> int:
    """The table's own epochs, or about `STEPS` steps in 20 to 100 epochs."""
    if SETTINGS[setting].given:
        return PYTAGI[name].epochs
    return min(100, max(20, round(STEPS / math.ceil(size / BATCH))))


def learner_of(name: str, setting: str, inputs: int, size: int) -> Learner:
    """TAGI on `inputs`-50-1 for `size` training data."""
    chosen = SETTINGS[setting]
    steps = epochs_of(name, setting, size) * math.ceil(size / BATCH)
    noise = PYTAGI[name].noise if chosen.given else None
    hidden = _Linear(inputs, HIDDEN, chosen.width)
    return tagi(
        nn.Sequential(hidden, nn.ReLU(), _Linear(HIDDEN, 1)),
        GaussianLikelihood(noise, shape=SHAPE, rate=RATE),
        num_data=size,
        rule=Conditioning.over(size, steps, chosen.reach),
    )


def train(data: Splits, name: str, setting: str, seed: int = 0) -> tuple[Stacked, State]:
    """One net for each split."""
    num, size, inputs = data.x.shape
    stack = Stacked(learner_of(name, setting, inputs, size), num)
    state = stack.init(range(seed * 1000, seed * 1000 + num))
    for epoch in range(epochs_of(name, setting, size)):
        for batch in _batches(data, seed, epoch):
            state, _ = stack.step(state, batch, donate=True)
    return stack, state


def _batches(data: Splits, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The data of each split in an order of its own."""
    generator = seeds.generator("cpu", seed, epoch)
    order = torch.rand(data.x.shape[:2], generator=generator).argsort(1).unsqueeze(2)
    x, y = data.x.take_along_dim(order, 1), data.y.take_along_dim(order, 1)
    yield from zip(x.split(BATCH, 1), y.split(BATCH, 1), strict=True)


def row(data: Splits, name: str, setting: str, seed: int = 0) -> dict[str, Any]:
    """Trains one net for each split, all at once, and scores each on its test part."""
    begun = time.perf_counter()
    stack, state = train(data, name, setting, seed)
    seconds = time.perf_counter() - begun
    published = PYTAGI[name]
    return {
        "setting": setting,
        "epochs": epochs_of(name, setting, data.x.shape[1]),
        **scores(data, stack.predict(state, data.x_test)),
        "published": {"rmse": published.rmse, "log_likelihood": published.log_likelihood},
        "seconds": seconds,
    }


def scores(data: Splits, predictions: Sequence[Prediction]) -> dict[str, Any]:
    """RMSE and mean test log-likelihood (per point, of the mixture) in original units, by split.

    `noise` is the standard deviation in units of the standardised targets.
    """
    errors, log_likelihoods, noises = [], [], []
    for k, found in enumerate(predictions):
        prediction = found.rescaled(data.shift[k], data.scale[k])
        y = data.y_test[k].unsqueeze(1).to(prediction.mean.device)
        errors.append(float((prediction.mean - y).square().mean().sqrt()))
        log_likelihoods.append(float(prediction.log_prob(y).mean()))
        noises.append(float(found.aleatoric.mean().sqrt()))
    return {
        "splits": len(errors),
        "rmse": mean(errors),
        "log_likelihood": mean(log_likelihoods),
        "noise": statistics.mean(noises),
        "by_split": {"rmse": errors, "log_likelihood": log_likelihoods},
    }


def mean(values: Sequence[float]) -> dict[str, float]:
    """The mean over splits and its standard error."""
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else math.nan
    return {"mean": statistics.mean(values), "error": error}
