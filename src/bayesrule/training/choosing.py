"""Options that are chosen by rows which are held out from training."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesrule.learner import Learner
from bayesrule.tensors.network import Inputs, take
from bayesrule.training.batches import TensorBatches, as_batches, is_pair
from bayesrule.training.many import fit_many
from bayesrule.training.net import TrainingError
from bayesrule.training.train import Run, TrainingWarning

Options = Mapping[str, Any]
Build = Callable[[int, Options, int | None], Learner]

CHOSEN = ("temperature", "prior_precision")
"""The options of a learner that `fit` chooses."""
# Longer trainings have to be worth so many nats for each example.
_WORTH = 0.005


class Choice(NamedTuple):
    """The options and the number of epochs of the best mean log-likelihood of held-out rows."""

    options: Options
    epochs: int | None
    score: float


class Part(NamedTuple):
    """The rows to train on, and those that are held out."""

    train: Tensor
    held: Tensor


def held_out_parts(num_data: int, seed: int = 0) -> list[Part]:
    """A fifth of the rows is held out, at most 2,000 of them; of few rows, each once.

    >>> [(len(part.train), len(part.held)) for part in held_out_parts(100)]
    [(80, 20), (80, 20), (80, 20), (80, 20), (80, 20)]
    >>> [(len(part.train), len(part.held)) for part in held_out_parts(20_000)]
    [(18000, 2000)]
    """
    if num_data < 5:
        raise ValueError(f"Choosing by held-out rows takes at least 5 rows, there are {num_data}.")
    order = torch.randperm(num_data, generator=torch.Generator().manual_seed(seed))
    size = min(num_data // 5, 2000)
    number = 5 if num_data <= 400 else 2 if num_data <= 1500 else 1
    parts = []
    for start in range(0, number * size, size):
        rest = torch.cat([order[:start], order[start + size :]])
        parts.append(Part(rest, order[start : start + size]))
    return parts


def candidates(choices: Mapping[str, Sequence[Any]]) -> list[Options]:
    """Every combination of the values of some options.

    >>> candidates({"temperature": (1.0, 0.1)})
    [{'temperature': 1.0}, {'temperature': 0.1}]
    """
    return [dict(zip(choices, one, strict=True)) for one in itertools.product(*choices.values())]


def choose(
    build: Build,
    data: tuple[Inputs, Tensor],
    options: Sequence[Options],
    epochs: Sequence[int | None] = (None,),
    *,
    batch_size: int = 32,
    seed: int = 0,
) -> Choice:
    """Trains every candidate without the held-out rows, and takes the one that knows them best.

    `build(num_data, options, epochs)` makes the learner of a candidate. The first of the `epochs`
    is tried with all options, the later ones, which are larger, with the best of them, for as long
    as more epochs are worth it. All candidates and parts of the data train together where that is
    possible (`fit_many`). What fails does not stand for choice.
    """
    parts = held_out_parts(len(data[1]), seed)
    best = Choice(options[0], epochs[0], -math.inf)
    tried, before = list(options), -math.inf
    for length in epochs:
        scores = _scores(build, data, tried, length, parts, batch_size, seed)
        found = max(range(len(tried)), key=lambda which: scores[which])
        if scores[found] > max(best.score + _WORTH, -math.inf):
            best = Choice(tried[found], length, scores[found])
        if scores[found] < before + _WORTH:
            break
        tried, before = [tried[found]], scores[found]
    if best.score == -math.inf:
        raise TrainingError("None of the options to choose from could be trained with.")
    return best


def chosen_learner(
    learner: Learner,
    data: Any,
    choices: Mapping[str, Sequence[float]],
    epochs: int | None = None,
    *,
    batch_size: int = 32,
    seed: int = 0,
) -> Learner:
    """The learner with those of its options that held-out rows speak for."""
    for name, values in choices.items():
        if name not in CHOSEN:
            raise ValueError(f"choose takes {' and '.join(CHOSEN)}, got {name!r}.")
        if not values:
            raise ValueError(f"choose has no values of {name} to choose from.")
    if not is_pair(data):
        raise TypeError(
            f"choose holds out rows of (x, y), got {type(data).__name__}. Give such a pair of "
            "tensors, or leave choose out and build the learner with options of your own."
        )
    rows = as_batches(data, batch_size)
    assert isinstance(rows, TensorBatches)

    def build(num_data: int, options: Options, epochs: int | None) -> Learner:
        return learner.replaced(num_data=num_data, **options)

    pair, tried = (rows.x, rows.y), candidates(choices)
    found = choose(build, pair, tried, [epochs], batch_size=batch_size, seed=seed)
    return learner.replaced(**found.options)


def _scores(
    build: Build,
    data: tuple[Inputs, Tensor],
    options: Sequence[Options],
    epochs: int | None,
    parts: Sequence[Part],
    batch_size: int,
    seed: int,
) -> list[float]:
    """The mean log-likelihood of the held-out rows for each candidate; −∞ for one that fails."""
    x, y = data
    tasks = [(which, part) for which in range(len(options)) for part in parts]
    sets = [(take(x, part.train), y[part.train]) for _, part in tasks]
    learners = [build(len(part.train), options[which], epochs) for which, part in tasks]
    seeds = [seed] * len(tasks)
    with warnings.catch_warnings():
        # A candidate that goes astray on its way is not what the caller trains.
        warnings.simplefilter("ignore", TrainingWarning)
        try:
            runs: list[Run | None] = [
                *fit_many(
                    learners,
                    sets,
                    epochs=epochs,
                    batch_size=batch_size,
                    seeds=seeds,
                    progress=False,
                )
            ]
        except (TrainingError, torch.linalg.LinAlgError):
            pairs = zip(learners, sets, strict=True)
            runs = [_alone(*pair, epochs, batch_size, seed) for pair in pairs]
    found: list[list[float]] = [[] for _ in options]
    for (which, part), run in zip(tasks, runs, strict=True):
        found[which].append(_score(run, take(x, part.held), y[part.held]))
    return [fmean(each) for each in found]


def _alone(
    learner: Learner, data: tuple[Any, Any], epochs: int | None, batch_size: int, seed: int
) -> Run | None:
    try:
        options: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "progress": False}
        return fit_many([learner], [data], seeds=[seed], **options)[0]
    except (TrainingError, torch.linalg.LinAlgError):
        return None


def _score(run: Run | None, x: Inputs, y: Tensor) -> float:
    if run is None:
        return -math.inf
    prediction = run.predict(x)
    score = float(prediction.log_prob(y.to(prediction.mean.device)).mean())
    return score if math.isfinite(score) else -math.inf
