"""Steps of a learner: states are values, and everything else is left alone."""

import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from learning import Spy, equal_trees, small_batch, small_learner, small_model
from torch import Tensor, nn

import bayesrule as br
from bayesrule import (
    GGN,
    CategoricalLikelihood,
    Dense,
    Draws,
    Fisher,
    GaussianFamily,
    Learner,
    PerExample,
)
from bayesrule.tensors import tree
from bayesrule.types import State

pytestmark = pytest.mark.usefixtures("double_precision")


DRAWN: dict[str, Any] = {"expectation": Draws(2), "curvature": Fisher()}


def _busy_model() -> nn.Module:
    """Batch norm, dropout, a frozen part, mixed modes and a gradient of its own."""
    model = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(4, 3)
    )
    model[0].weight.requires_grad_(False)
    model[3].eval()
    model[4].bias.grad = torch.ones(3)
    return model


def test_init_and_step_leave_the_module_and_the_world_alone() -> None:
    model = _busy_model()
    before, modes = deepcopy(model.state_dict()), [m.training for m in model.modules()]
    batch = small_batch()
    copies = batch[0].clone(), batch[1].clone()
    worlds = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index] # noqa: NPY002
    learner = small_learner(model, **DRAWN)
    state = learner.init(seed=1)
    for _ in range(3):
        state, _ = learner.step(state, batch)
    assert equal_trees(before, model.state_dict())
    assert modes == [m.training for m in model.modules()]
    assert [p.requires_grad for p in model.parameters()] == [False, *[True] * 5]
    grads = {k: p.grad for k, p in model.named_parameters() if p.grad is not None}
    assert list(grads) == ["4.bias"]
    assert torch.equal(grads["4.bias"], torch.ones(3))
    assert torch.equal(torch.get_rng_state(), worlds[0])
    assert random.getstate() == worlds[1]
    assert np.array_equal(np.random.get_state()[1], worlds[2])  # type: ignore[index] # noqa: NPY002
    assert equal_trees(dict(enumerate(batch)), dict(enumerate(copies)))


def _run(learner: Learner, seed: int, steps: int = 3) -> State:
    state = learner.init(seed)
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        x = torch.randn(6, 3, generator=generator)
        state, _ = learner.step(state, (x, torch.arange(6) % 3))
    return state


def test_the_same_seed_gives_the_same_run_whatever_the_world_does() -> None:
    learner = small_learner(_busy_model(), **DRAWN)
    first = _run(learner, seed=3)
    torch.manual_seed(99)
    torch.rand(7)
    assert equal_trees(first, _run(learner, seed=3))
    assert not equal_trees(first.posterior, _run(learner, seed=4).posterior)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("draws", {"expectation": Draws(1), "curvature": PerExample()}),
        ("targets", {"curvature": Fisher()}),
        ("dropout", {"curvature": PerExample()}),
    ],
)
def test_each_kind_of_randomness_follows_from_the_seed(kind: str, parts: dict[str, Any]) -> None:
    extra = [nn.Dropout(0.5)] if kind == "dropout" else []
    learner = small_learner(nn.Sequential(nn.Linear(3, 3), *extra), **parts)
    assert equal_trees(_run(learner, 1, steps=1), _run(learner, 1, steps=1))
    assert not equal_trees(_run(learner, 1, steps=1).posterior, _run(learner, 2, steps=1).posterior)


def test_a_step_without_randomness_does_not_depend_on_the_seed() -> None:
    learner = small_learner(curvature=GGN())
    assert equal_trees(_run(learner, 1).posterior, _run(learner, 2).posterior)


def test_randomness_differs_from_step_to_step() -> None:
    learner = small_learner(nn.Linear(3, 3), rule=Spy(), **DRAWN)
    x, y = small_batch()
    first, _ = learner.step(learner.init(), (x, y))
    second, _ = learner.step(first, (x, y))
    assert not torch.equal(first.rule["seen"].loss, second.rule["seen"].loss)


METHODS: dict[str, Callable[..., Learner]] = dict(br.methods.METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_states_are_values(name: str) -> None:
    # Newton's method needs a convex loss, so a linear model.
    model = nn.Linear(3, 3) if name == "newton" else small_model()
    learner = METHODS[name](model, CategoricalLikelihood(), num_data=24)
    batch = small_batch()
    state, _ = learner.step(learner.init(), batch)
    kept = tree.map_tensors(state, Tensor.clone)
    first, info = learner.step(state, batch)
    second, again = learner.step(state, batch)
    assert equal_trees(first, second)
    assert torch.equal(info.loss, again.loss)
    assert equal_trees(state, kept)
    assert first.step == state.step + 1


@pytest.mark.parametrize("name", list(METHODS))
def test_a_state_that_is_given_up_leads_to_the_same_place(name: str) -> None:
    learner = METHODS[name](nn.Linear(3, 2), CategoricalLikelihood(), num_data=20)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(20, 3, generator=generator)
    y = torch.randint(0, 2, (20,), generator=generator)
    kept = learner.init(seed=1)
    given = tree.map_tensors(kept, torch.clone)
    for _ in range(4):
        kept, info = learner.step(kept, (x, y))
        given, other = learner.step(given, (x, y), donate=True)
        assert torch.equal(info.kl, other.kl)
    assert equal_trees(kept, given)


def test_info_of_a_state_that_was_given_up_says_so() -> None:
    learner = METHODS["vogn"](nn.Linear(3, 2), CategoricalLikelihood(), num_data=4)
    batch = torch.zeros(4, 3), torch.zeros(4, dtype=torch.long)
    state, info = learner.step(learner.init(), batch, donate=True)
    learner.step(state, batch, donate=True)
    with pytest.raises(RuntimeError, match=r"has changed this state \(donate=True\)"):
        _ = info.kl


def test_batch_norm_buffers_live_in_the_state() -> None:
    model = _busy_model()
    x, y = small_batch()
    learner = small_learner(model, curvature=PerExample())
    state = learner.init()
    moved, _ = learner.step(state, (x, y))
    reference = deepcopy(model).train()
    reference(x)
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        torch.testing.assert_close(moved.buffers[name], reference.state_dict()[name])
        torch.testing.assert_close(state.buffers[name], model.state_dict()[name])
    assert int(moved.buffers["1.num_batches_tracked"]) == 1


def test_frozen_parameters_stay() -> None:
    model = _busy_model()
    learner = small_learner(model, **DRAWN)
    state = _run(learner, 0)
    assert "0.weight" not in state.posterior.mean
    assert torch.equal(state.buffers["0.weight"], model[0].weight)  # type: ignore[index]


def test_tied_weights_are_learned_as_one() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    learner = small_learner(model, curvature=GGN(), posterior=GaussianFamily(Dense()))
    batch = small_batch()
    state, _ = learner.step(learner.init(), batch)
    assert list(state.posterior.mean) == ["0.weight", "0.bias", "2.bias"]
    watcher = small_learner(model, curvature=GGN(), rule=Spy())
    seen = watcher.step(watcher.init(), batch)[0].rule["seen"]
    loss = 4.0 * nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum")
    want = torch.autograd.grad(loss, list(model.parameters()))
    torch.testing.assert_close(list(seen.gradient.values()), list(want))
