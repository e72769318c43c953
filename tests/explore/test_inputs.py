"""Inputs inferred from outputs: exact where the equations are, refused where they cannot be."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.moments import NoRule
from bayesrule.tensors import tree
from bayesrule.training.models import mlp

NOISE = 0.5


@pytest.fixture(autouse=True)
def _exact(double_precision: None) -> None:
    """Float64 in every test."""


def line(gain: float = 0.3) -> tuple[br.Learner, br.types.State]:
    """One output that is linear in three inputs."""
    model = nn.Linear(3, 1)
    learner = br.tagi(model, br.GaussianLikelihood(noise=NOISE), num_data=1, gain=gain)
    return learner, learner.init()


def curve() -> tuple[br.Learner, br.types.State]:
    """A trained y = x² on [−1, 1]."""
    x = torch.linspace(-1, 1, 100).unsqueeze(1)
    model = mlp(1, 1, hidden=(30,))
    learner = br.tagi(model, br.GaussianLikelihood(noise=0.05), num_data=100)
    return learner, br.fit(learner, (x, x.square()), epochs=20, batch_size=10, progress=False).state


def test_one_linear_output_is_conditioned_on_exactly() -> None:
    learner, state = line()
    x, s, y = torch.randn(4, 3), torch.rand(4, 3) + 0.1, torch.randn(4, 1)
    found = br.explore.infer_inputs(learner, state, x, y, variance=s)
    (w, b), variance = state.posterior.mean.values(), state.posterior.variance()
    v = variance["weight"]
    total = (v * (x.square() + s) + w.square() * s).sum(1, keepdim=True) + variance["bias"]
    gain = s * w / (total + NOISE**2)
    torch.testing.assert_close(found.mean, x + gain * (y - x @ w.T - b))
    torch.testing.assert_close(found.variance, s - gain * s * w)
    torch.testing.assert_close(found.output_mean[0], x @ w.T + b)
    torch.testing.assert_close(found.output_variance[0], total)
    density = torch.distributions.Normal(x @ w.T + b, (total + NOISE**2).sqrt()).log_prob(y)
    torch.testing.assert_close(found.log_prob, density.T)
    torch.testing.assert_close(found.prior_mean, x)
    torch.testing.assert_close(found.std, found.variance.sqrt())


def test_a_chain_of_known_weights_is_inverted_exactly() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    learner = br.tagi(model, br.GaussianLikelihood(noise=NOISE), num_data=1, gain=1e-9)
    slope = math.prod(float(v) for k, v in model.state_dict().items() if "weight" in k)
    x, y = torch.randn(4, 1), torch.randn(4, 1)
    found = br.explore.infer_inputs(learner, learner.init(), x, y, variance=2.0)
    precision = 1 / 2.0 + slope**2 / NOISE**2
    torch.testing.assert_close(found.variance, torch.full((4, 1), 1 / precision))
    mean = (x / 2.0 + slope / NOISE**2 * (y - model(x).detach() + slope * x)) / precision
    torch.testing.assert_close(found.mean, mean)


def test_steps_carry_the_posterior_on_or_only_its_mean() -> None:
    learner, state = line(gain=1e-9)
    x, y = torch.randn(4, 3), torch.randn(4, 1)
    twice = br.explore.infer_inputs(learner, state, x, y, variance=1.0, steps=2)
    once = br.explore.infer_inputs(learner, state, x, y, variance=1.0)
    again = br.explore.infer_inputs(
        learner, state, br.moments.uncertain(once.mean, once.variance), y
    )
    reset = br.explore.infer_inputs(learner, state, br.moments.uncertain(once.mean, 1.0), y)
    torch.testing.assert_close(twice.mean, again.mean)
    torch.testing.assert_close(twice.variance, again.variance)
    without = br.explore.infer_inputs(learner, state, x, y, variance=1.0, steps=2, carry=False)
    torch.testing.assert_close(without.mean, reset.mean)
    torch.testing.assert_close(without.variance, reset.variance)
    assert twice.output_mean.shape == (2, 4, 1)
    assert bool((twice.variance < once.variance).all())


def test_a_trained_network_is_asked_where_it_gives_a_value() -> None:
    learner, state = curve()
    start, wanted = torch.tensor([[0.5], [-0.5]]), torch.tensor([[0.64], [0.64]])
    found = br.explore.infer_inputs(
        learner, state, start, wanted, variance=0.01, steps=30, carry=False
    )
    torch.testing.assert_close(found.mean, torch.tensor([[0.8], [-0.8]]), rtol=0.0, atol=0.02)
    assert bool((found.log_prob[-1] > found.log_prob[0]).all())


def test_no_step_overshoots_where_one_input_drives_many_units() -> None:
    # The variance of the output is summed up over 30 units as if each had an input of its own.
    learner, state = curve()
    start, wanted = torch.tensor([[0.5], [-0.5]]), torch.tensor([[0.64], [0.64]])
    found = br.explore.infer_inputs(
        learner, state, start, wanted, variance=0.01, steps=8, carry=False
    )
    assert bool((found.output_mean < 0.66).all())
    # The curve bends a little within a step.
    assert bool((found.output_mean.diff(dim=0) > -1e-3).all())


def test_batches_make_no_difference() -> None:
    learner, state = curve()
    x, y = torch.rand(7, 1), torch.rand(7, 1)
    whole = br.explore.infer_inputs(learner, state, x, y, variance=0.1, steps=3)
    parts = br.explore.infer_inputs(learner, state, x, y, variance=0.1, steps=3, batch_size=2)
    for name in ("mean", "variance", "output_mean", "output_variance", "log_prob"):
        torch.testing.assert_close(getattr(whole, name), getattr(parts, name))


def test_arrays_and_uncertain_inputs_are_taken_alike() -> None:
    learner, state = line()
    x, y = torch.randn(4, 3), torch.randn(4)
    plain = br.explore.infer_inputs(learner, state, x, y, variance=0.1)
    for given in (
        br.moments.uncertain(x, 0.1),
        (br.moments.uncertain(x, torch.full((4, 3), 0.1)),),
    ):
        torch.testing.assert_close(
            br.explore.infer_inputs(learner, state, given, y).mean, plain.mean
        )
    array = br.explore.infer_inputs(learner, state, x.numpy(), y.numpy(), variance=0.1)
    torch.testing.assert_close(array.mean, plain.mean)


def test_nothing_is_learned_where_nothing_is_wanted() -> None:
    learner, state = line()
    x = torch.randn(2, 3)
    found = br.explore.infer_inputs(learner, state, x, torch.tensor([math.nan, 0.0]), variance=0.1)
    torch.testing.assert_close(found.mean[0], x[0])
    torch.testing.assert_close(found.variance[0], torch.full((3,), 0.1))
    assert not torch.allclose(found.mean[1], x[1])


def test_bounds_hold() -> None:
    learner, state = line(gain=1e-3)
    x, y = torch.zeros(4, 3), torch.full((4, 1), 100.0)
    low, high = torch.tensor([-0.1, -0.2, -0.3]), torch.tensor([0.3, 0.2, 0.1])
    found = br.explore.infer_inputs(learner, state, x, y, variance=1.0, bounds=(low, high))
    at_edge = (found.mean == low) | (found.mean == high)
    assert bool(at_edge.all())


def test_the_state_stays_as_it_is() -> None:
    learner, state = curve()
    before = [v.clone() for _, v in tree.leaves(state) if isinstance(v, Tensor)]
    br.explore.infer_inputs(
        learner, state, torch.rand(3, 1), torch.rand(3, 1), variance=0.1, steps=2
    )
    after = [v for _, v in tree.leaves(state) if isinstance(v, Tensor)]
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(new, old, rtol=0.0, atol=0.0)


def test_many_outputs_leave_a_positive_variance() -> None:
    model = nn.Linear(1, 50)
    learner = br.tagi(model, br.GaussianLikelihood(noise=1e-3), num_data=1, gain=1e-6)
    found = br.explore.infer_inputs(
        learner, learner.init(), torch.zeros(2, 1), torch.ones(2, 50), variance=1.0, steps=3
    )
    assert bool((found.variance > 0).all())
    assert found.mean.isfinite().all()


class Two(nn.Module):
    """A sum of two inputs' maps."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 1), nn.Linear(3, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.left(a) + self.right(b)


def test_of_two_inputs_the_uncertain_one_is_inferred() -> None:
    learner = br.tagi(Two(), br.GaussianLikelihood(noise=0.1), num_data=1)
    state, a, b, y = learner.init(), torch.randn(5, 2), torch.randn(5, 3), torch.randn(5, 1)
    found = br.explore.infer_inputs(
        learner, state, (a, br.moments.uncertain(b, 0.1)), y, batch_size=2
    )
    assert found.mean.shape == (5, 3)
    assert not torch.allclose(found.mean, b)
    with pytest.raises(ValueError, match="one input"):
        br.explore.infer_inputs(learner, state, (a, b), y, variance=0.1)


class TestRefusals:
    def test_variances_that_are_none(self) -> None:
        learner, state = line()
        x, y = torch.zeros(2, 3), torch.zeros(2)
        for variance in (0.0, -1.0, math.inf, torch.tensor([[1.0, 1.0, 0.0]] * 2)):
            with pytest.raises(ValueError, match="positive"):
                br.explore.infer_inputs(learner, state, x, y, variance=variance)
        with pytest.raises(ValueError, match="no variance"):
            br.explore.infer_inputs(learner, state, x, y)
        with pytest.raises(ValueError, match="a variance"):
            br.explore.infer_inputs(learner, state, br.moments.uncertain(x, 1.0), y, variance=1.0)

    def test_whole_numbers(self) -> None:
        learner, state = line()
        x = torch.zeros(2, 3, dtype=torch.long)
        with pytest.raises(TypeError, match="floating-point"):
            br.explore.infer_inputs(learner, state, x, torch.zeros(2), variance=1.0)

    def test_sizes_that_do_not_fit(self) -> None:
        learner, state = line()
        with pytest.raises(ValueError, match="2 inputs but 3"):
            br.explore.infer_inputs(learner, state, torch.zeros(2, 3), torch.zeros(3), variance=1.0)
        with pytest.raises(ValueError, match="steps"):
            br.explore.infer_inputs(
                learner, state, torch.zeros(2, 3), torch.zeros(2), variance=1.0, steps=0
            )
        with pytest.raises(ValueError, match="bounds"):
            br.explore.infer_inputs(
                learner, state, torch.zeros(2, 3), torch.zeros(2), variance=1.0, bounds=(1, 0)
            )

    def test_weights_that_vary_together(self) -> None:
        learner = br.ridge(nn.Linear(3, 1), br.GaussianLikelihood(noise=1.0), num_data=2)
        with pytest.raises(TypeError, match="it would lose what Gaussian over DenseMatrix knows"):
            br.explore.infer_inputs(
                learner, learner.init(), torch.zeros(2, 3), torch.zeros(2), variance=1.0
            )

    def test_a_layer_without_a_rule(self) -> None:
        class Strange(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return torch.fft.fft(x).real

        model = nn.Sequential(nn.Linear(3, 3), Strange(), nn.Linear(3, 1))
        learner = br.tagi(model, br.GaussianLikelihood(noise=1.0), num_data=2)
        with pytest.raises(NoRule, match=r"'fft_fft'.*Layer '1', Strange"):
            br.explore.infer_inputs(
                learner, learner.init(), torch.zeros(2, 3), torch.zeros(2), variance=1.0
            )


def test_diagonal_beliefs_of_other_methods_can_be_asked() -> None:
    learner = br.vogn(nn.Linear(3, 1), br.GaussianLikelihood(noise=NOISE), num_data=10)
    x, y = torch.randn(4, 3), torch.randn(4, 1)
    found = br.explore.infer_inputs(learner, learner.init(), x, y, variance=1.0)
    assert bool(((found.mean - x).abs() > 0).all())
