"""Steps of many nets along their gradients are those of each net alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule import Learner
from bayesrule.execution.stacked.stack import Stacked
from bayesrule.likelihoods import Likelihood
from bayesrule.rules.elbo import _ELEMENTWISE
from bayesrule.tensors import tree
from bayesrule.training import checkpoint
from bayesrule.training.models import mlp
from tests.execution.stacked.beside import NUM, ROWS, Build, Data, equal, follow, real

pytestmark = pytest.mark.usefixtures("double_precision")
LINEAR = ("newton", "ridge")
METHODS = (
    *("map", "adam", "sgd", "rmsprop", "laplace", "ogn", "vogn", "ivon", *LINEAR),
    *("mean_field", "k_tied", "variational_laplace", "noisy_adam", "noisy_full"),
)


def net(*, hidden: int = 5, outputs: int = 1) -> nn.Sequential:
    """A small smooth net."""
    return mlp(3, outputs, hidden=(hidden,), activation=nn.Tanh)


def method(name: str, **options: Any) -> Build:
    """One of the methods on a net, or on a linear model where that is what it is for."""
    model = nn.Linear(3, 1) if name in LINEAR else net()
    return lambda n: getattr(br, name)(model, br.GaussianLikelihood(), num_data=n, **options)


@pytest.mark.parametrize("name", METHODS)
def test_steps_are_those_of_single_nets(name: str) -> None:
    """Random numbers too: each net has its own seed, and the draws that it has alone."""
    follow(method(name))


@pytest.mark.parametrize("name", METHODS)
def test_data_and_batches_that_differ_in_size(name: str) -> None:
    follow(method(name), num_data=(20, 22, 35), sizes=(6, 1, 4))


class Scaled(nn.Module):
    """A linear model times a number that is learned, too."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.scale = nn.Linear(3, 1), nn.Parameter(torch.tensor(1.5))

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.linear(x)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in LINEAR])
def test_a_parameter_that_is_a_single_number(name: str) -> None:
    follow(lambda n: getattr(br, name)(Scaled(), br.GaussianLikelihood(), num_data=n))


@pytest.mark.parametrize("kind", sorted(_ELEMENTWISE, key=lambda kind: kind.__name__))
def test_what_an_optimiser_knows_of_a_single_number_belongs_to_each_net(kind: Any) -> None:
    noise = br.GaussianLikelihood()
    follow(lambda n: br.mean_field(Scaled(), noise, num_data=n, optimiser=kind))


def test_every_net_has_draws_of_its_own() -> None:
    """What the comparison with single nets counts on: other seeds give other weights."""
    stack = Stacked(method("vogn")(20), NUM)
    one = method("vogn")(20).init()
    x, y = (part[:1].expand(NUM, *part.shape[1:]) for part in real(0))
    alike = stack.stack([one, one, one])
    state, _ = stack.step(alike, (x, y))
    weight = state.posterior.mean["0.weight"]
    assert torch.equal(weight[0], weight[1])
    differ = [method("vogn")(20).init(seed) for seed in (0, 1, 2)]
    weight = stack.step(stack.stack(differ), (x, y))[0].posterior.mean["0.weight"]
    assert not torch.equal(weight[0], weight[1])


def test_many_weights_are_drawn_as_by_one_net() -> None:
    """In single precision and in bulk, random numbers come from another source."""
    learner = br.vogn(mlp(3, 1, hidden=(4000,)).float(), br.GaussianLikelihood(), num_data=20)
    stack = Stacked(learner, NUM)
    state = stack.init(5)
    x, y = (part.float() for part in real(0))
    found = stack.unstack(stack.step(state, (x, y))[0])
    for i, one in enumerate(stack.unstack(state)):
        expected, _ = learner.step(one, (x[i], y[i]))
        for name, value in expected.posterior.mean.items():
            torch.testing.assert_close(found[i].posterior.mean[name], value, rtol=1e-3, atol=1e-5)


class TestOptions:
    """Parts and options of the methods."""

    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("vogn", {"draws": 2, "temperature": 0.5}),
            ("ivon", {"clip": 0.01, "learning_rate": br.schedules.cosine(0.1, steps=10)}),
            ("mean_field", {"expectation": br.Draws(2, antithetic=True), "known": ("0.*",)}),
            ("mean_field", {"expectation": br.Draws(4, antithetic=True)}),
            ("mean_field", {"expectation": br.Draws(3)}),
            ("mean_field", {"keep_gradients": True, "kl_weight": br.schedules.linear(0.0, 1.0, 9)}),
            ("mean_field", {"optimiser": torch.optim.NAdam}),
            ("mean_field", {"optimiser": torch.optim.SGD}),
            ("k_tied", {"rank": {"0.*": 2, "*": None}}),
            ("newton", {"learning_rate": 0.5, "rate": 0.5}),
            ("noisy_adam", {"momentum": br.rules.Velocity(0.8), "damped_root": True}),
            ("sgd", {"prior_precision": 2.0}),
        ],
    )
    def test_options_of_methods(self, name: str, options: dict[str, Any]) -> None:
        follow(method(name, **options), num_data=(20, 22, 35), sizes=(6, 5, 4))

    @pytest.mark.parametrize(
        "curvature",
        [br.Fisher(samples=2), br.GGN(), br.PerExample(), br.curvature.SquaredGradient()],
    )
    def test_curvatures(self, curvature: br.curvature.Curvature) -> None:
        def build(n: int) -> Learner:
            return Learner(
                net(outputs=2),
                br.GaussianLikelihood(noise=0.5),
                num_data=n,
                posterior=br.GaussianFamily(br.Diagonal()),
                expectation=br.AtMean(),
                curvature=curvature,
                rule=br.Natural(0.1, 0.1, br.rules.HeavyBall(0.5), damping=0.1),
            )

        follow(build, lambda seed: real(seed, 2), num_data=(20, 22, 35), sizes=(6, 5, 4))


def classes(seed: int) -> tuple[Tensor, Tensor]:
    """Classes 0, 1 and 2."""
    x, _ = real(seed)
    generator = torch.Generator().manual_seed(seed)
    return x, torch.randint(3, (NUM, ROWS), generator=generator)


def counts(seed: int) -> tuple[Tensor, Tensor]:
    """Counts, in one column."""
    x, y = classes(seed)
    return x, y.unsqueeze(2).double()


class TestLikelihoods:
    """Every kind of target."""

    @pytest.mark.parametrize("name", ["map", "vogn", "mean_field", "laplace"])
    @pytest.mark.parametrize(
        ("likelihood", "outputs", "data"),
        [
            (br.CategoricalLikelihood(), 3, classes),
            (br.PoissonLikelihood(), 1, counts),
            (br.HeteroscedasticLikelihood(), 2, real),
            (br.GaussianLikelihood(noise=0.3), 1, real),
            (br.GaussianLikelihood(noise=br.schedules.exponential(1.0, rate=0.9)), 1, real),
        ],
        ids=["classes", "counts", "two outputs", "known", "scheduled"],
    )
    def test_targets(self, name: str, likelihood: Likelihood, outputs: int, data: Data) -> None:
        model = net(outputs=outputs)
        follow(lambda n: getattr(br, name)(model, likelihood, num_data=n), data, sizes=(6, 4, 6))

    def test_targets_without_a_column(self) -> None:
        def flat(seed: int) -> tuple[Tensor, Tensor]:
            x, y = real(seed)
            return x, y.squeeze(2)

        follow(method("vogn"), flat, sizes=(6, 3, 4))


class Squeezed(nn.Module):
    """A module that is no chain of layers: two inputs, one output without an axis of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(2, 4)
        self.last = nn.Linear(4, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(a) + self.second(b))).squeeze(1)


def norm_net() -> nn.Module:
    """A net whose buffers change with each batch."""
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1))


class TestModules:
    """Other modules than plain nets."""

    @pytest.mark.parametrize("name", ["map", "vogn", "mean_field", "ridge"])
    def test_several_inputs(self, name: str) -> None:
        def two(seed: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
            x, y = real(seed)
            return (x, x[..., :2].square()), y.squeeze(2)

        learner = getattr(br, name)(Squeezed(), br.GaussianLikelihood(), num_data=20)
        stack = Stacked(learner, NUM)
        state = stack.init()
        (a, b), y = two(0)
        found, _ = stack.step(state, ((a, b), y))
        for i, one in enumerate(stack.unstack(state)):
            expected, _ = learner.step(one, ((a[i], b[i]), y[i]))
            equal(stack.unstack(found)[i], expected)

    @pytest.mark.parametrize("name", ["map", "ivon"])
    def test_buffers_belong_to_each_net(self, name: str) -> None:
        state = follow(lambda n: getattr(br, name)(norm_net(), br.GaussianLikelihood(), num_data=n))
        means = state.buffers["1.running_mean"]
        assert means.shape == (NUM, 5)
        assert not torch.equal(means[0], means[1])

    @pytest.mark.parametrize("name", ["map", "vogn", "k_tied"])
    def test_frozen_weights_no_bias_and_an_activation_used_twice(self, name: str) -> None:
        act = nn.Softplus()
        parts = nn.Sequential(nn.Linear(3, 4, bias=False), act), nn.Linear(4, 4), act
        model = nn.Sequential(*parts, nn.Linear(4, 1))
        model[1].weight.requires_grad_(False)
        follow(lambda n: getattr(br, name)(model, br.GaussianLikelihood(), num_data=n))

    @pytest.mark.parametrize("name", ["map", "vogn"])
    def test_convolutions_and_activations_in_place(self, name: str) -> None:
        model = nn.Sequential(
            *(nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 2, 2), nn.ReLU(inplace=True)),
            *(nn.Flatten(), nn.Linear(4, 1)),
        )
        follow(lambda n: getattr(br, name)(model, br.GaussianLikelihood(), num_data=n))

    def test_tied_weights(self) -> None:
        layer = nn.Linear(3, 3)
        model = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(3, 1))
        follow(lambda n: br.vogn(model, br.GaussianLikelihood(), num_data=n))

    def test_dropout_differs_from_net_to_net(self) -> None:
        """Of what a module draws itself only the distribution is the same."""
        model = nn.Sequential(nn.Linear(3, 40), nn.Dropout(0.5), nn.Linear(40, 1))
        learner = br.map(model, br.GaussianLikelihood(noise=0.3), num_data=20)
        stack = Stacked(learner, NUM)
        x, y = (part[:1].expand(NUM, *part.shape[1:]) for part in real(0))
        before = torch.random.get_rng_state()
        state, info = stack.step(stack.stack([learner.init()] * NUM), (x, y))
        assert torch.equal(before, torch.random.get_rng_state())
        assert len(set(info.loss.tolist())) == NUM
        again, _ = stack.step(stack.stack([learner.init()] * NUM), (x, y))
        assert checkpoint.same(state, again)


class TestStates:
    """The old state, and the new one."""

    @pytest.mark.parametrize("name", ["map", "vogn", "mean_field"])
    def test_the_old_state_stays_unless_it_is_given_up(self, name: str) -> None:
        stack = Stacked(method(name)(20), NUM)
        first = stack.init()
        kept = tree.map_tensors(first, torch.clone)
        once, _ = stack.step(first, real(0))
        assert checkpoint.same(first, kept)
        again, _ = stack.step(first, real(0), donate=True)
        assert checkpoint.same(once, again)

    def test_figures_of_a_state_that_was_given_up(self) -> None:
        stack = Stacked(method("vogn")(20), NUM)
        state, info = stack.step(stack.init(), real(0))
        stack.step(state, real(1), donate=True)
        with pytest.raises(RuntimeError, match="A later step has changed"):
            _ = info.kl

    def test_a_net_goes_on_alone(self) -> None:
        """With its own seed and its own count of steps."""
        learner = method("mean_field")(20)
        stack = Stacked(learner, NUM)
        state, _ = stack.step(stack.init([8, 9, 10]), real(0))
        alone = stack.unstack(state)[1]
        assert (alone.seed, alone.step) == (9, 1)
        x, y = real(1)
        expected, _ = stack.step(state, (x, y))
        equal(learner.step(alone, (x[1], y[1]))[0], stack.unstack(expected)[1])
        assert checkpoint.same(stack.stack(stack.unstack(state)), state)


class TestFilling:
    """Rows without a target say nothing."""

    @pytest.mark.parametrize("name", ["vogn", "variational_laplace"])
    def test_rows_without_a_target_are_left_out(self, name: str) -> None:
        learner = method(name)(20)
        stack = Stacked(learner, NUM)
        state, (x, y) = stack.init(), real(0)
        y[1, 0], y[1, 3] = math.nan, math.nan
        x[1, 3] = math.inf
        found, _ = stack.step(state, (x, y))
        rows = [1, 2, 4, 5]
        expected, _ = learner.step(stack.unstack(state)[1], (x[1, rows], y[1, rows]))
        equal(stack.unstack(found)[1], expected)

    def test_one_target_of_several_that_is_missing_is_seen(self) -> None:
        """Only whole rows fill up; that a number is missing must not be hidden."""
        learner = br.map(net(outputs=2), br.GaussianLikelihood(noise=0.3), num_data=20)
        x, y = real(0, 2)
        y[1, 0, 0] = math.nan
        _, info = Stacked(learner, NUM).step(Stacked(learner, NUM).init(), (x, y))
        assert info.loss.isnan().tolist() == [False, True, False]

    def test_refusals(self) -> None:
        stack = Stacked(method("vogn")(20), NUM)
        state, (x, y) = stack.init(), real(0)
        for wrong in ([6, 6], [6, 6, 0], [6, 6, 7]):
            with pytest.raises(ValueError, match="3 nets need 3 sizes from 1 to 6, got"):
                stack.step(state, (x, y), sizes=wrong)
        y[2] = math.nan
        with pytest.raises(ValueError, match="Net 2 has no target in this batch"):
            stack.step(state, (x, y))

    def test_batch_norm_looks_at_all_rows(self) -> None:
        learner = br.map(norm_net(), br.GaussianLikelihood(), num_data=20)
        stack = Stacked(learner, NUM)
        with pytest.raises(ValueError, match="cannot be stacked, since batch norm mixes"):
            stack.step(stack.init(), real(0), sizes=[6, 5, 6])
        with pytest.raises(ValueError, match="same num_data, since batch norm mixes"):
            Stacked(learner, 2, num_data=[20, 21])
