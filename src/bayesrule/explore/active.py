"""Pool-based active learning: the network chooses which input to label next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from bayesrule.explore.acquisitions import Criterion, LargestVariance
from bayesrule.learner import Learner
from bayesrule.predicting.evaluate import scores
from bayesrule.predicting.predict import How, as_tensor
from bayesrule.predicting.prediction import Prediction
from bayesrule.tensors import seeds
from bayesrule.tensors.inputs import Inputs, mapped, named, num_examples, replaced, take
from bayesrule.training.train import Run, fit

_FIT_OPTIONS = ("epochs", "batch_size", "fused", "progress", "callback")
# Streams of randomness: for the first rows, the criterion, and ties between the best rows.
_START, _CRITERION, _TIES = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Standard:
    """Means and standard deviations of the labelled rows: of floating inputs, and of targets.

    `inputs` leaves out inputs that are not standardised; `targets` is None if targets are not.
    """

    inputs: dict[str, tuple[Tensor, Tensor]]
    targets: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(cls, x: Inputs, y: Tensor | None) -> Standard:
        """The moments of labelled inputs x, and of targets y if they are given."""
        inputs = {k: _moments(v) for k, v in named(x) if v.is_floating_point()}
        return cls(inputs, None if y is None else _moments(y))

    def standardise(self, x: Inputs) -> Inputs:
        """Inputs as the network takes them."""
        return replaced(x, {k: _scaled(v, self.inputs.get(k)) for k, v in named(x)})

    def restore(self, prediction: Prediction) -> Prediction:
        """A prediction in the units of the targets."""
        return prediction if self.targets is None else prediction.rescaled(*self.targets)


@dataclass(frozen=True, eq=False)
class ActiveRun:
    """The rows in the order of labelling, and the test scores after each label.

    `start` (s,) and `chosen` (steps,) are row numbers of the pool; `history` has the test scores
    (`evaluate.scores`) of the first fit and of the fit after each choice; `final` is the last fit.
    """

    start: Tensor
    chosen: Tensor
    history: list[dict[str, float]]
    final: Run
    standard: Standard

    @property
    def labelled(self) -> Tensor:
        """All labelled rows of the pool, (s + steps,)."""
        return torch.cat([self.start, self.chosen])

    @property
    def num_labelled(self) -> Tensor:
        """How many labels each fit had, (steps + 1,)."""
        return len(self.start) + torch.arange(len(self.history))

    @property
    def rmse(self) -> Tensor:
        """The root mean squared error of each fit, (steps + 1,)."""
        return self._curve("rmse", "classes; they have an error")

    @property
    def error(self) -> Tensor:
        """The share of wrong classes of each fit, (steps + 1,)."""
        return 1.0 - self._curve("accuracy", "numbers; they have an rmse")

    @property
    def log_likelihood(self) -> Tensor:
        """The mean test log-likelihood of each fit, (steps + 1,)."""
        classes = "nll" in self.history[0]
        return -self._curve("nll") if classes else self._curve("log_likelihood")

    def predict(self, x: Any, how: How | None = None, *, seed: int = 0) -> Prediction:
        """The prediction of the last fit for inputs in the units of the pool."""
        inputs = self.standard.standardise(mapped(x, as_tensor))
        return self.standard.restore(self.final.predict(inputs, how, seed=seed))

    def _curve(self, name: str, other: str = "") -> Tensor:
        if name not in self.history[0]:
            raise TypeError(f"These are predictions of {other}.")
        return torch.tensor([fitted[name] for fitted in self.history])


def active_learning(
    build: Callable[[int], Learner],
    *,
    pool: tuple[Any, Any],
    test: tuple[Any, Any],
    start: int | Sequence[int] | Tensor = 20,
    criterion: Criterion | None = None,
    steps: int = 9,
    standardise: bool = True,
    seed: int = 0,
    **options: Any,
) -> ActiveRun:
    """Trains, labels the most informative row of the pool, and trains again from scratch.

    - `build(num_data)` makes the learner for `num_data` labelled rows.
    - `pool`, `test`: pairs (x, y); a label of the pool is used only once its row was chosen.
    - `start`: how many rows are labelled at first, drawn at random, or their numbers.
    - `criterion`: `LargestVariance()` (default), `BALD()`, `EPIG()` or `Random()`; ties are broken
      at random.
    - `steps`: how many rows are labelled; there are `steps + 1` fits, each scored on `test`.
    - `standardise`: columns of x, and real-valued y, get mean 0 and variance 1 on the labelled
      rows; columns that are constant there are only shifted. Scores are in original units.
    - `options` go to `br.fit`: `epochs`, `batch_size`, `fused`, `progress`, `callback`.

    To label by hand, call `criterion.scores(run.learner, run.state, x, generator)` after `br.fit`
    instead.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, ridge
    >>> x = torch.tensor([[0.0], [0.1], [-0.1], [0.2], [5.0]])
    >>> def build(num_data: int) -> Learner:
    ...     return ridge(nn.Linear(1, 1), GaussianLikelihood(noise=0.1), num_data=num_data)
    >>> run = active_learning(build, pool=(x, 2 * x), test=(x, 2 * x), start=[0, 1], steps=1)
    >>> run.chosen, run.rmse.shape
    (tensor([4]), torch.Size([2]))
    """
    criterion = LargestVariance() if criterion is None else _checked(criterion)
    if unknown := [name for name in options if name not in _FIT_OPTIONS]:
        takes = ", ".join(_FIT_OPTIONS)
        raise TypeError(f"active_learning has no option {unknown[0]}; of br.fit it takes {takes}.")
    (x, y), (x_test, y_test) = _pair(pool, "pool"), _pair(test, "test")
    first = _first(start, len(y), seed)
    most = len(y) - len(first)
    if not (isinstance(steps, int) and 0 <= steps <= most):
        raise ValueError(
            f"steps is how many labels are asked for, 0 to {most}, as the pool has {len(y)} rows "
            f"and {len(first)} are labelled at first; got {steps}."
        )
    labelled, history = first, []
    while True:
        num = len(labelled) - len(first)
        run, standard = _fit(build, take(x, labelled), y[labelled], standardise, seed, options)
        predicted = standard.restore(run.predict(standard.standardise(x_test), seed=seed))
        history.append(scores(predicted, y_test.to(predicted.mean.device)))
        if num == steps:
            return ActiveRun(first, labelled[len(first) :], history, run, standard)
        free = torch.ones(len(y), dtype=torch.bool)
        free[labelled] = False
        unlabelled = free.nonzero().squeeze(1)
        generator = seeds.generator("cpu", seed, num, _CRITERION)
        inputs = standard.standardise(take(x, unlabelled))
        scored = criterion.standardised(standard.standardise)
        values = scored.scores(run.learner, run.state, inputs, generator)
        ties = seeds.generator("cpu", seed, num, _TIES)
        best = _best(values, len(unlabelled), criterion, ties)
        labelled = torch.cat([labelled, unlabelled[best, None]])


def _fit(
    build: Callable[[int], Learner],
    x: Inputs,
    y: Tensor,
    standardise: bool,
    seed: int,
    options: dict[str, Any],
) -> tuple[Run, Standard]:
    """Trains from scratch on the labelled rows."""
    learner = build(len(y))
    if not isinstance(learner, Learner):
        raise TypeError(
            f"build(num_data) makes a learner, such as br.vogn(...), got {type(learner).__name__}."
        )
    real = learner.likelihood.lacks("rescaled") is None
    standard = Standard.of(x, y if real else None) if standardise else Standard({})
    train = standard.standardise(x), _scaled(y, standard.targets)
    return fit(learner, train, seed=seed, **{"progress": False, **options}), standard


def _best(values: Tensor, num: int, criterion: Criterion, generator: Generator) -> int:
    """The row with the largest score, a random one of them if there are several."""
    values = values.detach().cpu()
    if values.shape != (num,) or values.isnan().any():
        raise ValueError(
            f"{type(criterion).__name__} must give one number for each of {num} inputs, got "
            f"{tuple(values.shape)} with {int(values.isnan().sum())} NaN."
        )
    best = (values == values.max()).nonzero().squeeze(1)
    return int(best[torch.randint(len(best), (), generator=generator)])


def _moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each column; 1 where the column is constant."""
    values = values if values.is_floating_point() else values.to(torch.get_default_dtype())
    varies = values.amax(0) > values.amin(0)
    return values.mean(0), torch.where(varies, values.std(0, correction=0), 1.0)


def _scaled(values: Tensor, moments: tuple[Tensor, Tensor] | None) -> Tensor:
    return values if moments is None else (values - moments[0]) / moments[1]


def _pair(data: Any, name: str) -> tuple[Inputs, Tensor]:
    if not (isinstance(data, tuple | list) and len(data) == 2):
        raise TypeError(f"{name} is a pair (x, y), got {type(data).__name__}.")
    x, y = mapped(data[0], as_tensor), as_tensor(data[1])
    if num_examples(x) != len(y) or len(y) == 0:
        raise ValueError(
            f"{name} has as many inputs as targets, at least one, got {num_examples(x)} and "
            f"{len(y)}."
        )
    return x, y


def _first(start: int | Sequence[int] | Tensor, num: int, seed: int) -> Tensor:
    """The row numbers that are labelled at first."""
    if isinstance(start, int):
        if not 1 <= start <= num:
            raise ValueError(
                f"start is how many rows are labelled at first, 1 to {num} (the size of the pool), "
                f"got {start}."
            )
        return torch.randperm(num, generator=seeds.generator("cpu", seed, 0, _START))[:start]
    rows = torch.as_tensor(start, dtype=torch.int64)
    sound = rows.ndim == 1 and len(rows) > 0 and len(rows.unique()) == len(rows)
    if not sound or int(rows.min()) < 0 or int(rows.max()) >= num:
        raise ValueError(
            f"start names rows of the pool, each from 0 to {num - 1} and once, got {start}."
        )
    return rows


def _checked(criterion: Any) -> Criterion:
    if isinstance(criterion, type) and issubclass(criterion, Criterion):
        raise TypeError(f"criterion takes an object, got the class: write {criterion.__name__}().")
    if not isinstance(criterion, Criterion):
        raise TypeError(
            "criterion takes LargestVariance(), BALD(), EPIG(), Random() or a Criterion of your "
            f"own, got {criterion!r}."
        )
    return criterion
