"""Eight threads with one learner, or one estimator: answers must equal those of one thread."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.methods import METHODS
from bayesrule.sklearn import BayesClassifier, BayesRegressor

THREADS = 8
STATES = 4
LEARNERS = ("vogn", "mean_field", "noisy_kfac", "ivon", "tagi")


def module(seed: int = 0) -> nn.Sequential:
    """A net that draws (dropout) and keeps statistics (batch norm)."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(3, 20), nn.BatchNorm1d(20), nn.Dropout(0.2), nn.ReLU(), nn.Linear(20, 1)
        )


def _condition(model: nn.Module) -> list[Any]:
    """The identity and content of a module's tensors, and its modes."""
    tensors = [*model.parameters(), *model.buffers()]
    return [
        *((id(tensor), tensor.detach().numpy().tobytes()) for tensor in tensors),
        *(part.training for part in model.modules()),
    ]


@contextmanager
def _often_switched() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def together(asked: Sequence[Callable[[], bytes]], rounds: int) -> Counter[str]:
    """Calls from one thread, then from all, `rounds` times each, and compares the answers."""
    alone = [ask() for ask in asked]
    numbers = [i % len(asked) for i in range(rounds * len(asked))]
    with _often_switched(), ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda i: asked[i](), numbers))
    equal = sum(answer == alone[i] for i, answer in zip(numbers, found, strict=True))
    return Counter(answers=len(found), unequal=len(found) - equal)


def _bytes(*tensors: Tensor | np.ndarray[Any, Any]) -> bytes:
    return b"".join(np.asarray(tensor).tobytes() for tensor in tensors)


def learner(name: str, rounds: int) -> dict[str, int]:
    """Predictions and steps of one learner at the same time, from several states."""
    model, inputs = module(), torch.linspace(-1.0, 1.0, 24).reshape(8, 3)
    if name == "tagi":
        model[2].eval()  # moments are not carried through dropout
    batch = inputs, inputs.sum(1, keepdim=True)
    made = METHODS[name](model, br.GaussianLikelihood(noise=0.3), num_data=8)
    states = [made.step(made.init(seed), batch)[0] for seed in range(STATES)]
    before, chance = _condition(model), torch.get_rng_state()

    def predicted(state: br.State, how: Any) -> bytes:
        prediction = br.predict(made, state, inputs, how)
        return _bytes(prediction.mean, prediction.epistemic)

    def stepped(state: br.State) -> bytes:
        after, info = made.step(state, batch)
        return _bytes(*after.posterior.mean.values(), info.loss)

    hows = (None, br.AtMean()) if name == "tagi" else (br.Draws(2), br.AtMean(), br.Linearised())
    asked = [partial(stepped, state) for state in states]
    asked += [partial(predicted, state, how) for state in states for how in hows]
    counts = together(asked, rounds)
    untouched = _condition(model) == before and torch.equal(torch.get_rng_state(), chance)
    return {**counts, "modules changed": int(not untouched)}


def estimator(kind: str, rounds: int) -> dict[str, int]:
    """Predictions of one scikit-learn estimator with the caller's own module."""
    x, models = np.linspace(-1.0, 1.0, 120).reshape(40, 3), list[nn.Module]()

    def network(inputs: int, outputs: int) -> nn.Module:
        models.append(nn.Sequential(nn.Linear(inputs, 8), nn.Dropout(0.2), nn.Linear(8, outputs)))
        return models[-1]

    made = BayesRegressor if kind == "regressor" else BayesClassifier
    model = made("vogn", epochs=2, random_state=0, network=network)
    model.fit(x, x.sum(1) if kind == "regressor" else x.sum(1) > 0)

    def predicted(rows: Any) -> bytes:
        prediction = model.predict_distribution(rows)
        return _bytes(model.predict(rows), prediction.mean, prediction.epistemic)

    before = [_condition(module) for module in models]
    asked = [partial(predicted, x[i::STATES]) for i in range(STATES)]
    counts = together(asked, rounds * STATES)
    same = [_condition(module) for module in models] == before
    return {**counts, "modules changed": int(not same)}


def run(rounds: int, progress: Callable[[str], None]) -> dict[str, dict[str, int]]:
    """All learners and estimators, each in turn."""
    found = {}
    for name in LEARNERS:
        found[f"learner {name}"] = learner(name, rounds)
    for kind in ("regressor", "classifier"):
        found[f"scikit-learn {kind}"] = estimator(kind, rounds)
    progress(f"{sum(one['answers'] for one in found.values())} answers of {THREADS} threads")
    return found
