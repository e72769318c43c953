"""Options that are chosen by rows which are held out from training."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesrule.learner import Learner
from bayesrule.tensors.network import Inputs
from bayesrule.training.batches import TensorBatches, as_batches, is_pair
from bayesrule.training.calibrating import Calibration, can_calibrate, learned
from bayesrule.training.held_out import Candidate, HeldOut, Part
from bayesrule.training.net import TrainingError
from bayesrule.training.train import Run

Options = Mapping[str, Any]
Build = Callable[[int, Options, int | None], Learner]
"""Makes the learner for so many rows, with these options, for so many epochs."""

CHOSEN = ("temperature", "prior_precision")
"""The options of a learner that `fit` chooses."""
# Longer trainings have to be worth so many nats for each example.
_WORTH = 0.005
# A score no better than that of a line by so many nats is one before anything else was learned.
_LEARNED = 0.1
# Of ridge regression, for columns and targets near one in size.
_PENALTIES = (0.01, 1.0, 100.0)


class Member(NamedTuple):
    """One net of an ensemble: how its learner is made, and its seed.

    Where there are `starts`, one run for each part of the data, it begins at their weights.
    """

    build: Build
    seed: int = 0
    starts: Sequence[Run] = ()

    def candidate(self, options: Options, epochs: int | None) -> Candidate:
        """Its training with some options."""
        return Candidate(
            lambda num_data: self.build(num_data, options, epochs), self.seed, self.starts
        )


class Choice(NamedTuple):
    """The options and the number of epochs with the best log-likelihood of held-out rows.

    `score` is its mean, less the cost of calibration. `calibration` makes the held-out rows most
    probable, where it was asked for. `runs` are the trainings without the held-out rows, one for
    each part of the data, of each member. `log_probs` are those of the held-out rows.
    """

    options: Options
    epochs: int | None
    score: float = -math.inf
    calibration: Calibration | None = None
    runs: Sequence[Sequence[Run]] = ()
    log_probs: Tensor | None = None

    def is_clearly_better(self, other: Choice) -> bool:
        """Whether it predicts better by more than one standard error of the paired differences."""
        if self.log_probs is None or other.log_probs is None:
            return self.score > other.score
        differences = self.log_probs - other.log_probs
        error = float(differences.std()) / math.sqrt(len(differences))
        return self.score > other.score + error


def candidates(choices: Mapping[str, Sequence[Any]]) -> list[Options]:
    """Every combination of the values of some options.

    >>> candidates({"temperature": (1.0, 0.1)})
    [{'temperature': 1.0}, {'temperature': 0.1}]
    """
    return [dict(zip(choices, one, strict=True)) for one in itertools.product(*choices.values())]


def choose(
    members: Sequence[Member],
    data: tuple[Inputs, Tensor],
    options: Sequence[Sequence[Options]],
    epochs: Sequence[int | None] = (None,),
    *,
    batch_size: int = 32,
    calibrate: bool = False,
    progress: bool | None = False,
) -> Choice:
    """Trains every candidate without the held-out rows, and takes the one that predicts them best.

    `options` are groups, from simple to complex: a later group must predict clearly better, by a
    standard error. All are tried with the first, smallest number of `epochs`, by the first of the
    members. With the best of them the whole ensemble trains for that long, then for the larger
    numbers of epochs, as long as more epochs are worth it. Where an ensemble predicts no better
    than a line, it goes on, and all options are tried again. Candidates and parts of the data train
    together where that is possible (`fit_many`). A candidate whose training fails is left out, and
    so are members beside the first.

    With `calibrate` candidates are compared after calibration on the held-out rows, less its cost
    (`Calibration.cost`). With `progress`, a bar for each round; None shows it on a terminal only.
    """
    seed = members[0].seed
    rows = HeldOut.of(data, batch_size=batch_size, seed=seed, progress=progress)
    best, tried, before = Choice(options[0][0], epochs[0]), options, -math.inf
    line = _score_of_a_line(data, rows.parts)
    for length in epochs:
        found = _best_of(tried, length, members, rows, calibrate)
        if found.score > max(best.score + _WORTH, -math.inf):
            best = found
        learned_more = found.score >= line + _LEARNED
        if learned_more and found.score < before + _WORTH:
            break
        tried, before = [[found.options]] if learned_more else tried, found.score
    if best.score == -math.inf:
        raise TrainingError("None of the options to choose from could be trained with.")
    return best


def _best_of(
    groups: Sequence[Sequence[Options]],
    epochs: int | None,
    members: Sequence[Member],
    rows: HeldOut,
    calibrate: bool,
) -> Choice:
    """The best options by the first member, with the score that the whole ensemble has."""
    tried = [options for group in groups for options in group]
    # Where there is nothing to choose, all members train in one call, which takes less time.
    team = members if len(tried) == 1 else members[:1]
    runs = rows.runs([one.candidate(given, epochs) for given in tried for one in team], epochs)
    teams = (runs[k : k + len(team)] for k in range(0, len(runs), len(team)))
    best: Choice | None = None
    for group in groups:
        choices = [_judged(Choice(one, epochs), next(teams), rows, calibrate) for one in group]
        found = max(choices, key=lambda choice: choice.score)
        if best is None or found.is_clearly_better(best):
            best = found
    assert best is not None
    if len(team) == len(members) or best.score == -math.inf:
        return best
    others = rows.runs([one.candidate(best.options, epochs) for one in members[1:]], epochs)
    return _judged(best, [best.runs[0], *others], rows, calibrate)


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
    found = choose([Member(build, seed)], pair, [tried], [epochs], batch_size=batch_size)
    return learner.replaced(**found.options)


def _judged(
    choice: Choice, members: Sequence[Sequence[Run] | None], rows: HeldOut, calibrate: bool
) -> Choice:
    """The choice with the score, the calibration and the runs of its members."""
    first, good = members[0], [runs for runs in members if runs is not None]
    if first is None:
        return choice
    held, likelihood = rows.held(good), first[0].learner.likelihood
    calibration = None
    if calibrate:
        calibration = learned(likelihood, held) if can_calibrate(likelihood) else Calibration()
    with torch.no_grad():
        rows_of_parts = [one.log_prob(likelihood, calibration or Calibration()) for one in held]
    log_probs = torch.cat(rows_of_parts)
    found = float(log_probs.mean())
    if calibration is not None:
        # Of equals that which needs the least of it: other rows may ask for another one.
        found -= calibration.cost() / len(log_probs)
    return choice._replace(
        score=found if math.isfinite(found) else -math.inf,
        calibration=calibration,
        runs=good,
        log_probs=log_probs,
    )
