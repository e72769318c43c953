"""TAGI as a method, and closed-form predictions of other diagonal beliefs."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule import Learner, moments
from bayesrule.likelihoods import PoissonLikelihood
from bayesrule.matrices import Blocks, Dense, Diagonal, Isotropic, Known, LowRank, Structure
from bayesrule.posteriors import FanIn, Gaussian, GaussianFamily
from bayesrule.rules import Conditioning
from bayesrule.tensors import distributed
from bayesrule.training.net import renew_averages
from bayesrule.types import State

pytestmark = pytest.mark.usefixtures("double_precision")


def net(*hidden: int) -> nn.Sequential:
    """A small net for two inputs and one output."""
    sizes = [2, *hidden]
    layers = [layer for a, b in itertools.pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 1))


def curve(num: int = 60) -> tuple[Tensor, Tensor]:
    """A curve over two inputs with a little noise."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num, 2, generator=generator)
    noise = 0.1 * torch.randn(num, 1, generator=generator)
    return x, (2 * x[:, :1]).sin() + x[:, 1:] + noise


def trained(learner: Learner, steps: int = 20) -> State:
    """Some steps over the curve in batches of twenty."""
    x, y = curve()
    state = learner.init()
    for step in range(steps):
        rows = torch.arange(60).split(20)[step % 3]
        state, _ = learner.step(state, (x[rows], y[rows]))
    return state


class TestLearning:
    """From a module's own weights to predictions that know what they do not know."""

    def test_a_curve(self) -> None:
        learner = br.tagi(net(50), br.GaussianLikelihood(noise=0.1), num_data=60)
        x, y = curve()
        run = br.fit(learner, (x, y), epochs=30, batch_size=10)
        found = run.predict(x)
        error = (found.mean - y).square().mean().sqrt()
        assert float(error) < 0.5 * float(y.std())
        far = run.predict(x + 20.0)
        assert float(far.epistemic.mean()) > 10 * float(found.epistemic.mean())

    def test_classes(self) -> None:
        x, _ = curve()
        labels = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
        model = nn.Sequential(nn.Linear(2, 50), nn.ReLU(), nn.Linear(50, 4))
        learner = br.tagi(model, br.CategoricalLikelihood(), num_data=60)
        found = br.fit(learner, (x, labels), epochs=30, batch_size=10).predict(x)
        assert float((found.labels == labels).double().mean()) > 0.9
        torch.testing.assert_close(found.probs.sum(1), torch.ones(60))

    def test_variances_only_fall(self) -> None:
        """With targets whose noise is known, no datum makes a weight less sure."""
        learner = br.tagi(net(6), br.GaussianLikelihood(noise=0.3), num_data=60)
        before = learner.init().posterior.variance()
        after = trained(learner, 5).posterior.variance()
        assert all((after[k] <= before[k] * (1 + 1e-12)).all() for k in before)
        assert any((after[k] < 0.9 * before[k]).any() for k in before)

    def test_there_is_no_randomness(self) -> None:
        learner = br.tagi(net(6), br.GaussianLikelihood(noise=0.3), num_data=60)
        x, y = curve()
        one, two = (learner.step(learner.init(seed), (x, y))[0] for seed in (0, 1))
        assert torch.equal(one.posterior.mean["0.weight"], two.posterior.mean["0.weight"])

    def test_the_module_stays_as_it_is(self) -> None:
        model = net(6)
        kept = {k: v.clone() for k, v in model.state_dict().items()}
        trained(br.tagi(model, br.GaussianLikelihood(noise=0.3), num_data=60), 2)
        assert all(torch.equal(v, kept[k]) for k, v in model.state_dict().items())
        assert all(p.grad is None for p in model.parameters())


def test_bounds_follow_the_examples_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Conditioning(reach=0.01, largest_share=0.01)
    learner = br.tagi(net(6), br.GaussianLikelihood(noise=0.1), num_data=60, rule=rule)
    before, x, y = learner.init(), torch.ones(1, 2), torch.full((1, 1), 100.0)

    def furthest() -> float:
        state, _ = learner.step(before, (x, y))
        steps = [
            (state.posterior.mean[k] - v).abs() / before.posterior.variance()[k].sqrt()
            for k, v in before.posterior.mean.items()
        ]
        return max(float(step.max()) for step in steps)

    assert furthest() > 1.0
    # Another rank has an example of the batch too.
    monkeypatch.setattr(distributed, "count_over_ranks", lambda count, device: count + 1)
    assert furthest() == pytest.approx(0.01)


class TestTheFirstBelief:
    """Means are the module's own; standard deviations are gain / √fan_in."""

    def test_gains(self) -> None:
        model = nn.Sequential(nn.Conv2d(3, 4, 5), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(8, 2))
        gain = FanIn(weight=0.5, bias=0.2, norm=0.1)
        state = br.tagi(model, br.GaussianLikelihood(noise=1.0), num_data=4, gain=gain).init()
        deviation = {k: v.sqrt().unique() for k, v in state.posterior.variance().items()}
        expected = {
            "0.weight": 0.5 / math.sqrt(75),
            "0.bias": 0.2 / math.sqrt(75),
            "1.weight": 0.1 / math.sqrt(4),
            "1.bias": 0.1 / math.sqrt(4),
            "3.weight": 0.5 / math.sqrt(8),
            "3.bias": 0.2 / math.sqrt(8),
        }
        for name, value in expected.items():
            torch.testing.assert_close(deviation[name], torch.tensor([value]))
            assert torch.equal(state.posterior.mean[name], model.get_parameter(name))

    @pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
    def test_gains_that_are_none(self, bad: float) -> None:
        with pytest.raises(ValueError, match="Gains must be positive, got FanIn"):
            br.tagi(net(3), br.GaussianLikelihood(noise=1.0), num_data=4, gain=bad)
        with pytest.raises(ValueError, match="Gains must be positive"):
            FanIn(bias=bad)

    def test_they_are_for_diagonal_beliefs(self) -> None:
        with pytest.raises(TypeError, match=r"FanIn\(\) is for Diagonal\(\), got Dense\(\)"):
            GaussianFamily(Dense(), spread=FanIn())


def test_a_likelihood_without_a_closed_form_says_so() -> None:
    with pytest.raises(TypeError, match="PoissonLikelihood has no closed form for Gaussian"):
        br.tagi(net(3), PoissonLikelihood(), num_data=4)


def believing(structure: Structure, model: nn.Module, precision: float = 20.0) -> tuple[Any, State]:
    """A learner and a state whose belief has this structure."""
    learner = br.laplace(model, br.GaussianLikelihood(noise=0.3), num_data=60)
    state = learner.init()
    belief = Gaussian(state.posterior.mean, structure.identity(state.posterior.mean, precision))
    return learner, dataclasses.replace(state, posterior=belief)


class TestPredictions:
    """`how=Moments()` for beliefs that were learned in other ways."""

    @pytest.mark.parametrize(("method", "num"), [(br.vogn, 20_000), (br.ivon, 5_000)])
    def test_one_hidden_layer_is_as_draws_say(self, method: Any, num: int) -> None:
        """Given the inputs, its units are independent and Gaussian, so nothing is approximate."""
        learner = method(net(5), br.GaussianLikelihood(noise=0.3), num_data=60, learning_rate=0.05)
        state, x = trained(learner), curve()[0][:8]
        found = br.predict(learner, state, x, how=br.Moments())
        draws = br.predict(learner, state, x, how=br.Draws(num))
        error = (draws.epistemic / num).sqrt()
        assert ((found.mean - draws.mean).abs() < 5 * error).all()
        # The variance of a variance of Gaussians is 2 s² / n; these have somewhat longer tails.
        torch.testing.assert_close(found.epistemic, draws.epistemic, rtol=9 / num**0.5, atol=0.0)
        torch.testing.assert_close(found.aleatoric, draws.aleatoric)

    def test_two_hidden_layers_are_close_to_draws(self) -> None:
        learner = br.vogn(net(12, 8), br.GaussianLikelihood(noise=0.3), num_data=60)
        state, x = trained(learner), curve()[0][:8]
        found = br.predict(learner, state, x, how=br.Moments())
        draws = br.predict(learner, state, x, how=br.Draws(5_000))
        torch.testing.assert_close(found.mean, draws.mean, rtol=0.1, atol=0.1)
        torch.testing.assert_close(found.epistemic, draws.epistemic, rtol=0.5, atol=0.0)

    def test_locally_linear_activations_are_a_choice(self) -> None:
        model = net(5)
        learner, state = believing(Diagonal(), model)
        x = curve()[0][:8]
        with torch.no_grad():
            at_mean = model(x)
        linear = br.predict(learner, state, x, how=br.Moments(moments.LocallyLinear()))
        matched = br.predict(learner, state, x, how=br.Moments(moments.MomentMatched()))
        torch.testing.assert_close(linear.mean, at_mean)
        assert not torch.allclose(matched.mean, at_mean)

    def test_an_isotropic_belief_is_as_a_diagonal_one(self) -> None:
        model, x = net(5), curve()[0]
        found, expected = (
            br.predict(*believing(structure, model), x, how=br.Moments())
            for structure in (Isotropic(), Diagonal())
        )
        torch.testing.assert_close(found.mean, expected.mean)
        torch.testing.assert_close(found.variance, expected.variance)

    @pytest.mark.parametrize("inner", [Diagonal(), Isotropic()])
    def test_of_some_weights_the_others_are_known(self, inner: Structure) -> None:
        model, x = net(5), curve()[0]
        learner, state = believing(Blocks({"2.*": inner, "*": Known()}), model)
        found = br.predict(learner, state, x, how=br.Moments())
        with torch.no_grad():
            hidden = F.relu(model[0](x))
            torch.testing.assert_close(found.mean, model(x))
        expected = (hidden.square().sum(1, keepdim=True) + 1.0) / 20.0
        torch.testing.assert_close(found.epistemic, expected)

    @pytest.mark.parametrize(
        "structure", [Dense(), LowRank(2), Blocks({"2.weight": Dense(), "*": Known()})]
    )
    def test_beliefs_that_are_not_independent_are_refused(self, structure: Structure) -> None:
        learner, state = believing(structure, net(5))
        with pytest.raises(
            TypeError, match=r"Gaussian over .* knows .*Linearised\(\) or Draws\(num\)"
        ):
            br.predict(learner, state, curve()[0], how=br.Moments())

    def test_batches_of_inputs_make_no_difference(self) -> None:
        learner, state = believing(Diagonal(), net(5))
        x = curve()[0]
        whole, parts = (
            br.predict(learner, state, x, how=br.Moments(), batch_size=size) for size in (100, 7)
        )
        torch.testing.assert_close(whole.mean, parts.mean)
        torch.testing.assert_close(whole.variance, parts.variance)


class TestSettling:
    """Statistics of normalising layers for the weights as they now are."""

    def learner(self) -> br.Learner:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, momentum=0.3), nn.Linear(3, 1))
        return br.tagi(model, br.GaussianLikelihood(noise=0.1), num_data=30)

    def test_every_batch_counts_the_same(self) -> None:
        learner = self.learner()
        state = learner.init()
        batches = [(torch.randn(5, 2), torch.randn(5, 1)) for _ in range(4)]
        settled = renew_averages(learner, state, batches, most=3)
        mean, variance = [], []
        for x, _ in batches[:3]:
            weight, bias = (state.posterior.mean[f"0.{k}"] for k in ("weight", "bias"))
            v, vb = (state.posterior.variance()[f"0.{k}"] for k in ("weight", "bias"))
            hidden, spread = x @ weight.mT + bias, x.square() @ v.mT + vb
            mean.append(hidden.mean(0))
            variance.append(hidden.var(0) + spread.mean(0))
        found = settled.buffers
        torch.testing.assert_close(found["1.running_mean"], torch.stack(mean).mean(0))
        torch.testing.assert_close(found["1.running_var"], torch.stack(variance).mean(0))
        assert state.buffers["1.running_mean"].eq(0).all(), "the old state is left alone"
        assert learner.model[1].momentum == 0.3, "and so is the module"

    def test_others_keep_their_state(self) -> None:
        batch = torch.randn(5, 2), torch.randn(5, 1)
        learner = self.learner()
        other = br.vogn(learner.model, learner.likelihood, num_data=30)
        state = other.init()
        assert renew_averages(other, state, [batch]) is state
        plain = br.tagi(nn.Linear(2, 1), learner.likelihood, num_data=30)
        state = plain.init()
        assert renew_averages(plain, state, [batch]) is state

    def test_a_run_ends_settled(self) -> None:
        learner = self.learner()
        x, y = torch.randn(30, 2), torch.randn(30, 1)
        run = br.fit(learner, (x, y), epochs=2, batch_size=10, validation=(x, y))
        assert int(run.state.buffers["1.num_batches_tracked"]) == 3, "one pass of plain averages"
