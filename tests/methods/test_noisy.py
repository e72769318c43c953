"""The noisy methods as people use them: trained, saved, refused; and Laplace with Kronecker()."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from contracts.method import regression_task
from torch import Tensor, nn

import bayesrule as br
from bayesrule import GaussianLikelihood, Kronecker, Learner
from bayesrule.posteriors import Gaussian, Rotated
from bayesrule.training import checkpoint
from bayesrule.types import State

NOISY = ["noisy_adam", "noisy_kfac", "noisy_ekfac", "noisy_tridiagonal", "noisy_full"]
INTERVALS: dict[str, dict[str, Any]] = {
    "usual bases": {"stats_every": 1, "inverse_every": 1},
    "kept bases": {"stats_every": 2, "inverse_every": 3, "damping": 1e-2},
}
# Noisy Adam has no intervals.
EACH = [(name, kind) for name in NOISY for kind in INTERVALS]
each = pytest.mark.parametrize(("name", "kind"), EACH[1:])


def net() -> nn.Module:
    """A small net, the same at each call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))


def learner_of(name: str, kind: str, **options: Any) -> Learner:
    """A method with learned noise."""
    given = {} if name == "noisy_adam" else INTERVALS[kind]
    noise = GaussianLikelihood(averaging=0.1)
    return br.methods.METHODS[name](net(), noise, num_data=64, **{**given, **options})


def trained(learner: Learner, state: State, steps: int) -> State:
    """Some steps on parts of the task."""
    task = regression_task()
    for _ in range(steps):
        rows = torch.arange(8) + 8 * (state.step % 8)
        state, _ = learner.step(state, (task.x[rows], task.y[rows]))
    return state


@each
def test_a_run_goes_on_from_its_checkpoint(name: str, kind: str, tmp_path: Path) -> None:
    learner = learner_of(name, kind)
    state = trained(learner, learner.init(seed=3), 5)
    file = checkpoint.save(tmp_path / "a.safetensors", state)
    loaded, _ = checkpoint.load(file, learner_of(name, kind).init())
    assert checkpoint.same(trained(learner, loaded, 6), trained(learner, state, 6))


@each
def test_the_noise_is_learned(name: str, kind: str) -> None:
    """The task's noise has a standard deviation of 0.1, and the first guess is 1."""
    learner = learner_of(name, kind, prior_precision=0.1)
    task = regression_task()
    run = br.fit(learner, (task.x, task.y), epochs=60, batch_size=16, progress=False)
    found = run.predict(task.x)
    assert (found.mean - task.y).square().mean() < 0.15
    # 64 data against a prior Gamma(6, 6): at best (6 + 32 · 0.01) / (6 + 32).
    assert 0.16 < found.aleatoric.mean() < 0.4  # type: ignore[union-attr]
    assert (found.epistemic > 0).all()  # type: ignore[operator]


@pytest.mark.parametrize("name", ["noisy_kfac", "noisy_ekfac"])
@pytest.mark.parametrize(("inverse_every", "kind"), [(1, Gaussian), (7, Rotated)])
def test_bases_are_kept_where_inverses_are(name: str, inverse_every: int, kind: type) -> None:
    learner = br.methods.METHODS[name](
        net(), GaussianLikelihood(), num_data=64, inverse_every=inverse_every
    )
    assert type(learner.init().posterior) is kind
    options = {"inverse_every": inverse_every, "curvature": br.PerExample()}
    plain = br.methods.METHODS[name](net(), GaussianLikelihood(), num_data=64, **options)
    assert type(plain.init().posterior) is Gaussian
    assert learner.parts()["posterior"] == "Kronecker"


def test_training_does_not_work_the_mean_out() -> None:
    """A product of large matrices for each layer, which only the end of an epoch needs."""
    task, seen = regression_task(), []
    br.fit(
        learner_of("noisy_kfac", "kept bases"),
        (task.x, task.y),
        epochs=2,
        batch_size=16,
        progress=False,
        on_step=lambda state, _: seen.append("mean" in vars(state.posterior)),
    )
    assert seen == [False] * 8


def test_options_reach_the_rule() -> None:
    options: dict[str, Any] = {"damping": 0.1, "kl_clip": 0.2, "stats_every": 3, "inverse_every": 4}
    for name in NOISY[1:]:
        rule = learner_of(name, "usual bases", momentum=0.5, **options).rule
        assert isinstance(rule, br.Natural)
        assert rule.prior_at_draws
        assert {key: getattr(rule, key) for key in options} == options
        assert rule.momentum == br.Average(0.5)
        momentum = br.rules.Velocity(0.3)
        assert learner_of(name, "usual bases", momentum=momentum).rule.momentum is momentum  # type: ignore[attr-defined]
        assert learner_of(name, "usual bases", momentum=None).rule.momentum is None  # type: ignore[attr-defined]


def test_draws_of_the_kept_bases_are_those_of_the_belief() -> None:
    learner = learner_of("noisy_kfac", "kept bases")
    belief = trained(learner, learner.init(), 5).posterior
    assert isinstance(belief, Rotated)
    generator = torch.Generator().manual_seed(0)
    draws = [belief.offset(generator) for _ in range(4000)]
    for name, variance in belief.variance().items():
        found = torch.stack([draw[name] for draw in draws]).var(0)
        torch.testing.assert_close(found, variance, rtol=0.15, atol=0.0)


# --- refusals -------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    """An LSTM with a head."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.memory(x)[0][:, -1])


def test_a_recurrent_layer_is_no_chain() -> None:
    message = r"chains of linear and convolution layers.*'memory' \(LSTM\) is neither"
    with pytest.raises(ValueError, match=message):
        br.noisy_tridiagonal(Recurrent(), GaussianLikelihood(), num_data=8)


@pytest.mark.parametrize("name", [*(k for k in NOISY if k != "noisy_tridiagonal"), "vogn"])
def test_recurrent_layers_are_taken(name: str) -> None:
    learner = br.methods.METHODS[name](Recurrent(), GaussianLikelihood(), num_data=8)
    state, _ = learner.step(learner.init(), (torch.randn(4, 5, 2), torch.randn(4, 1)))
    for weight in ("memory.weight_hh_l0", "memory.bias_ih_l0"):
        after = state.posterior.mean[weight]
        assert after.isfinite().all()
        assert not torch.equal(after, learner.init().posterior.mean[weight])


def test_a_net_that_is_no_chain_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 1))
    with pytest.raises(ValueError, match=r"'1' \(LayerNorm\) is neither. Use Kronecker\(\)"):
        br.noisy_tridiagonal(model, GaussianLikelihood(), num_data=8)


def test_a_wide_layer_is_told_and_gets_a_diagonal() -> None:
    with pytest.warns(UserWarning, match=r"factor of 9,001 × 9,001.*diagonal block"):
        learner = br.noisy_kfac(nn.Linear(9000, 1), GaussianLikelihood(), num_data=8)
    with pytest.warns(UserWarning, match="diagonal block"):
        state = learner.init()
    assert isinstance(state.posterior, Rotated)
    assert set(state.posterior.precision.rest) == {"weight", "bias"}


def test_many_weights_are_too_many_for_a_full_matrix() -> None:
    with pytest.raises(ValueError, match="A full matrix over 90,300 parameters"):
        br.noisy_full(nn.Linear(300, 300), GaussianLikelihood(), num_data=8)
    with pytest.raises(ValueError, match="limit=6 of noisy_full"):
        br.noisy_full(nn.Linear(2, 2), GaussianLikelihood(), num_data=8, limit=5)
    br.noisy_full(nn.Linear(2, 2), GaussianLikelihood(), num_data=8, limit=6)


# --- laplace --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_kronecker_laplace_is_exact_for_one_output(temperature: float) -> None:
    """`Σ a aᵀ / σ²` is a Kronecker product with a number; two batches add up."""
    x, noise, prior = torch.randn(30, 3), 0.5, 0.7
    learner = br.laplace(
        nn.Linear(3, 1),
        GaussianLikelihood(noise=noise),
        num_data=30,
        structure=Kronecker(exact=True),
        prior_precision=prior,
        temperature=temperature,
    )
    state = learner.finish(learner.init(), [(x[:10], x[:10, :1]), (x[10:], x[10:, :1])])
    wide = torch.cat([x, torch.ones(30, 1)], 1)
    precision = wide.mT @ wide / (noise**2 * temperature) + prior * torch.eye(4)
    variance = torch.linalg.inv(precision).diagonal()
    found = state.posterior.variance()
    torch.testing.assert_close(torch.cat([found["weight"][0], found["bias"]]), variance)


@pytest.mark.usefixtures("double_precision")
@pytest.mark.parametrize("structure", [Kronecker(), Kronecker(corrected=True)], ids=repr)
def test_kronecker_laplace_has_the_factors_at_the_mean(structure: Kronecker) -> None:
    task = regression_task()
    x, y = task.x.double(), task.y.double()
    learner = br.laplace(
        net().double(), GaussianLikelihood(noise=0.5), num_data=64, structure=structure
    )
    state = learner.finish(trained(learner, learner.init(), 0), [(x, y)])
    wide = torch.cat([x, torch.ones(64, 1)], 1)
    belief = state.posterior
    assert isinstance(belief, Gaussian)
    factors = belief.precision.layers["0.weight"].factors  # type: ignore[attr-defined]
    torch.testing.assert_close(factors.mean_input, wide.mT @ wide / 64)
    mean = belief.mean
    hidden = torch.tanh(x @ mean["0.weight"].mT + mean["0.bias"])
    slopes = (1.0 - hidden.square()) * mean["2.weight"] / 0.5
    torch.testing.assert_close(factors.output, slopes.mT @ slopes)


@pytest.mark.parametrize("make", [Kronecker, lambda: Kronecker(exact=True)])
def test_kronecker_laplace_predicts_with_a_prior_of_largest_evidence(
    make: Callable[[], Kronecker],
) -> None:
    task = regression_task()
    learner = br.laplace(
        net(), GaussianLikelihood(), num_data=64, structure=make(), empirical_prior=True
    )
    run = br.fit(learner, (task.x, task.y), epochs=30, batch_size=16, progress=False)
    found = run.predict(task.x)
    assert found.log_prob(task.y).isfinite().all()
    assert (found.epistemic > 0).all()  # type: ignore[operator]
