"""Options that are chosen by rows which are held out from training."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesrule.learner import Learner
from bayesrule.tensors.network import Inputs
from bayesrule.training.batches import TensorBatches, as_batches, is_pair
from bayesrule.training.calibrating import Calibration, can_calibrate, learned, score
from bayesrule.training.held_out import Candidate, HeldOut, Part
from bayesrule.training.net import TrainingError
from bayesrule.training.train import Run

Options = Mapping[str, Any]
Build = Callable[[int, Options, int | None], Learner]

CHOSEN = ("temperature", "prior_precision")
"""The options of a learner that `fit` chooses."""
# Longer trainings have to be worth so many nats for each example.
_WORTH = 0.005
# A score no better than that of a line by so many nats is one before anything else was learned.
_LEARNED = 0.1
# Of ridge regression, for columns and targets near one in size.
_PENALTIES = (0.01, 1.0, 100.0)


class Choice(NamedTuple):
    """The options and the number of epochs of the best mean log-likelihood of held-out rows.

    Of that, the `score` lacks what is believed against its calibration.
    """

    options: Options
    epochs: int | None
    score: float
    # What makes predictions of the held-out rows most probable, where that was looked for.
    calibration: Calibration | None = None
    # The trainings without the held-out rows, one for each part.
    runs: Sequence[Run] = ()


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
    calibrate: bool = False,
    starts: Sequence[Run] = (),
    progress: bool | None = False,
) -> Choice:
    """Trains every candidate without the held-out rows, and takes the one that knows them best.

    `build(num_data, options, epochs)` makes the learner of a candidate. The first of the `epochs`
    is tried with all options, the later ones, which are larger, with the best of them, for as long
    as more epochs are worth it. Where numbers are known no better than by a line, more epochs and
    all options are tried again. All candidates and parts of the data train together where that is
    possible (`fit_many`). What fails does not stand for choice. With `calibrate` candidates are
    held against each other as they are after calibration on the held-out rows, less what is
    believed against it (`Calibration.cost`). `starts` are trainings of other learners without the
    same rows, at whose weights these begin. With `progress`, a bar for each round; None shows them
    only on a terminal.
    """
    rows = HeldOut.of(data, batch_size=batch_size, seed=seed, progress=progress)
    best = Choice(options[0], epochs[0], -math.inf)
    tried, before, line = list(options), -math.inf, _score_of_a_line(data, rows.parts)
    for length in epochs:
        learners = (partial(build, options=one, epochs=length) for one in tried)
        runs = rows.runs([Candidate(one, seed, starts) for one in learners], length)
        choices = [
            _judged(Choice(one, length, -math.inf), own, rows, calibrate)
            for one, own in zip(tried, runs, strict=True)
        ]
        found = max(choices, key=lambda choice: choice.score)
        if found.score > max(best.score + _WORTH, -math.inf):
            best = found
        learned_more = found.score >= line + _LEARNED
        if learned_more and found.score < before + _WORTH:
            break
        tried, before = [found.options] if learned_more else tried, found.score
    if best.score == -math.inf:
        raise TrainingError("None of the options to choose from could be trained with.")
    return best


def _score_of_a_line(data: tuple[Inputs, Tensor], parts: Sequence[Part]) -> float:
    """How well the best of some linear models knows the held-out rows, its noise fitted to them.

    Networks learn that much of numbers first, and may then be on a plateau for long, where more
    epochs seem to be worth nothing. Of classes, and of inputs that are no table, nothing is said.

    >>> x = torch.linspace(-1.0, 1.0, 20).unsqueeze(1)
    >>> from bayesrule.training.held_out import held_out_parts
    >>> parts = held_out_parts(20)
    >>> _score_of_a_line((x, 3.0 * x), parts) > 2.0 > _score_of_a_line((x, x.abs()), parts)
    True
    """
    x, y = data
    if not (isinstance(x, Tensor) and x.ndim == 2 and y.is_floating_point()):
        return -math.inf
    design = torch.cat([x, torch.ones_like(x[:, :1])], 1).double()
    targets = y.double().reshape(len(y), -1)
    scores = []
    for penalty in _PENALTIES:
        errors = [
            targets[held] - design[held] @ _line(design[train], targets[train], penalty)
            for train, held in parts
        ]
        variance = torch.cat(errors).square().mean(0)
        scores.append(-0.5 * float((2.0 * math.pi * math.e * variance).log().sum()))
    return max(scores)


def _line(design: Tensor, targets: Tensor, penalty: float) -> Tensor:
    """The weights of ridge regression."""
    eye = torch.eye(design.shape[1], dtype=design.dtype, device=design.device)
    return torch.linalg.solve(design.mT @ design + penalty * eye, design.mT @ targets)


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


def _judged(choice: Choice, runs: Sequence[Run | None], rows: HeldOut, calibrate: bool) -> Choice:
    """A candidate with the mean log-likelihood of the held-out rows; −∞ for one that fails."""
    held = rows.held([runs])
    if held is None:
        return choice
    good = [run for run in runs if run is not None]
    likelihood, calibration = good[0].learner.likelihood, Calibration()
    if calibrate and can_calibrate(likelihood):
        calibration = learned(likelihood, held)
    found = score(likelihood, held, calibration)
    # Of equals that which needs the least of it: other rows may ask for another one.
    found -= calibration.cost() / sum(len(one.targets) for one in held)
    return Choice(
        choice.options,
        choice.epochs,
        found if math.isfinite(found) else -math.inf,
        calibration if calibrate else None,
        good,
    )
