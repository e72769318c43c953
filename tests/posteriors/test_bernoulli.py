"""Binary weights against sums over all sign patterns, and what natural gradients do to them."""

import itertools
import math
from typing import Any

import pytest
import torch
from contracts.family import FamilyContract
from exact import DTYPE, close, flat, generator, named, randn, z_close
from torch import Tensor, nn

import bayesrule as br
from bayesrule.curvature import GGN, NoCurvature
from bayesrule.posteriors import Bernoulli, BernoulliFamily, BernoulliPrior
from bayesrule.posteriors.points import Pull
from bayesrule.rules import Natural
from bayesrule.tensors import vectors
from bayesrule.types import Derivatives, Local, Params

SIGNS = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=6)), dtype=DTYPE)
# The first belief has the means ± tanh(sure).
PARAMS = {"w": randn(2, 2, seed=21).sign().mul(0.7).tanh(), "b": randn(2, seed=22).sign() * 0.7}
PARAMS["b"] = PARAMS["b"].tanh()


class TestBernoulli(FamilyContract):
    family = BernoulliFamily(sure=0.7, temperature=0.6)
    params = PARAMS
    variance_follows_mean = True

    def posterior(self, seed: int = 0) -> Bernoulli:
        logits = {k: 0.8 * randn(*v.shape, seed=seed + 5) for k, v in PARAMS.items()}
        return Bernoulli(logits, self.family.temperature)

    def log_prob(self, q: Any, params: Params) -> Tensor:
        return q.log_prob(params)

    def log_prior(self, params: Params, precision: float) -> Tensor:
        """All sign patterns are equally likely."""
        return -torch.tensor(float(len(SIGNS)), dtype=DTYPE).log()

    def drawn(self, params: Params) -> Params:
        """A relaxed draw stands for its signs."""
        return {name: value.sign() for name, value in params.items()}

    def probabilities(self, q: Bernoulli) -> Tensor:
        """The probability of each pattern of six signs, from those of single weights."""
        up = flat({k: (2.0 * v).sigmoid() for k, v in q.logits.items()})
        return torch.where(SIGNS > 0, up, 1.0 - up).prod(1)

    def test_log_prob_of_every_pattern(self) -> None:
        q = self.posterior()
        found = torch.stack([q.log_prob(named(row, PARAMS)) for row in SIGNS])
        close(found, self.probabilities(q).log())
        close(found.exp().sum(), 1.0)

    def test_moments_over_all_patterns(self) -> None:
        q = self.posterior()
        shares = self.probabilities(q)
        mean = shares @ SIGNS
        close(flat(q.mean), mean)
        close(flat(q.variance()), shares @ (SIGNS - mean).square())

    def test_entropy_and_divergence_over_all_patterns(self) -> None:
        q, p = self.posterior(), self.posterior(1)
        here, there = self.probabilities(q), self.probabilities(p)
        close(q.entropy(), -(here * here.log()).sum())
        close(q.kl(BernoulliPrior()), (here * (here * len(SIGNS)).log()).sum())
        close(q.kl(self.earlier(p)), (here * (here / there).log()).sum())

    def test_prior_density_over_all_patterns(self) -> None:
        prior = self.earlier(self.posterior(1))
        found = torch.stack([prior.log_prob(named(row, PARAMS)) for row in SIGNS]).softmax(0)
        close(found, self.probabilities(self.posterior(1)))

    def test_large_natural_parameters_stay_finite(self) -> None:
        q = Bernoulli({"w": torch.tensor([-400.0, 400.0])})
        close(q.entropy(), 0.0, 1e-6)
        close(q.kl(BernoulliPrior()), 2.0 * torch.tensor(2.0).log(), 1e-6)


def local_of(gradient: Params) -> Local:
    return Local(torch.zeros((), dtype=DTYPE), gradient, None, {})


def slopes(q: Bernoulli, seed: int) -> Params:
    return {name: randn(*value.shape, seed=seed) for name, value in q.logits.items()}


def test_the_scale_of_a_draw_is_its_slope_in_the_mean() -> None:
    """`dθ/dμ` at the same uniform number, μ = tanh λ, against finite differences."""
    q = TestBernoulli().posterior()
    point, ones = q.draw(generator(3)), {k: torch.ones_like(v) for k, v in q.logits.items()}
    scale = point.pulled(local_of(ones), Pull(1.0, 1.0, BernoulliPrior())).gradient
    step = 1e-6

    def moved(sign: float) -> Params:
        logits = {k: (v + sign * step).atanh() for k, v in q.mean.items()}
        return Bernoulli(logits, q.temperature).draw(generator(3)).coordinates

    up, down = moved(1.0), moved(-1.0)
    for name, value in scale.items():
        close(value, (up[name] - down[name]) / (2.0 * step), 1e-6)


def test_a_saturated_draw_still_has_a_gradient() -> None:
    q = Bernoulli({"w": torch.full((3,), 20.0)})
    point = q.draw(generator(1))
    assert bool((point.coordinates["w"] == 1.0).all())
    found = point.pulled(local_of({"w": torch.ones(3)}), Pull(1.0, 1.0, BernoulliPrior()))
    close(found.gradient["w"], torch.ones(3))


def test_a_step_is_that_of_the_paper() -> None:
    """`λ ← (1 − ρ) λ − ρ (N s∘g − λ₀)`."""
    q, before = TestBernoulli().posterior(), TestBernoulli().posterior(1)
    point, gradient = q.draw(generator(2)), slopes(q, 4)
    theta, rate, weight = point.coordinates, 0.3, 11.0
    wanted = {}
    for name, old in q.logits.items():
        s = (1.0 - theta[name] ** 2) / (q.temperature * (1.0 - old.tanh() ** 2))
        pull = weight * s * gradient[name] - before.logits[name]
        wanted[name] = (1.0 - rate) * old - rate * pull
    family = BernoulliFamily()
    prior = family.prior(before, q.mean)
    local = point.pulled(local_of(vectors.scale(gradient, weight)), Pull(1.0, weight, prior))
    rule = Natural(rate, rate)
    memory = rule.init(family, q, weight)
    derivatives = Derivatives(local.loss, local.gradient, None, weight)
    new, _ = rule.step(q, derivatives, prior, memory, 0)
    close(flat(new.logits), flat(wanted), 1e-8)  # type: ignore[attr-defined]


def test_prior_at_draws_pulls_in_natural_parameters() -> None:
    q = TestBernoulli().posterior()
    assert q.draw(generator(1)).position is q.logits


class Weighted(nn.Module):
    """`Σ_j x_j w_j`: of outputs `y f` the loss is linear in the weights."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, dtype=DTYPE))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight).unsqueeze(1)


def learner_of(size: int, count: int, temperature: float = 0.5, **options: Any) -> br.Learner:
    options = {"rule": Natural(1.0), "expectation": br.AtMean(), **options}
    return br.Learner(
        Weighted(size),
        br.GaussianLikelihood(noise=1.0),
        num_data=count,
        posterior=BernoulliFamily(1.0, temperature),
        curvature=NoCurvature(),
        **options,
    )


def orthogonal(size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Regression with orthogonal columns: on binary weights, its loss is linear."""
    x = torch.linalg.qr(randn(size + 2, size, seed=seed)).Q
    return x, randn(size + 2, 1, seed=seed + 1)


def test_with_a_linear_loss_one_step_is_the_exact_posterior() -> None:
    """`½ |y − Xθ|²` is a constant minus `yᵀXθ`, as `θ² = 1`: the posterior is `λ = λ₀ + Xᵀy`."""
    x, y = orthogonal(6)
    learner = learner_of(6, len(x))
    start = learner.init()
    gradient = {"weight": -(x.mT @ y).squeeze(1)}
    derivatives = Derivatives(torch.zeros((), dtype=DTYPE), gradient, None, 8.0)
    found, _ = learner.rule.step(start.posterior, derivatives, learner.prior, start.rule, 0)
    close(found.logits["weight"], (x.mT @ y).squeeze(1))  # type: ignore[attr-defined]
    joint = -0.5 * (y - x @ SIGNS.mT).square().sum(0)
    mean = joint.softmax(0) @ SIGNS
    close(found.mean["weight"], mean)


def test_an_earlier_posterior_goes_on_exactly() -> None:
    """Two halves of the data, one after the other, are the whole data."""
    x, y = orthogonal(6)
    pulls = [{"weight": -(x[part].mT @ y[part]).squeeze(1)} for part in (slice(4), slice(4, 8))]
    learner, posterior = learner_of(6, 4), None
    for gradient in pulls:
        learner = learner_of(6, 4, prior=posterior)
        state = learner.init()
        derivatives = Derivatives(torch.zeros((), dtype=DTYPE), gradient, None, 4.0)
        posterior, _ = learner.rule.step(state.posterior, derivatives, learner.prior, state.rule, 0)
    close(posterior.logits["weight"], (x.mT @ y).squeeze(1))  # type: ignore[union-attr]


def mean_field_optimum(x: Tensor, y: Tensor, noise: float) -> Tensor:
    """Coordinate ascent of the exact bound: `λ_j = −½ (E[ℓ | θ_j = 1] − E[ℓ | θ_j = −1])`."""
    precision, pull = x.mT @ x / noise**2, (x.mT @ y).squeeze(1) / noise**2
    off = precision - precision.diagonal().diag()
    logits = torch.zeros(x.shape[1], dtype=DTYPE)
    for _ in range(500):
        for j in range(len(logits)):
            logits[j] = pull[j] - off[j] @ logits.tanh()
    return logits


def test_draws_find_the_mean_field_optimum() -> None:
    """Eight weights: the bound, its optimum and the posterior by sums over all patterns."""
    x = randn(12, 8, seed=1) / 3.0
    truth = randn(8, seed=2).sign()
    y = (x @ truth).unsqueeze(1) + 0.5 * randn(12, 1, seed=3)
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=8)), dtype=DTYPE)
    joint = -0.5 * (y - x @ signs.mT).square().sum(0)

    def gap(logits: Tensor) -> float:
        """KL from the mean-field belief to the posterior."""
        q = Bernoulli({"w": logits})
        log_q = torch.stack([q.log_prob({"w": row}) for row in signs])
        return float((log_q.exp() * (log_q - joint.log_softmax(0))).sum())

    best = mean_field_optimum(x, y, 1.0)
    rule = Natural(br.schedules.cosine(0.1, 800))
    learner = learner_of(8, 12, temperature=0.15, rule=rule, expectation=br.Draws(4))
    state = learner.init(seed=3)
    for _ in range(800):
        state, _ = learner.step(state, (x, y), donate=True)
    found = state.posterior.logits["weight"]  # type: ignore[attr-defined]
    assert gap(found) < gap(best) + 0.1
    assert gap(torch.zeros(8, dtype=DTYPE)) > gap(best) + 1.0
    assert bool((found.sign() == best.sign()).all())


def test_draws_of_the_relaxation_are_unbiased_where_the_loss_is_linear() -> None:
    """`E[s] = dE[θ]/dμ`: summed over draws against the slope of the relaxed mean."""
    q = Bernoulli({"w": torch.tensor([0.4], dtype=DTYPE)}, 0.5)
    source, ones = generator(0), {"w": torch.ones(1, dtype=DTYPE)}
    pull = Pull(1.0, 1.0, BernoulliPrior())
    found = [q.draw(source).pulled(local_of(ones), pull).gradient["w"] for _ in range(3000)]
    u = (torch.arange(200_000, dtype=DTYPE) + 0.5) / 200_000

    def mean(mu: float) -> Tensor:
        return ((torch.tensor(mu, dtype=DTYPE).atanh() + 0.5 * u.logit()) / 0.5).tanh().mean()

    mu = float(q.mean["w"])
    z_close(torch.stack(found), (mean(mu + 1e-5) - mean(mu - 1e-5)) / 2e-5)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got -1\.0 and 1\.0"):
        BernoulliFamily(sure=-1.0)
    with pytest.raises(TypeError, match=r"not a precision, got 2\.0"):
        learner_of(2, 2, prior_precision=2.0)
    with pytest.raises(ValueError, match="retract would do nothing"):
        learner_of(2, 2, rule=Natural(0.1, retract=True))
    with pytest.raises(TypeError, match="final curvature becomes the precision"):
        learner_of(2, 2, final_curvature=GGN())
    assert BernoulliPrior(1).describe() == 1.0
    with pytest.raises(ValueError, match="logits must be finite, got nan"):
        BernoulliPrior(math.nan)
    other = {"weight": torch.zeros(2, 5)}
    with pytest.raises(ValueError, match=r"'weight' has the shape .* has the shape \(2, 5\)"):
        learner_of(2, 2, prior=BernoulliPrior(other))
