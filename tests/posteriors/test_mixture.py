"""Mixtures of Gaussians against autograd, quadrature and posteriors on a grid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from contracts.family import PARAMS, FamilyContract
from exact import DTYPE, close, flat, generator, named, randn, z_close
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from bayesrule.matrices import Diagonal, DiagonalMatrix
from bayesrule.posteriors import Gaussian, GaussianFamily, Mixture, MixtureFamily
from bayesrule.posteriors.mixture import BASELINE, LOGITS
from bayesrule.posteriors.points import Pull
from bayesrule.rules import Natural
from bayesrule.types import Derivatives, Local, Params


class TestMixture(FamilyContract):
    family = MixtureFamily(3, spread=0.8, curvature=0.4)

    def posterior(self, seed: int = 0) -> Mixture:
        means = {k: v + randn(3, *v.shape, seed=seed + 1) for k, v in PARAMS.items()}
        precision = {k: randn(3, *v.shape, seed=seed + 2).exp() for k, v in PARAMS.items()}
        baseline = torch.zeros((), dtype=DTYPE)
        return Mixture(means, DiagonalMatrix(precision), randn(3, seed=seed + 3), baseline)

    def log_prob(self, q: Any, params: Params) -> Tensor:
        return q.log_prob(params)

    def reference(self, q: Mixture) -> MixtureSameFamily:
        """The same mixture as torch has it."""
        means, precision = (
            torch.cat([one[k].flatten(1) for k in PARAMS], dim=1)
            for one in (q.means, q.precision.values)
        )
        parts = Independent(Normal(means, precision.rsqrt()), 1)
        return MixtureSameFamily(Categorical(logits=q.logits), parts)

    def test_density_and_moments_are_those_of_torch(self) -> None:
        q = self.posterior()
        reference, theta = self.reference(q), randn(6, seed=9)
        close(q.log_prob(named(theta, PARAMS)), reference.log_prob(theta))
        close(flat(q.mean), reference.mean)
        close(flat(q.variance()), reference.variance)

    def test_slopes_of_the_log_density(self) -> None:
        q, theta = self.posterior(), randn(6, seed=9)

        def value(one: Tensor) -> Tensor:
            return q.log_prob(named(one, PARAMS))

        first, second = q.slopes(named(theta, PARAMS))
        close(flat(first), torch.autograd.functional.jacobian(value, theta))
        close(flat(second), torch.autograd.functional.hessian(value, theta).diagonal())

    def test_shares_are_one_on_average(self) -> None:
        q, source = self.posterior(), generator(4)
        points = [q.draw(source) for _ in range(2000)]
        shares = torch.stack([point.shares for point in points])  # type: ignore[attr-defined]
        z_close(shares, torch.ones(3, dtype=DTYPE))
        close((q.weights * shares).sum(1), torch.ones(2000, dtype=DTYPE))

    def test_draws_are_divided_into_the_means(self) -> None:
        q, source = self.posterior(), generator(5)
        positions = [q.draw(source).position for _ in range(2000)]
        for name, mean in q.means.items():
            z_close(torch.stack([one[name] for one in positions]), mean)

    def test_first_means_lie_about_the_weights(self) -> None:
        first = self.family.init(PARAMS, weight=10.0, prior=0.5)
        for name, value in PARAMS.items():
            away = first.means[name] - value
            close(away.square().mean(0).sqrt(), torch.full_like(value, 0.8))
        alone = MixtureFamily(1).init(PARAMS, weight=10.0, prior=0.5)
        close(flat(alone.mean), flat(PARAMS), 0.0)


# One weight: estimates at draws against quadrature.

ONE = {"w": torch.zeros(1, dtype=DTYPE)}
GRID = torch.linspace(-9.0, 9.0, 20_001, dtype=DTYPE)
STEP = float(GRID[1] - GRID[0])


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=DTYPE).unsqueeze(1)


def two_modes(*logits: float) -> Mixture:
    means, precision = {"w": column(-0.8, 1.1)}, {"w": column(2.0, 3.0)}
    weights = torch.tensor(logits, dtype=DTYPE)
    return Mixture(means, DiagonalMatrix(precision), weights, torch.tensor(2.0, dtype=DTYPE))


def loss(w: Tensor) -> Tensor:
    return 0.3 * (w**2 - 1.2) ** 2 + 0.2 * w


def slope(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    leaf = at if at.requires_grad else at.detach().requires_grad_()
    return torch.autograd.grad(function(leaf).sum(), leaf, create_graph=True)[0]


def log_density(q: Mixture, w: Tensor) -> Tensor:
    """`log q` at many values of the weight."""
    each = Normal(q.means["w"][:, 0], q.precision.values["w"][:, 0].rsqrt())
    return (q.log_weights + each.log_prob(w.unsqueeze(1))).logsumexp(1)


def earlier_mixture() -> Mixture:
    """What was learned of earlier data: a narrow mode and a wide one."""
    precision = DiagonalMatrix({"w": column(4.0, 0.8)})
    weights = torch.tensor([0.4, -0.2], dtype=DTYPE)
    return Mixture({"w": column(-1.3, 0.9)}, precision, weights, torch.zeros((), dtype=DTYPE))


LOG_PRIORS: dict[str, tuple[Any, Callable[[Tensor], Tensor]]] = {
    "N(0, 1/0.7)": (0.7, lambda w: -0.35 * w**2),
    "mixture": (earlier_mixture(), lambda w: log_density(earlier_mixture(), w)),
}


def objective(q: Mixture, log_prior: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`f = loss − log p + log q` at many values of the weight, without the loss's scale."""
    return lambda w: loss(w) - log_prior(w) + log_density(q, w)


def expected(q: Mixture, values: Tensor) -> Tensor:
    """The mean of values on the grid under each component, (K,)."""
    each = Normal(q.means["w"], q.precision.values["w"].rsqrt()).log_prob(GRID).exp()
    return each @ values.detach() * STEP


def estimates(
    q: Mixture, given: Any, use_price: bool, count: int = 4000
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients, curvatures and gradients of the log weights at draws, (count, K)."""
    prior = MixtureFamily(2).prior(given, ONE)
    # The average of the curvature: the precision without what the rule adds to it.
    kept = (
        q.precision.values["w"]
        - prior.added_to(MixtureFamily(2).first_curvature(ONE, 0.0)).diagonal()["w"]
    )
    source, rows = generator(6), []
    for _ in range(count):
        point = q.draw(source)
        w = point.coordinates["w"]
        gradient = {"w": slope(loss, w).detach()}
        bend = {"w": slope(lambda one: slope(loss, one), w).detach()}
        curvature = point.price(gradient) if use_price else DiagonalMatrix(bend)
        local = Local(loss(w).sum(), gradient, curvature, {})
        found = point.pulled(local, Pull(1.0, 1.0, prior))
        # What the rule does with them: the prior's pull, and the distance from what there is.
        pulled = prior.pull_(found.gradient, q.coordinates().mean)
        moved = found.curvature.blocks["components"].values["w"] - kept  # type: ignore[union-attr]
        rows.append((pulled["w"][:, 0], moved[:, 0], found.gradient[LOGITS]))
    first, second, weights = (torch.stack(list(one)) for one in zip(*rows, strict=True))
    return first, second, weights


@pytest.mark.parametrize("prior", LOG_PRIORS)
@pytest.mark.parametrize("use_price", [False, True], ids=["Hessian", "Price"])
def test_steps_at_draws_have_the_mean_of_quadrature(use_price: bool, prior: str) -> None:
    q, (given, log_prior) = two_modes(0.3, -1.1), LOG_PRIORS[prior]
    value = objective(q, log_prior)
    # The component of weight 0.2 takes 2·0.2 of its step.
    part = (2.0 * q.weights).clamp_max(1.0)
    assert float(part[1]) < 0.5
    first, second, weights = estimates(q, given, use_price)
    z_close(first, part * expected(q, slope(value, GRID)))
    z_close(second, part * expected(q, slope(lambda one: slope(value, one), GRID)))
    each = expected(q, value(GRID))
    z_close(weights, 0.1 * part * (each - q.weights @ each))


def single_steps(rate: float) -> tuple[Tensor, Tensor]:
    """Means and variances after steps of one component and of a Gaussian at the same draws."""
    at, width = {"w": column(0.4)}, {"w": column(2.0)}
    zero = torch.zeros((), dtype=DTYPE)
    mixture = Mixture(at, DiagonalMatrix(width), column(0.0)[0], zero)
    gaussian = Gaussian({"w": at["w"][0]}, DiagonalMatrix({"w": width["w"][0]}))
    rule, rows = Natural(0.2, rate, retract=True), []
    for seed in range(300):
        point, new = mixture.draw(generator(seed)), []
        for family, q in ((MixtureFamily(1), mixture), (GaussianFamily(Diagonal()), gaussian)):
            prior = family.prior(0.7, ONE)
            w = point.coordinates["w"]
            bend = slope(lambda one: slope(loss, one), w).detach()
            local = Local(zero, {"w": slope(loss, w).detach()}, DiagonalMatrix({"w": bend}), {})
            if q is mixture:
                local = point.pulled(local, Pull(1.0, 1.0, prior))
            belief, memory = rule.copied(q, {"curvature": family.first_curvature(ONE, 1.3)})
            derivatives = Derivatives(zero, local.gradient, local.curvature, 1.0)
            moved, _ = rule.step(belief, derivatives, prior, memory, 0)
            new.append(torch.cat([moved.mean["w"], moved.variance()["w"]]))
        rows.append(torch.stack(new))
    found = torch.stack(rows)
    return found[:, 0], found[:, 1]


def test_one_component_takes_the_step_of_a_gaussian() -> None:
    mixture, alone = single_steps(rate=0.3)
    close(mixture[:, 1], alone[:, 1])
    # The divisor of the mean's step depends on the draw, unless the precision stays.
    mixture, alone = single_steps(rate=0.0)
    z_close(mixture[:, 0] - alone[:, 0], 0.0)
    assert float(mixture[:, 0].std()) < float(alone[:, 0].std())


def test_several_draws_and_halves_of_a_batch_add_up() -> None:
    """A step is the same whether a point's share of the entropy comes at once or in parts."""
    q, prior = two_modes(0.0, 0.2), MixtureFamily(2).prior(0.7, ONE)
    point = q.draw(generator(1))

    def local(part: float) -> Local:
        curvature = DiagonalMatrix({"w": part * column(2.0)[0]})
        whole = Local(column(3.0).sum(), {"w": part * column(1.5)[0]}, curvature, {})
        return point.pulled(whole, Pull(part, part, prior))

    one, half = local(1.0), local(0.5)
    two = half.plus(half)
    for name in ("w", LOGITS, BASELINE):
        close(two.gradient[name], one.gradient[name])
    close(two.curvature.diagonal()["w"], one.curvature.diagonal()["w"])  # type: ignore[union-attr]


def test_a_gaussian_posterior_of_earlier_data_is_a_prior() -> None:
    earlier = Gaussian({"w": column(0.5)[0]}, DiagonalMatrix({"w": column(4.0)[0]}))
    prior, q = MixtureFamily(2).prior(earlier, ONE), two_modes(0.0, 0.2)
    close(
        prior.pull_({"w": torch.zeros_like(q.means["w"])}, q.means)["w"], 4.0 * (q.means["w"] - 0.5)
    )
    first = MixtureFamily(2, curvature=0.5).init(ONE, weight=3.0, prior=prior)
    close(first.precision.values["w"], column(5.5, 5.5))
    is_divergence(q, prior, Normal(0.5, 0.5).log_prob(GRID))


def is_divergence(q: Mixture, prior: Any, log_p: Tensor) -> None:
    """The estimates of the divergence have the mean of quadrature."""
    log_q = log_density(q, GRID)
    found = torch.stack([q.kl(prior, generator(seed)) for seed in range(100)])
    z_close(found, float((log_q.exp() * (log_q - log_p)).sum() * STEP))


def test_a_mixture_of_earlier_data_is_a_prior() -> None:
    earlier, q = earlier_mixture(), two_modes(0.0, 0.2)
    prior = MixtureFamily(2).prior(earlier, ONE)
    is_divergence(q, prior, log_density(earlier, GRID))
    theta = {"w": column(0.3)[0]}
    close(prior.log_prob(theta), earlier.log_prob(theta))
    # The first belief is as narrow as the Gaussian with the earlier moments and the new data say.
    first = MixtureFamily(2, curvature=0.5).init(ONE, weight=3.0, prior=prior)
    close(first.precision.values["w"], 1.5 + column(1.0, 1.0) / earlier.variance()["w"])


def test_a_single_earlier_component_is_a_gaussian_prior() -> None:
    """Then nothing of the prior is left to draws."""
    width, zero = DiagonalMatrix({"w": column(4.0)}), torch.zeros((), dtype=DTYPE)
    alone = Mixture({"w": column(0.5)}, width, column(0.0)[0], zero)
    gaussian = Gaussian({"w": column(0.5)[0]}, width.only(("w",)))
    q, steps = two_modes(0.0, 0.2), []
    for earlier in (alone, gaussian):
        point, prior = q.draw(generator(1)), MixtureFamily(2).prior(earlier, ONE)
        curvature = DiagonalMatrix({"w": column(2.0)[0]})
        local = Local(column(3.0).sum(), {"w": column(1.5)[0]}, curvature, {})
        steps.append(point.pulled(local, Pull(1.0, 1.0, prior)))
    close(steps[0].gradient["w"], steps[1].gradient["w"])
    close(steps[0].curvature.diagonal()["w"], steps[1].curvature.diagonal()["w"])  # type: ignore[union-attr]
