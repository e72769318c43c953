"""Many nets at once are as many nets one by one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule import Learner
from bayesrule.execution.stacked.stack import Stacked
from bayesrule.likelihoods import Likelihood
from bayesrule.tensors import tree
from bayesrule.training import checkpoint
from bayesrule.training.models import mlp
from bayesrule.types import State

pytestmark = pytest.mark.usefixtures("double_precision")
NUM, ROWS = 4, 6


def batch(seed: int, outputs: int = 1, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Data of its own for each net."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(NUM, rows, 3, generator=generator)
    return x, torch.randn(NUM, rows, outputs, generator=generator)


def norm_net() -> nn.Module:
    """A net whose buffers change with each batch."""
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 1))


def equal(a: State, b: State, tolerance: float = 1e-12) -> None:
    """Whether all tensors of two states agree."""
    known = dict(tree.leaves(b))
    for name, value in tree.leaves(a):
        if isinstance(value, Tensor):
            torch.testing.assert_close(value, known[name], rtol=tolerance, atol=tolerance)


def follow(learner: Learner, outputs: int = 1, steps: int = 5, rows: int = ROWS) -> None:
    """Some steps of a stack beside those of its nets."""
    stack = Stacked(learner, NUM)
    state = stack.init(3)
    singles = stack.unstack(state)
    for step in range(steps):
        x, y = batch(step, outputs, rows)
        state, info = stack.step(state, (x, y))
        pairs = [learner.step(one, (x[i], y[i])) for i, one in enumerate(singles)]
        singles = [one for one, _ in pairs]
        for name in ("loss", "kl", "elbo"):
            expected = torch.stack([getattr(found, name) for _, found in pairs])
            torch.testing.assert_close(getattr(info, name), expected, rtol=1e-12, atol=1e-12)
    for one, single in zip(stack.unstack(state), singles, strict=True):
        equal(one, single)


@pytest.mark.parametrize(
    "likelihood",
    [
        br.GaussianLikelihood(noise=0.3),
        br.GaussianLikelihood(),
        br.GaussianLikelihood(noise=br.schedules.exponential(1.0, rate=0.9)),
    ],
    ids=["known", "learned", "scheduled"],
)
def test_steps_are_those_of_single_nets(likelihood: Likelihood) -> None:
    # 18 data: data are new for three steps and known for two.
    follow(br.tagi(mlp(3, 1, hidden=(5,)), likelihood, num_data=18))


def test_several_outputs_and_a_temperature() -> None:
    model = mlp(3, 2, hidden=(5, 4), activation=nn.Tanh)
    follow(br.tagi(model, br.GaussianLikelihood(), num_data=30, temperature=2.0), outputs=2)


def test_noise_that_depends_on_the_input() -> None:
    follow(br.tagi(mlp(3, 2), br.HeteroscedasticLikelihood(), num_data=30))


def test_one_example_at_a_time() -> None:
    follow(br.tagi(mlp(3, 1), br.GaussianLikelihood(noise=0.3), num_data=5), rows=1)


def test_linearised_activations() -> None:
    options = {
        "activations": br.moments.LocallyLinear(),
        "rule": br.Conditioning(largest_share=0.01),
    }
    follow(br.tagi(mlp(3, 1), br.GaussianLikelihood(noise=0.3), num_data=30, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["noisy_kfac", "variational_laplace", "noisy_adam"])
@pytest.mark.parametrize(
    "likelihood", [br.CategoricalLikelihood(), br.likelihoods.OneHotLikelihood(noise=1.0)]
)
@pytest.mark.parametrize("sizes", [None, [6, 5, 6, 5]])
def test_classes_are_drawn_as_for_single_nets(
    name: str, likelihood: Likelihood, sizes: list[int] | None
) -> None:
    model = mlp(3, 3, hidden=(4,), activation=nn.Tanh)
    # Eigenvectors of nearly equal eigenvalues, as after a first curvature that is large, would
    # turn rounding errors into other weight draws.
    apart = {"initial_curvature": 0.1, "rate": 0.5} if name == "noisy_kfac" else {}
    learner = br.methods.find(name)(model, likelihood, num_data=30, **apart)
    stack = Stacked(learner, NUM)
    state = stack.init(3)
    singles = stack.unstack(state)
    for step in range(2):
        x = batch(step)[0]
        y = torch.randint(3, (NUM, ROWS), generator=torch.Generator().manual_seed(step))
        state, _ = stack.step(state, (x, y), sizes=sizes)
        rows = [ROWS] * NUM if sizes is None else sizes
        singles = [
            learner.step(one, (x[i, : rows[i]], y[i, : rows[i]]))[0]
            for i, one in enumerate(singles)
        ]
    for one, single in zip(stack.unstack(state), singles, strict=True):
        equal(one, single, 1e-3 if apart else 1e-9)


def test_buffers_belong_to_each_net() -> None:
    learner = br.tagi(norm_net(), br.GaussianLikelihood(noise=0.3), num_data=30)
    follow(learner)
    stack = Stacked(learner, NUM)
    state, _ = stack.step(stack.init(), batch(0))
    means = state.buffers["1.running_mean"]
    assert means.shape == (NUM, 5)
    assert not torch.equal(means[0], means[1])
    assert not any(value.any() for value in stack.init().buffers.values() if value.ndim == 1)


def learner_of(model: nn.Module | None = None) -> Learner:
    """A small one."""
    return br.tagi(model or mlp(3, 1), br.GaussianLikelihood(noise=0.3), num_data=30)


class TestStates:
    """First states, and the way between one state and many."""

    def test_each_net_starts_as_its_seed_says(self) -> None:
        """As the module would have been built under that seed, whatever it is now."""
        learner = learner_of(mlp(3, 1, seed=99))
        before = torch.random.get_rng_state()
        states = Stacked(learner, 2).unstack(Stacked(learner, 2).init([7, 8]))
        assert torch.equal(before, torch.random.get_rng_state())
        for seed, state in zip((7, 8), states, strict=True):
            equal(replace(state, seed=0), learner_of(mlp(3, 1, seed=seed)).init(), 0.0)

    def test_one_seed_stands_for_those_after_it(self) -> None:
        stack = Stacked(learner_of(), 3)
        assert checkpoint.same(stack.init(5), stack.init([5, 6, 7]))

    def test_apart_and_together(self) -> None:
        stack = Stacked(learner_of(), NUM)
        state = stack.init()
        assert checkpoint.same(stack.stack(stack.unstack(state)), state)

    def test_the_old_state_stays_unless_it_is_given_up(self) -> None:
        stack = Stacked(learner_of(), NUM)
        first = stack.init()
        kept = tree.map_tensors(first, torch.clone)
        once, _ = stack.step(first, batch(0))
        assert checkpoint.same(first, kept)
        again, _ = stack.step(first, batch(0), donate=True)
        assert checkpoint.same(once, again)
        assert not checkpoint.same(first, kept)


def test_predictions_are_those_of_single_nets() -> None:
    learner = learner_of()
    stack = Stacked(learner, NUM)
    state, _ = stack.step(stack.init(), batch(0))
    x, _ = batch(1)
    for i, found in enumerate(stack.predict(state, x)):
        expected = br.predict(learner, stack.unstack(state)[i], x[i])
        assert torch.equal(found.mean, expected.mean)
        assert torch.equal(found.variance, expected.variance)


def test_fewer_data_are_filled_up_with_missing_targets() -> None:
    """A net whose batch is filled up learns as if it had the others alone."""
    learner = br.tagi(mlp(3, 1), br.GaussianLikelihood(), num_data=30)
    stack = Stacked(learner, NUM)
    x, y = batch(0)
    y[1, 4:] = math.nan
    x[1, 4:] = 0.0
    state, _ = stack.step(stack.init(), (x, y))
    # Fewer examples would be taken for as much of the data, so that the scale is not the same.
    fewer, _ = learner.step(stack.unstack(stack.init())[1], (x[1, :4], y[1, :4]))
    found = stack.unstack(state)[1]
    assert torch.equal(
        found.likelihood["a"], fewer.likelihood["a"].expand_as(found.likelihood["a"])
    )
    torch.testing.assert_close(found.likelihood["b"], fewer.likelihood["b"])
    for name, value in fewer.posterior.mean.items():
        torch.testing.assert_close(found.posterior.mean[name], value)


class TestRefusals:
    """What cannot be stacked is said by name."""

    def test_learners_whose_nets_cannot_step_together(self) -> None:
        learner = br.noisy_kfac(mlp(3, 1), br.BernoulliLikelihood(), num_data=30)
        with pytest.raises(TypeError, match="because of targets drawn by BernoulliLikelihood"):
            Stacked(learner, 2)
        with pytest.raises(TypeError, match="made of a Learner, got Linear"):
            Stacked(nn.Linear(3, 1), 2)  # type: ignore[arg-type]

    def test_numbers_of_data_that_do_not_fit(self) -> None:
        with pytest.raises(ValueError, match=r"2 nets need 2 positive num_data, got \[30\]"):
            Stacked(learner_of(), 2, num_data=[30])
        with pytest.raises(ValueError, match="same num_data, since one example alone"):
            Stacked(learner_of(), 2, num_data=[30, 31])
        with pytest.raises(ValueError, match="The learner has num_data=30, got 31"):
            Stacked(learner_of(), 2, num_data=[31, 31])

    def test_sizes_of_batches_in_closed_form(self) -> None:
        stack = Stacked(learner_of(), NUM)
        with pytest.raises(ValueError, match="filled up with NaN targets, not by sizes"):
            stack.step(stack.init(), batch(0), sizes=[6, 5, 6, 6])

    def test_no_nets(self) -> None:
        with pytest.raises(ValueError, match="at least one net, got 0"):
            Stacked(learner_of(), 0)

    def test_seeds_that_are_too_few(self) -> None:
        with pytest.raises(ValueError, match="3 nets but 2 seeds"):
            Stacked(learner_of(), 3).init([1, 2])

    def test_layers_that_cannot_start_anew(self) -> None:
        class Scale(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.factor = nn.Parameter(torch.ones(3))

            def forward(self, x: Tensor) -> Tensor:
                return x * self.factor

        learner = learner_of(nn.Sequential(Scale(), nn.Linear(3, 1)))
        stack = Stacked(learner, 2)
        with pytest.raises(TypeError, match=r"Layer '0' \(Scale\) has weights but no reset_param"):
            stack.init()
        assert (
            stack.stack([learner.init(), learner.init()]).posterior.mean["0.factor"].shape[0] == 2
        )

    def test_states_that_do_not_fit(self) -> None:
        learner = learner_of()
        stack, state = Stacked(learner, 2), learner.init()
        with pytest.raises(ValueError, match=r"stack of 2 .* got 1 of the steps \[0\]"):
            stack.stack([state])
        with pytest.raises(ValueError, match=r"got 2 of the steps \[0, 5\]"):
            stack.stack([state, replace(state, step=5)])

    def test_data_of_another_shape(self) -> None:
        stack = Stacked(learner_of(), NUM)
        state, (x, y) = stack.init(), batch(0)
        for wrong in ((x[0], y[0]), (x[:2], y[:2]), (x[:, :2], y)):
            with pytest.raises(ValueError, match=r"4 nets take inputs and targets \(4, n, "):
                stack.step(state, wrong)
        with pytest.raises(ValueError, match="The batch is empty"):
            stack.step(state, (x[:, :0], y[:, :0]))
        with pytest.raises(ValueError, match=r"4 nets take inputs \(4, n, \.\.\.\), got 2"):
            stack.predict(state, x[:2])

    def test_uncertain_inputs(self) -> None:
        stack = Stacked(learner_of(), NUM)
        x, y = batch(0)
        with pytest.raises(TypeError, match="uncertain ones go one by one"):
            stack.step(stack.init(), (br.moments.uncertain(x, 0.1), y))

    def test_numbers_that_are_not_finite(self) -> None:
        stack = Stacked(learner_of(), NUM)
        x, y = batch(0)
        x[2, 1, 1] = math.nan
        with pytest.raises(ValueError, match="Net 2: The inputs are not finite in columns 1"):
            stack.step(stack.init(), (x, y))
