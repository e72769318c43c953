"""Loaders, Datasets and iterators say what all their examples at once do, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import bayesrule as br
from bayesrule.expectations import AtMean, Moments
from bayesrule.predicting import Linearised, MonteCarlo, elbo
from bayesrule.predicting.evaluate import scores, scores_of
from bayesrule.predicting.predict import How

N = 11
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
LABELS = torch.arange(N) % 3
HOWS = [br.Draws(4), AtMean(), Moments(), Linearised(), Linearised(MonteCarlo(20))]


class Rows(Dataset[Any]):
    """Examples by name, with labels."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {"input": X[row], "labels": LABELS[row]}


class Stream(IterableDataset[Any]):
    """Examples without a number of them."""

    def __iter__(self) -> Iterator[Any]:
        return iter(zip(X, LABELS, strict=True))


def collated(rows: list[Any]) -> tuple[Tensor]:
    return (torch.stack([x for x, _ in rows]),)


PAIRS = TensorDataset(X, LABELS)
SOURCES: dict[str, Any] = {
    "pairs": lambda: DataLoader(PAIRS, 4),
    "inputs alone": lambda: DataLoader(X, 4),  # type: ignore[arg-type]
    "one-tuples": lambda: DataLoader(PAIRS, 4, collate_fn=collated),
    "dicts with labels": lambda: DataLoader(Rows(), 4),
    "dicts alone": lambda: [{"input": X[:4]}, {"input": X[4:]}].__iter__(),
    "a Dataset": lambda: PAIRS,
    "a Dataset of dicts": Rows,
    "a stream": lambda: DataLoader(Stream(), 4),
    "a stream of single examples": lambda: DataLoader(Stream(), 1),
    "an iterator": lambda: iter([X[:4], X[4:5], X[5:]]),
    "an iterator of arrays": lambda: iter([X[:4].numpy(), X[4:].numpy()]),
}


def learned() -> tuple[br.Learner, br.types.State]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    learner = br.vogn(model, br.CategoricalLikelihood(), num_data=N)
    state = learner.init()
    for _ in range(3):
        state, _ = learner.step(state, (X, LABELS))
    return learner, state


def same(one: Any, two: Any) -> None:
    for name in ("mean", "epistemic", "aleatoric", "mutual_information"):
        found, wanted = getattr(one, name), getattr(two, name)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_of_any_kind_is_predicted_as_its_inputs(source: str) -> None:
    learner, state = learned()
    same(br.predict(learner, state, SOURCES[source]()), br.predict(learner, state, X))


@pytest.mark.parametrize("how", HOWS, ids=repr)
def test_each_way_of_predicting_takes_a_loader(how: How) -> None:
    learner, state = learned()
    found = br.predict(learner, state, SOURCES["pairs"](), how, seed=3)
    same(found, br.predict(learner, state, X, how, seed=3))


def test_one_batch_is_held_at_a_time() -> None:
    learner, state = learned()
    alive: list[int] = []
    made = 0

    def batches() -> Iterator[Tensor]:
        nonlocal made
        for _ in range(6):
            made += 1
            alive.append(made)
            yield X
            alive.pop()

    class Counting:
        def __iter__(self) -> Iterator[Tensor]:
            for batch in batches():
                assert len(alive) == 1
                yield batch

    assert len(br.predict(learner, state, Counting()).mean) == 6 * N
    assert made == 6


def test_scores_bounds_and_gains_take_loaders() -> None:
    learner, state = learned()
    loader, whole = SOURCES["pairs"](), (X, LABELS)
    expected = scores(br.predict(learner, state, X, br.Draws(4)), LABELS)
    for data in (whole, loader, PAIRS, Rows()):
        assert scores_of(learner, state, data, br.Draws(4)) == pytest.approx(expected, rel=1e-9)
        torch.testing.assert_close(elbo(learner, state, data), elbo(learner, state, whole))
    gain = br.information_gain(learner, state, loader, how=br.Draws(4))
    torch.testing.assert_close(gain, br.information_gain(learner, state, X, how=br.Draws(4)))


def test_a_run_scores_data() -> None:
    learner, state = learned()
    run = br.training.train.Run(learner, state)
    assert run.scores(SOURCES["pairs"]()) == pytest.approx(run.scores((X, LABELS)), rel=1e-9)


@pytest.mark.parametrize("method", [br.vogn, br.laplace, br.tagi])
def test_training_validation_and_calibration_take_loaders(method: Any) -> None:
    def run(train: Any, validation: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3)).double()
        learner = method(model, br.CategoricalLikelihood(), num_data=N)
        return br.fit(learner, train, epochs=2, batch_size=N, validation=validation)

    whole = run((X, LABELS), (X, LABELS))
    for source in ("pairs", "a Dataset of dicts"):
        found = run((X, LABELS), SOURCES[source]())
        assert found.history[-1]["validation"] == pytest.approx(whole.history[-1]["validation"])
        same(found.predict(X), whole.predict(X))
    assert run(SOURCES["pairs"](), SOURCES["pairs"]()).predict(SOURCES["pairs"]()).mean.shape == (
        N,
        3,
    )


def test_a_stream_without_a_length_has_no_epochs() -> None:
    learner, _ = learned()
    with pytest.raises(TypeError, match=r"cannot say how many batches .* with learner\.step"):
        br.fit(learner, SOURCES["a stream"](), epochs=1)


def test_empty_sources_and_odd_batches_are_refused() -> None:
    learner, state = learned()
    with pytest.raises(ValueError, match="no inputs to predict"):
        br.predict(learner, state, iter([]))
    with pytest.raises(ValueError, match="no examples to score"):
        scores_of(learner, state, iter([]))
    with pytest.raises(TypeError, match="gave 3 parts"):
        br.predict(learner, state, iter([(X, X, X)]))
    with pytest.raises(ValueError, match="The inputs"):
        br.predict(learner, state, iter([X, np.full((2, 3), np.nan)]))
