"""Many trainings at once: splits, ensembles, one net for each series."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bayesrule.learner import Learner
from bayesrule.tensors.network import forked_randomness
from bayesrule.training.batches import TensorBatches, as_batches
from bayesrule.training.progress import Progress
from bayesrule.training.together import Net, Together
from bayesrule.training.train import Run, TrainingError, fit

Build = Callable[[Any, Any], Learner]


def fit_many(
    build: Build | Sequence[Learner],
    sets: Sequence[tuple[Any, Any]],
    *,
    epochs: int = 100,
    batch_size: int = 32,
    seeds: int | Sequence[int] | None = None,
    progress: bool | None = None,
    validation: Sequence[tuple[Any, Any] | None] | None = None,
) -> list[Run]:
    """Trains a net on each of several data sets, together in one process; one run for each.

    Each run is as that of `fit(build(x, y), (x, y), seed=...)`, with the same random numbers but
    for what a module draws itself (dropout) and weights that are drawn in eigenbases (see
    `Stacked`). Nets that are alike, and have as many batches in an epoch, take their steps together
    (`Stacked`), which for small nets takes a tenth of the time; others train one after another.

    - `build(x, y)` makes the learner of a set. It is called under the set's own seed, so that the
      first weights of torch's layers follow from it; or give a list of learners, one for each set.
    - `sets`: pairs (x, y), which may differ in length.
    - `seeds`: one for each set, or the first of them.
    - `validation`: a pair (x, y), or None, for each set; its score is noted after each epoch.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, vogn
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(1)
    >>> runs = fit_many(
    ...     lambda x, y: vogn(nn.Linear(1, 1), GaussianLikelihood(noise=0.1), num_data=len(y)),
    ...     [(x, 2 * x), (x[1:], 3 * x[1:])],
    ...     epochs=3,
    ... )
    >>> len(runs), runs[1].predict(x).mean.shape, len(runs[0].history)
    (2, torch.Size([20, 1]), 3)
    """
    if not (isinstance(epochs, int) and epochs >= 1):
        raise ValueError(f"epochs is a whole number of at least 1, got {epochs!r}.")
    nets = _nets(build, sets, batch_size, seeds, validation)
    total = epochs * sum(len(net.batches) for net in nets)
    with Progress(total, 0, f"{len(nets)} nets", progress) as bar:
        for group in _groups(nets):
            if len(group) > 1:
                Together(group, bar).run(epochs)
            else:
                _alone(group[0], epochs, batch_size, bar)
    return [net.run for net in nets]


def _nets(
    build: Build | Sequence[Learner],
    sets: Sequence[tuple[Any, Any]],
    batch_size: int,
    seeds: int | Sequence[int] | None,
    validation: Sequence[tuple[Any, Any] | None] | None,
) -> list[Net]:
    given = list(sets)
    if not given:
        raise ValueError("There are no data sets to learn from; sets is a list of pairs (x, y).")
    first = seeds if isinstance(seeds, int) else 0
    numbers = list(seeds) if isinstance(seeds, Sequence) else range(first, first + len(given))
    checks = [None] * len(given) if validation is None else list(validation)
    learners = [None] * len(given) if callable(build) else list(build)
    for name, values in (("seeds", numbers), ("validation", checks), ("learners", learners)):
        if len(values) != len(given):
            raise ValueError(f"There are {len(given)} sets, but {len(values)} {name}.")
    nets = []
    for k, (one, seed) in enumerate(zip(given, numbers, strict=True)):
        batches = _batches(one, batch_size, k)
        learner = _built(build, one, int(seed)) if callable(build) else build[k]
        if not isinstance(learner, Learner):
            raise TypeError(f"Set {k}: build gives a Learner, got {type(learner).__name__}.")
        nets.append(Net(k, learner, batches, int(seed), _pair(checks[k], k)))
    return nets


def _batches(given: Any, batch_size: int, number: int) -> TensorBatches:
    if not (isinstance(given, tuple | list) and len(given) == 2):
        raise TypeError(f"Set {number} is a pair (x, y), got {type(given).__name__}.")
    try:
        found = as_batches(given, batch_size)
    except ValueError as problem:
        raise ValueError(f"Set {number}: {problem}") from problem
    assert isinstance(found, TensorBatches)
    return found


def _built(build: Build, given: tuple[Any, Any], seed: int) -> Learner:
    with forked_randomness(torch.get_default_device(), seed):
        return build(*given)


def _pair(given: Any, number: int) -> tuple[Any, Any] | None:
    if given is None or (isinstance(given, tuple | list) and len(given) == 2):
        return None if given is None else (given[0], given[1])
    raise TypeError(
        f"validation holds a pair (x, y) or None for each set, got {type(given).__name__} for set "
        f"{number}."
    )


def _groups(nets: list[Net]) -> list[list[Net]]:
    """Nets that can train together; those that cannot are groups of their own."""
    groups: dict[object, list[Net]] = {}
    for net in nets:
        groups.setdefault(net.key if net.together else net.number, []).append(net)
    return list(groups.values())


def _alone(net: Net, epochs: int, batch_size: int, bar: Progress) -> None:
    data = net.batches.x, net.batches.y
    options: dict[str, Any] = {"validation": net.validation, "seed": net.seed}
    try:
        run = fit(
            net.learner, data, epochs=epochs, batch_size=batch_size, progress=False, **options
        )
    except TrainingError as problem:
        raise TrainingError(f"Set {net.number}: {problem}") from problem
    net.state, net.history = run.state, run.history
    bar.advance(epochs * len(net.batches))
