"""Options of a learner, chosen by how well held-out rows are predicted."""

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
from bayesrule.training.calibrating import Calibration, can_calibrate, held_log_probs, learned
from bayesrule.training.held_out import Candidate, HeldOut, Part, held_out_parts
from bayesrule.training.net import TrainingError
from bayesrule.training.train import Run

Options = Mapping[str, Any]
Build = Callable[[int, Options, int | None], Learner]
"""`build(num_data, options, epochs)` makes a learner."""

CHOSEN = ("temperature", "prior_precision")
"""The options of a learner that `fit` chooses."""
# A longer training must gain this many nats per example.
_WORTH = 0.005
# A net that beats a linear model by less than this many nats has not learned anything else yet.
_LEARNED = 0.1
# Penalties of ridge regression, for standardised columns and targets.
_PENALTIES = (0.01, 1.0, 100.0)


class Member(NamedTuple):
    """One net of an ensemble: how its learner is made, and its seed.

    Training begins at the weights of `starts`, one run for each part of the data, where given.
    """

    build: Build
    seed: int = 0
    starts: Sequence[Run] = ()

    def candidate(self, options: Options, epochs: int | None) -> Candidate:
        """The training of this net with some options."""
        return Candidate(
            lambda num_data: self.build(num_data, options, epochs), self.seed, self.starts
        )


class Choice(NamedTuple):
    """The options and the number of epochs with the best log-likelihood of held-out rows.

    `score` is the mean of that, less the cost of calibration. `calibration`, where asked for, makes
    the held-out rows most probable. `runs[m][k]` is the training of member m on part k of the data;
    members that failed are left out. `log_probs` are those of the held-out rows.
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
    combinations = itertools.product(*choices.values())
    return [dict(zip(choices, values, strict=True)) for values in combinations]


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

    `options` are groups, from simple to complex; a later group is taken only if it predicts clearly
    better. The first member tries all of them with the first, smallest number of `epochs`. With the
    best options the whole ensemble trains for that long, and then for the larger numbers of epochs
    until these gain too little. While the ensemble predicts no better than a linear model, it goes
    on regardless, and all options are tried again. Candidates and parts of the data train together
    where possible (`fit_many`). A candidate whose training fails is left out, and so is a member
    other than the first.

    With `calibrate`, candidates are compared after calibration on the held-out rows, less its cost
    (`Calibration.cost`). `progress` shows a bar for each round, None only on a terminal.
    """
    seed = members[0].seed
    rows = HeldOut(data, held_out_parts(len(data[1]), seed), batch_size, progress)
    best, tried, before = Choice(options[0][0], epochs[0]), options, -math.inf
    linear = _linear_score(data, rows.parts)
    for length in epochs:
        choice = _best_of(tried, length, members, rows, calibrate)
        if choice.score > best.score + _WORTH:
            best = choice
        beats_linear = choice.score >= linear + _LEARNED
        if beats_linear and choice.score < before + _WORTH:
            break
        tried, before = [[choice.options]] if beats_linear else tried, choice.score
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
    """The options with which the first member scores best, and the whole ensemble's score."""
    tried = [options for group in groups for options in group]
    # Where there is nothing to choose, all members train in one call, which takes less time.
    team = members if len(tried) == 1 else members[:1]
    trainings = [member.candidate(options, epochs) for options in tried for member in team]
    runs = rows.runs(trainings, epochs)
    by_options = (runs[k : k + len(team)] for k in range(0, len(runs), len(team)))
    best: Choice | None = None
    for group in groups:
        choices = [
            _judged(Choice(options, epochs), next(by_options), rows, calibrate) for options in group
        ]
        best_of_group = max(choices, key=lambda choice: choice.score)
        if best is None or best_of_group.is_clearly_better(best):
            best = best_of_group
    assert best is not None
    if len(team) == len(members) or best.score == -math.inf:
        return best
    others = rows.runs([member.candidate(best.options, epochs) for member in members[1:]], epochs)
    return _judged(best, [best.runs[0], *others], rows, calibrate)


def _linear_score(data: tuple[Inputs, Tensor], parts: Sequence[Part]) -> float:
    """The mean log-likelihood of held-out rows under the best of a few ridge regressions.

    Their noise is fitted to these rows. Networks for regression learn the linear part first, and
    may then stay on a plateau where more epochs seem to gain nothing. The score is −∞ for classes,
    and for inputs that are no table.

    >>> x = torch.linspace(-1.0, 1.0, 20).unsqueeze(1)
    >>> parts = held_out_parts(20)
    >>> _linear_score((x, 3.0 * x), parts) > 2.0 > _linear_score((x, x.abs()), parts)
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
            targets[held] - design[held] @ _ridge(design[train], targets[train], penalty)
            for train, held in parts
        ]
        variance = torch.cat(errors).square().mean(0)
        scores.append(-0.5 * float((2.0 * math.pi * math.e * variance).log().sum()))
    return max(scores)


def _ridge(design: Tensor, targets: Tensor, penalty: float) -> Tensor:
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
    """The learner with the values from `choices` that predict held-out rows best."""
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
    best = choose([Member(build, seed)], pair, [tried], [epochs], batch_size=batch_size)
    return learner.replaced(**best.options)


def _judged(
    choice: Choice, members: Sequence[Sequence[Run] | None], rows: HeldOut, calibrate: bool
) -> Choice:
    """The choice with its score, calibration and runs; as it is where the first member failed."""
    first, good = members[0], [runs for runs in members if runs is not None]
    if first is None:
        return choice
    held, likelihood = rows.held(good), first[0].learner.likelihood
    calibration = None
    if calibrate:
        calibration = learned(likelihood, held) if can_calibrate(likelihood) else Calibration()
    log_probs = held_log_probs(likelihood, held, calibration or Calibration())
    mean = float(log_probs.mean())
    if calibration is not None:
        # Of equal candidates, the least calibrated one: other rows may need another calibration.
        mean -= calibration.cost() / len(log_probs)
    return choice._replace(
        score=mean if math.isfinite(mean) else -math.inf,
        calibration=calibration,
        runs=good,
        log_probs=log_probs,
    )
