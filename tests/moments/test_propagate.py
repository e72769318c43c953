"""Whole steps of TAGI on unmodified modules, against its equations written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule import moments
from bayesrule.moments import Propagation
from bayesrule.tensors.network import Network
from bayesrule.types import State

from . import equations
from .nets import (
    NOISE,
    RELUS,
    assert_same,
    belief_of,
    cnn,
    learner_of,
    mlp,
    randn,
    uneven,
    written_out,
)

both_relus = pytest.mark.parametrize("relu", RELUS, ids=lambda kind: kind.__name__)


def expected_step(
    model: nn.Sequential,
    state: State,
    relu: type[equations.TangentReLU],
    x: Tensor,
    y: Tensor,
) -> equations.Belief:
    """The belief after one step without bounds, none of which would have bound."""
    before = belief_of(state)
    after = equations.step(written_out(model, before, relu), x, y, NOISE)
    assert all((v > 1e-3 * before[k][1]).all() for k, (_, v) in after.items())
    return after


class TestNets:
    """One step from the same parameters."""

    @both_relus
    @pytest.mark.parametrize("size", [1, 16, 64])
    def test_mlp(self, relu: type[equations.TangentReLU], size: int) -> None:
        model = mlp()
        learner = learner_of(model, relu, gain=0.1)
        state = uneven(learner.init())
        x, y = randn(size, 3, seed=1), randn(size, 2, seed=2)
        expected = expected_step(model, state, relu, x, y)
        found, _ = learner.step(state, (x, y))
        assert_same(belief_of(found), expected)

    @both_relus
    @pytest.mark.parametrize("size", [1, 16])
    def test_cnn(self, relu: type[equations.TangentReLU], size: int) -> None:
        model = cnn()
        learner = learner_of(model, relu, gain=0.05)
        state = uneven(learner.init())
        x, y = randn(size, 1, 8, 8, seed=1), randn(size, 2, seed=2)
        expected = expected_step(model, state, relu, x, y)
        found, _ = learner.step(state, (x, y))
        assert_same(belief_of(found), expected)

    @both_relus
    def test_batches_of_any_size_in_any_order(self, relu: type[equations.TangentReLU]) -> None:
        model = mlp()
        learner = learner_of(model, relu, gain=0.02)
        state = uneven(learner.init())
        for seed, size in enumerate((1, 1000, 7)):
            x, y = randn(size, 3, seed=seed), randn(size, 2, seed=seed + 10)
            expected = expected_step(model, state, relu, x, y)
            state, _ = learner.step(state, (x, y))
            assert_same(belief_of(state), expected)

    def test_images_in_another_memory_format(self) -> None:
        relu, x, y = equations.MatchedReLU, randn(4, 1, 8, 8), randn(4, 2)
        model = cnn().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        learner = learner_of(model, relu, gain=0.05)
        state = uneven(learner.init())
        expected = expected_step(model, state, relu, x, y)
        found, _ = learner.step(state, (x.to(memory_format=torch.channels_last), y))
        assert_same(belief_of(found), expected)

    def test_targets_that_are_missing_say_nothing(self) -> None:
        model, relu = mlp(), equations.MatchedReLU
        learner = learner_of(model, relu, gain=0.1)
        state = uneven(learner.init())
        x, y = randn(6, 3, seed=1), randn(6, 2, seed=2)
        y[2] = torch.nan
        y[4, 0] = torch.nan
        expected = expected_step(model, state, relu, x, y)
        found, info = learner.step(state, (x, y))
        assert_same(belief_of(found), expected)
        assert info.loss.isfinite()
        nothing, info = learner.step(state, (x, torch.full_like(y, torch.nan)))
        assert_same(belief_of(nothing), belief_of(state), 1e-14)
        assert info.loss == 0.0

    def test_a_temperature_weighs_the_batch(self) -> None:
        model, relu = mlp(), equations.MatchedReLU
        x, y = randn(5, 3, seed=1), randn(5, 2, seed=2)
        learner = learner_of(model, relu, gain=0.1, temperature=4.0)
        before = belief_of(uneven(learner.init()))
        after = equations.step(written_out(model, before, relu), x, y, NOISE)
        quarter = {
            k: (m + (after[k][0] - m) / 4, v + (after[k][1] - v) / 4)
            for k, (m, v) in before.items()
        }
        found, _ = learner.step(uneven(learner.init()), (x, y))
        assert_same(belief_of(found), quarter)

    def test_the_loss_is_the_evidence_of_the_batch_scaled_to_the_data(self) -> None:
        model, relu = mlp(), equations.MatchedReLU
        learner = learner_of(model, relu)
        state, x, y = uneven(learner.init()), randn(5, 3, seed=1), randn(5, 2, seed=2)
        mean, variance = equations.forward(written_out(model, belief_of(state), relu), x)
        normal = torch.distributions.Normal(mean, (variance + NOISE**2).sqrt())
        _, info = learner.step(state, (x, y))
        torch.testing.assert_close(info.loss, -normal.log_prob(y).sum() * 100 / 5)


class TestInputs:
    """Inputs that are not known for sure."""

    @both_relus
    def test_their_variance_enters_as_in_the_equations(
        self, relu: type[equations.TangentReLU]
    ) -> None:
        model = mlp()
        learner = learner_of(model, relu, gain=0.1)
        state = uneven(learner.init())
        x, y, spread = randn(7, 3, seed=1), randn(7, 2, seed=2), 0.1 + randn(7, 3, seed=3).square()
        layers = written_out(model, belief_of(state), relu)
        outputs = equations.forward(layers, x, spread)
        to_inputs = equations.backward(layers, *equations.observe(*outputs, y, NOISE))
        propagation = Propagation(learner.network, RELUS[relu])
        variance = state.posterior.variance()
        given = moments.uncertain(x, spread)
        with torch.no_grad():
            found = propagation.forward(state.posterior.mean, variance, {}, given, training=True)
            propagation.back(found, *equations.observe(found.centre, found.variance, y, NOISE))
        torch.testing.assert_close((found.centre, found.variance), outputs)
        node = propagation.inputs[0].node
        torch.testing.assert_close((node.delta, node.eta), to_inputs)

    def test_a_step_and_a_prediction_take_them(self) -> None:
        learner = learner_of(mlp(), equations.MatchedReLU, gain=0.3)
        x, y = randn(6, 3, seed=1), randn(6, 2, seed=2)
        given = moments.uncertain(x, 0.2)
        known, _ = learner.step(learner.init(), (x, y))
        found, _ = learner.step(learner.init(), (given, y))
        assert not torch.allclose(
            known.posterior.mean["0.weight"], found.posterior.mean["0.weight"]
        )
        sure, unsure = (br.predict(learner, known, one) for one in (x, given))
        assert (unsure.epistemic > sure.epistemic).all()

    def test_predictions_are_those_of_draws_of_the_inputs(self) -> None:
        # Weights that are all but known leave the inputs as the only source of variance.
        model = nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 1))
        learner = learner_of(model, equations.MatchedReLU, gain=1e-6)
        x, spread = randn(3, 2, seed=1), 0.5
        found = br.predict(learner, learner.init(), moments.uncertain(x, spread))
        draws = x + spread**0.5 * randn(1_000_000, 3, 2, seed=2)
        with torch.no_grad():
            outputs = model(draws)
        error = outputs.std(0) / 1_000_000**0.5
        assert ((found.mean - outputs.mean(0)).abs() < 5 * error + 1e-5).all()
        torch.testing.assert_close(found.epistemic, outputs.var(0), rtol=0.03, atol=1e-5)


class TestRefusals:
    """What cannot be done is said by name."""

    def test_an_operation_without_a_rule(self) -> None:
        class Strange(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return torch.special.bessel_j0(x)

        model = nn.Sequential(nn.Linear(3, 2), nn.Sequential(nn.ReLU(), Strange()))
        learner = learner_of(model, equations.MatchedReLU)
        words = (
            r"No moment rule for '\w*bessel_j0'\. Known: .*conv2d.*linear.*relu.* "
            r"Add one with moments\.rule\. \(Layer '1\.1', Strange\.\)"
        )
        with pytest.raises(moments.NoRule, match=words):
            learner.step(learner.init(), (randn(4, 3), randn(4, 2)))
        # The module is as it was.
        assert all(type(p) is nn.Parameter for p in model.parameters())

    def test_outputs_that_no_weight_has_a_part_in(self) -> None:
        class Constant(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.ones(2))

            def forward(self, x: Tensor) -> Tensor:
                return x

        learner = learner_of(Constant(), equations.MatchedReLU)
        with pytest.raises(TypeError, match=r"not depend on its uncertain weights .* a Tensor"):
            learner.step(learner.init(), (randn(4, 2), randn(4, 2)))

    def test_a_weight_that_is_not_used_stays(self) -> None:
        model = nn.Sequential(nn.Linear(3, 2))
        model.unused = nn.Linear(2, 2)  # type: ignore[assignment]
        model.forward = model[0].forward  # type: ignore[method-assign]
        learner = learner_of(model, equations.MatchedReLU)
        state, _ = learner.step(learner.init(), (randn(4, 3), randn(4, 2)))
        assert torch.equal(state.posterior.mean["unused.weight"], model.unused.weight)
        expected = learner.init().posterior.variance()["unused.weight"]
        torch.testing.assert_close(state.posterior.variance()["unused.weight"], expected)


class TestFaults:
    """Numbers that are not finite are explained, and the belief is left alone."""

    def attempt(self, x: Tensor, y: Tensor, model: nn.Module | None = None) -> None:
        """One step in float32, as most people take it."""
        module = (mlp() if model is None else model).float()
        likelihood = br.GaussianLikelihood(noise=0.5)
        learner = br.tagi(module, likelihood, num_data=8)
        state = learner.init()
        kept = belief_of(state)
        try:
            learner.step(state, (x.float(), y.float()), donate=True)
        finally:
            assert_same(belief_of(state), kept, 0.0)

    @pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
    def test_columns_of_the_inputs_are_named(self, bad: float) -> None:
        x = randn(5, 3)
        x[3, 1] = x[2, 2] = x[4, 2] = bad
        with pytest.raises(ValueError, match=r"not finite in columns 1, 2 \(3 numbers"):
            self.attempt(x, randn(5, 2))

    def test_also_where_the_target_is_missing(self) -> None:
        x, y = randn(5, 3), randn(5, 2)
        x[3, 0], y[3] = torch.nan, torch.nan
        with pytest.raises(ValueError, match=r"not finite in columns 0 \(1 number"):
            self.attempt(x, y)

    def test_images_are_named_by_their_place_in_the_batch(self) -> None:
        x = randn(5, 1, 8, 8)
        x[2, 0, 3, 3] = torch.nan
        with pytest.raises(ValueError, match="not finite in examples 2 "):
            self.attempt(x, randn(5, 2), cnn())

    def test_many_columns_are_not_all_named(self) -> None:
        with pytest.raises(ValueError, match=r"columns 0, 1, 2, .*, 9, \.\.\. \(40 numbers"):
            self.attempt(torch.full((2, 20), torch.nan), randn(2, 2), nn.Linear(20, 2))

    def test_an_overflow_names_operation_and_layer(self) -> None:
        words = r"variance that 'linear' gives is inf in 40 of 40 places.*\(Layer '0', Linear\.\)"
        with pytest.raises(FloatingPointError, match=words):
            self.attempt(1e25 * torch.ones(5, 3), randn(5, 2))

    def test_an_overflow_deeper_down(self) -> None:
        model = nn.Sequential(nn.Linear(3, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
        with torch.no_grad():
            model[0].weight.fill_(1e15)
            model[1][1].weight.fill_(1e15)  # type: ignore[index, union-attr]
        words = r"mean that 'linear' gives is inf .*\(Layer '1\.1', Linear\.\)"
        with pytest.raises(FloatingPointError, match=words):
            self.attempt(1e10 * torch.ones(5, 3), randn(5, 2), model)

    def test_a_broken_weight_is_named(self) -> None:
        learner = br.tagi(mlp().float(), br.GaussianLikelihood(noise=0.5), num_data=8)
        state = learner.init()
        state.posterior.mean["2.bias"][1] = torch.nan
        with pytest.raises(FloatingPointError, match=r"mean of the weight '2\.bias'"):
            learner.step(state, (randn(4, 3).float(), randn(4, 2).float()))

    def test_targets_are_named(self) -> None:
        with pytest.raises(ValueError, match="targets hold 10 infinite numbers"):
            self.attempt(randn(5, 3), torch.full((5, 2), torch.inf))
        with pytest.raises(FloatingPointError, match="log-probability of the targets is not"):
            self.attempt(randn(5, 3), torch.full((5, 2), 1e30))

    def test_more_classes_than_outputs(self) -> None:
        learner = br.tagi(nn.Linear(3, 3), br.CategoricalLikelihood(), num_data=4)
        with pytest.raises(ValueError, match="hold class 3, but the network has 3 outputs"):
            learner.step(learner.init(), (randn(4, 3), torch.arange(4)))

    def test_targets_of_another_shape(self) -> None:
        with pytest.raises(ValueError, match=r"shape of the network's outputs \(5, 2\), got"):
            self.attempt(randn(5, 3), randn(5, 3))


def test_the_way_is_not_recorded_where_nobody_goes_back() -> None:
    network = Network(mlp())
    propagation = Propagation(network, moments.MomentMatched(), record=False)
    mean = network.params()
    variance = {k: torch.full_like(v, 0.1) for k, v in mean.items()}
    with torch.no_grad():
        outputs = propagation.forward(mean, variance, {}, randn(2, 3), training=False)
    assert outputs.node is None
    assert all(weight.node is None for weight in propagation.weights.values())
