"""Modules with any inputs and outputs learn as the same modules that were wrapped by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from reader import ByHand, Reader, adapted, packed, texts
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import bayesrule as br
from bayesrule.methods import METHODS
from bayesrule.training.checkpoint import CheckpointError
from bayesrule.types import State

NAMES = ["map", "sgd", "vogn", "ogn", "ivon", "mean_field", "k_tied", "noisy_adam", "noisy_kfac",
         "noisy_ekfac", "noisy_full", "laplace", "variational_laplace", "tagi"]  # fmt: skip
KINDS: dict[str, Callable[[type[Reader]], Reader]] = {
    "plain": lambda kind: kind(),
    "tied": lambda kind: kind(tied=True),
    "adapters": lambda kind: adapted(kind()),
}
X, Y = texts()


def learner_of(model: nn.Module, name: str = "vogn", **options: Any) -> br.Learner:
    return METHODS[name](model, br.CategoricalLikelihood(), num_data=len(Y), **options)


def facts(learner: br.Learner, state: State, x: Any) -> dict[str, Tensor]:
    """Means and variances of a belief, and what it predicts."""
    variance = {f"variance of {k}": v for k, v in state.posterior.variance().items()}
    found = br.predict(learner, state, x, batch_size=5)
    return {**state.posterior.mean, **variance, "prediction": found.mean}


def three_steps(learner: br.Learner, x: Any, batch: Any) -> dict[str, Tensor]:
    state = learner.init()
    for _ in range(3):
        state, _ = learner.step(state, batch)
    return facts(learner, learner.finish(state, [batch]), x)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_names_in_and_a_dataclass_out_are_learned_as_by_hand(kind: str, name: str) -> None:
    model, twin = (KINDS[kind](one) for one in (Reader, ByHand))
    expected = three_steps(learner_of(twin, name), packed(X), (packed(X), Y))
    found = three_steps(learner_of(model, name), X, (X, Y))
    torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)
    assert all(value.isfinite().all() for value in found.values())


def test_a_batch_may_be_one_dict_with_labels() -> None:
    learner = learner_of(Reader())
    expected = three_steps(learner, X, (X, Y))
    torch.testing.assert_close(three_steps(learner, X, {**X, "labels": Y}), expected)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_steps_can_be_taken_where_gradients_are_off(context: Any) -> None:
    learner = learner_of(Reader())
    expected = three_steps(learner, X, (X, Y))
    with context():
        given = {name: part.clone() for name, part in X.items()}
        found = three_steps(learner, given, (given, Y.clone()))
    torch.testing.assert_close(found, expected)


class Rows(Dataset[dict[str, Tensor]]):
    """Examples as Hugging Face's datasets give them."""

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {**{name: part[row] for name, part in X.items()}, "labels": Y[row]}


DATA: dict[str, Callable[[], Any]] = {
    "dict and targets": lambda: (X, Y),
    "arrays": lambda: ({name: part.numpy() for name, part in X.items()}, Y.numpy()),
    "one dict": lambda: {**X, "labels": Y},
    "dataset": Rows,
}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("name", ["ivon", "laplace"])
def test_fit_takes_inputs_by_name(name: str, data: str) -> None:
    options: dict[str, Any] = {"epochs": 2, "batch_size": 6}
    expected = br.fit(learner_of(ByHand(), name), (packed(X), Y), **options)
    run = br.fit(learner_of(Reader(), name), DATA[data](), **options)
    assert [e["loss"] for e in run.history] == [e["loss"] for e in expected.history]
    torch.testing.assert_close(run.predict(X).mean, expected.predict(packed(X)).mean)


def test_fit_takes_a_loader_of_dicts() -> None:
    pairs = [(packed(X)[i], Y[i]) for i in range(len(Y))]
    run = br.fit(learner_of(Reader()), DataLoader(Rows(), 6, shuffle=True), epochs=2)
    expected = br.fit(learner_of(ByHand()), DataLoader(pairs, 6, shuffle=True), epochs=2)  # type: ignore[arg-type]
    torch.testing.assert_close(run.state.posterior.mean, expected.state.posterior.mean)


def test_validation_early_stopping_and_choices_take_inputs_by_name() -> None:
    given: dict[str, Any] = {"epochs": 2, "batch_size": 6, "patience": 1}
    run = br.fit(learner_of(Reader()), (X, Y), validation=(X, Y), **given)
    both = packed(X)
    expected = br.fit(learner_of(ByHand()), (both, Y), validation=(both, Y), **given)
    assert [e["validation"] for e in run.history] == [e["validation"] for e in expected.history]
    whole = {**X, "labels": Y}
    again = br.fit(learner_of(Reader()), whole, validation=whole, **given)
    assert [e["validation"] for e in again.history] == [e["validation"] for e in run.history]
    chosen = br.fit(learner_of(Reader()), whole, epochs=1, choose={"temperature": (1.0, 0.1)})
    alike = br.fit(learner_of(ByHand()), (both, Y), epochs=1, choose={"temperature": (1.0, 0.1)})
    assert chosen.learner.temperature == alike.learner.temperature


def test_runs_go_on_and_other_data_are_refused(tmp_path: Path) -> None:
    whole = br.fit(learner_of(Reader()), (X, Y), epochs=3)
    br.fit(learner_of(Reader()), (X, Y), epochs=1, out=tmp_path)
    backwards = dict(reversed(X.items()))
    run = br.fit(learner_of(Reader()), (backwards, Y), epochs=3, out=tmp_path)
    assert len(run.history) == 3 == len(whole.history)
    swapped = dict(zip(X, reversed(X.values()), strict=True))
    with pytest.raises(CheckpointError, match="training inputs"):
        br.fit(learner_of(Reader()), (swapped, Y), epochs=4, out=tmp_path)


def test_many_nets_take_inputs_by_name() -> None:
    sets = [(X, Y), (X, 1 - Y)]
    learners = [learner_of(Reader(), "mean_field") for _ in sets]
    together = br.fit_many(learners, sets, epochs=2, seeds=[3, 4])
    alone = [
        br.fit(learner_of(Reader(), "mean_field"), one, epochs=2, seed=seed)
        for one, seed in zip(sets, (3, 4), strict=True)
    ]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(
            one.state.posterior.mean, other.state.posterior.mean, rtol=1e-4, atol=1e-5
        )


def test_chains_take_inputs_by_name() -> None:
    model, twin = (KINDS["adapters"](one) for one in (Reader, ByHand))
    options: dict[str, Any] = {"draws": 4, "warmup": 10, "chains": 1, "compile": False}
    draws = br.hmc(model, br.CategoricalLikelihood(), (X, Y), **options)
    expected = br.hmc(twin, br.CategoricalLikelihood(), (packed(X), Y), **options)
    torch.testing.assert_close(draws.predict(X).mean, expected.predict(packed(X)).mean)


class Nested(nn.Module):
    """Arguments in tuples and dicts, as recurrent nets and nets with masks have them."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 3)

    def forward(self, pair: tuple[Tensor, Tensor], more: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"logits": self.layer(torch.cat([*pair, more["third"]], 1))}


@pytest.mark.parametrize("name", ["vogn", "ivon", "laplace", "tagi", "mean_field"])
def test_nested_inputs_are_learned_as_one_tensor(name: str) -> None:
    x, y = torch.linspace(-1.0, 1.0, 32).reshape(8, 4).cos(), torch.arange(8) % 3
    nested = (x[:, :1], x[:, 1:2]), {"third": x[:, 2:]}
    learners = [
        METHODS[name](model, br.CategoricalLikelihood(), num_data=8)
        for model in (Nested(), Nested().layer)
    ]
    run, expected = (
        br.fit(learner, (one, y), epochs=2, batch_size=3)
        for learner, one in zip(learners, (nested, x), strict=True)
    )
    torch.testing.assert_close(run.predict(nested).mean, expected.predict(x).mean)
    lists = [[x[:, :1], x[:, 1:2]], {"third": x[:, 2:]}]
    torch.testing.assert_close(run.predict(lists).mean, expected.predict(x).mean)


@pytest.mark.parametrize("field", ["hidden", "logits"])
def test_another_field_is_chosen_by_name(field: str) -> None:
    likelihood = br.CategoricalLikelihood()
    learner = br.ivon(br.Output(Reader(), field), likelihood, num_data=len(Y))
    state, _ = learner.step(learner.init(), (X, Y))
    found = br.predict(learner, state, X).mean
    assert found.shape == (len(Y), {"hidden": 8, "logits": 2}[field])
    assert {name.split(".")[0] for name in state.posterior.mean} == {"module"}


def test_not_finite_inputs_are_named() -> None:
    x = {"third": torch.full((8, 2), torch.nan)}
    model = Nested()
    learner = br.ivon(model, br.CategoricalLikelihood(), num_data=8)
    pair = torch.zeros(8, 1), torch.zeros(8, 1)
    with pytest.raises(ValueError, match="inputs are not finite in columns 0, 1"):
        learner.step(learner.init(), ((pair, x), torch.zeros(8).long()))
