"""What every family of beliefs must do: a subclass gives a posterior and its `log_prob`."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from exact import DTYPE, TableRows, close, flat, generator, randn, same_mean, z_close
from torch import Tensor

from bayesrule.matrices import DiagonalMatrix
from bayesrule.posteriors import (
    ElboTerms,
    Family,
    GaussianPrior,
    Point,
    Posterior,
    Prior,
)
from bayesrule.posteriors.points import Pull
from bayesrule.tensors import tree, vectors
from bayesrule.types import Local, Params, Rows

ESTIMATES = 30
PARAMS = {"w": randn(2, 2, seed=21), "b": randn(2, seed=22)}
DRAWS = 2000


def estimates(value: Callable[..., Tensor]) -> Tensor:
    """A number that a belief may estimate from draws, from several generators."""
    return torch.stack([value(generator=generator(seed)) for seed in range(ESTIMATES)])


class FamilyContract:
    """Tests that every family inherits: moments, points, divergences and how beliefs move."""

    family: Family
    params: Params = PARAMS
    names: tuple[str, ...] = tuple(PARAMS)
    """The weights that have a variance."""
    takes_earlier: bool = True
    """Whether an earlier posterior of the family can be the prior."""
    variance_follows_mean: bool = False
    """Whether the variance is a function of the mean."""

    def posterior(self, seed: int = 0) -> Posterior:
        """A belief of the family that is not the first one."""
        raise NotImplementedError

    def log_prob(self, q: Any, params: Params) -> Tensor:
        """`log q(θ)` over `names`."""
        raise NotImplementedError

    def regulariser(self, q: Any, prior: Prior) -> Tensor:
        """What pulls on the free parameters: the KL, and −log p of weights without variance."""
        values = [q.mean[name] for name in self.params if name not in self.names]
        precision = prior.precision if isinstance(prior, GaussianPrior) else 0.0
        squares = [0.5 * precision * value.square().sum() for value in values]
        return torch.stack([q.kl(prior).to(DTYPE), *squares]).sum()

    def num_parameters(self, q: Posterior) -> int:
        """How many numbers are learned."""
        return sum(value.numel() for value in q.state_dict().values())

    @property
    def like(self) -> Params:
        """The weights that have a variance."""
        return {name: self.params[name] for name in self.names}

    def part(self, params: Params) -> Tensor:
        """Those weights as one vector."""
        return flat({name: params[name] for name in self.names})

    def whole(self, params: Params) -> Tensor:
        """All weights as one vector, in the order of the parameters."""
        assert set(params) == set(self.params)
        return flat({name: params[name] for name in self.params})

    def prior(self, precision: float = 1.7) -> Prior:
        """`N(0, I / precision)` as the family has it, or the prior of one that takes no number."""
        return self.family.prior(precision if self.family.takes_precision else None, self.params)

    def drawn(self, params: Params) -> Params:
        """The weights that a tracked draw stands for, which may be a smooth stand-in for them."""
        return params

    def earlier(self, q: Posterior) -> Prior:
        """The belief as a prior."""
        return self.family.prior(q, self.params)

    def priors(self) -> list[Prior]:
        """One of each kind that the family takes."""
        return [self.prior(), *([self.earlier(self.posterior(1))] if self.takes_earlier else [])]

    @classmethod
    @cache
    def draws(cls, kind: str = "sample") -> list[Params]:
        """Independent draws of the weights, made once for each family."""
        q, source = cls().posterior(), generator(3)
        if kind == "sample":
            return [q.sample(source) for _ in range(DRAWS)]
        points = (getattr(q, kind)(source) for _ in range(DRAWS))
        return [cls().drawn({k: v + 0.0 for k, v in point.params.items()}) for point in points]

    # Moments and points.

    @pytest.mark.parametrize("kind", ["sample", "draw", "untracked"])
    def test_draws_have_the_mean_and_the_variance(self, kind: str) -> None:
        q = self.posterior()
        flats = torch.stack([self.whole(draw) for draw in self.draws(kind)])
        z_close(flats, self.whole(q.mean))
        z_close((flats - self.whole(q.mean)).square(), self.whole(q.variance()))

    def test_the_point_at_the_mean(self) -> None:
        q = self.posterior()
        close(self.whole(q.at_mean().params), self.whole(q.mean), 1e-12)

    def test_variance_is_named_and_shaped_as_the_weights(self) -> None:
        variance = self.posterior().variance()
        wanted = {name: value.shape for name, value in self.params.items()}
        assert {name: value.shape for name, value in variance.items()} == wanted
        for name in self.params:
            assert bool((variance[name] > 0).all()) == (name in self.names)

    @pytest.mark.parametrize("kind", ["sample", "draw", "untracked"])
    def test_same_generator_same_draw(self, kind: str) -> None:
        q = self.posterior()

        def drawn(seed: int) -> Tensor:
            found = getattr(q, kind)(generator(seed))
            return self.whole(found.params if isinstance(found, Point) else found)

        assert torch.equal(drawn(5), drawn(5))
        assert torch.equal(drawn(5), drawn(6)) == (not self.names)

    def test_a_gradient_in_the_weights_is_one_in_the_coordinates(self) -> None:
        q = self.posterior()
        slopes = {name: randn(*v.shape, seed=6) for name, v in self.params.items()}
        for point in (q.at_mean(), q.draw(generator(1)), q.untracked(generator(1))):
            leaves = {k: v.clone().requires_grad_() for k, v in point.coordinates.items()}
            weights = point.weights(leaves)
            value = vectors.total({name: slopes[name] * v for name, v in weights.items()})
            wanted = torch.autograd.grad(value, list(leaves.values()))
            seen = point.seen(slopes)
            for name, slope in zip(leaves, wanted, strict=True):
                close(seen[name], slope)
            close(self.whole(point.plain), self.whole(point.params), 1e-12)
            if not self.family.own_coordinates:
                close(self.whole(point.coordinates), self.whole(point.params), 0.0)

    # Entropy and divergences.

    def test_entropy_is_minus_the_mean_log_density(self) -> None:
        q = self.posterior()
        found = torch.stack([self.log_prob(q, draw) for draw in self.draws()])
        same_mean(-found, estimates(q.entropy))

    def test_divergence_is_the_mean_log_ratio(self) -> None:
        q = self.posterior()
        ratios = [self.log_prob(q, d) - self.log_prior(d, 1.7) for d in self.draws()]
        for prior in (1.7, self.prior()) if self.family.takes_precision else (self.prior(),):
            same_mean(torch.stack(ratios), estimates(partial(q.kl, prior)))

    def test_a_number_is_refused_where_it_is_no_prior(self) -> None:
        if self.family.takes_precision:
            return
        for call in (self.posterior().kl, lambda one: self.family.prior(one, self.params)):
            with pytest.raises(TypeError, match=r"not a precision, got 1\.7"):
                call(1.7)

    def log_prior(self, params: Params, precision: float) -> Tensor:
        """`log N(θ; 0, I / precision)` of the weights that have a variance."""
        if not self.names:
            return torch.zeros((), dtype=DTYPE)
        theta = self.part(params)
        norm = 0.5 * len(theta) * math.log(precision / (2.0 * math.pi))
        return norm - 0.5 * precision * theta.square().sum()

    def test_an_improper_prior_is_infinitely_far(self) -> None:
        if self.family.takes_precision:
            assert self.posterior().kl(0.0) == (math.inf if self.names else 0.0)

    def test_divergence_from_an_earlier_belief(self) -> None:
        q, p = self.posterior(), self.posterior(1)
        if not self.takes_earlier:
            with pytest.raises(TypeError, match="GaussianFamily"):
                self.earlier(p)
            return
        close(q.kl(self.earlier(q)), 0.0)
        ratios = [self.log_prob(q, d) - self.log_prob(p, d) for d in self.draws()]
        same_mean(torch.stack(ratios), estimates(partial(q.kl, self.earlier(p))))

    def test_an_earlier_belief_is_kept_as_it_was(self) -> None:
        if not self.takes_earlier:
            return
        q, p = self.posterior(), tree.map_tensors(self.posterior(1), torch.clone)
        prior = self.earlier(p)
        before = q.kl(prior).clone()
        for value in p.state_dict().values():
            value.zero_()
        close(q.kl(prior), before, 0.0)

    def test_what_is_no_prior_is_refused(self) -> None:
        with pytest.raises(TypeError, match="got 'wide'"):
            self.family.prior("wide", self.params)

    # What the family says of its beliefs.

    def test_abilities_are_those_of_the_beliefs(self) -> None:
        q = self.posterior()
        assert self.family.spreads == bool(self.names)
        assert self.family.independent == q.independent
        assert self.family.linearisable == q.linearisable

    def test_independent_weights_have_standard_deviations(self) -> None:
        q = self.posterior()
        variance, known = q.variance(), q.uncertain_variance()
        assert set(known) == set(self.names)
        for name in self.names:
            close(known[name], variance[name])
            if q.independent:
                close(q.std()[name].square(), variance[name])
        if q.independent:
            assert set(q.std()) == set(self.names)

    def test_draws_are_mirrored_about_the_mean(self) -> None:
        q = self.posterior()
        point = q.draw(generator(1))
        if not self.family.symmetric:
            with pytest.raises(TypeError, match="no mirror image"):
                point.mirrored()
            return
        total = self.whole(point.params) + self.whole(point.mirrored().params)
        close(0.5 * total, self.whole(q.mean))

    def test_linearised_outputs_have_the_covariance_of_draws(self) -> None:
        q: Any = self.posterior()
        if not q.linearisable:
            return
        rows = self.rows(7)
        table = rows.per_example()
        jacobian = torch.cat([table[k].flatten(start_dim=2) for k in self.params], dim=-1)
        flats = torch.stack([self.whole(draw) for draw in self.draws()]) - self.whole(q.mean)
        outputs = torch.einsum("vnp,dp->dnv", jacobian, flats)
        products = outputs.unsqueeze(3) * outputs.unsqueeze(2)
        z_close(products, q.precision.output_covariance(rows).expand_as(products[0]))

    def rows(self, seed: int) -> Rows:
        """Rows over all weights: one vector for each of four examples."""
        return TableRows.random(self.params, 1, 4, seed=seed)

    # Gradient descent.

    @pytest.mark.parametrize("placed", [float, lambda value: torch.tensor(value, dtype=DTYPE)])
    def test_gradients_are_those_of_the_bound(self, placed: Any) -> None:
        """Of `share (E[loss] + kl_weight KL)` for the loss `Σ g θ + ½ h θ²`."""
        if not self.family.has_mean:
            return
        linear, bend = (
            {name: randn(*v.shape, seed=seed) for name, v in self.params.items()} for seed in (8, 9)
        )
        for prior in self.priors():
            q = tree.map_tensors(self.posterior(), torch.clone)
            free = q.free()
            assert ("scales" in free) == self.family.has_scales
            leaves = {id(v): v.clone().requires_grad_() for k in free.values() for v in k.values()}
            live = tree.rebuild(q, lambda _, old, known=leaves: known.get(id(old), old))  # type: ignore[misc]
            mean, variance = live.mean, live.variance()
            loss = vectors.total(
                {k: linear[k] * m + 0.5 * bend[k] * (m**2 + variance[k]) for k, m in mean.items()}
            )
            bound = 0.3 * (loss + 0.7 * self.regulariser(live, prior))
            wanted = dict(
                zip(leaves, torch.autograd.grad(bound, list(leaves.values())), strict=True)
            )
            gradient = {k: linear[k] + bend[k] * m for k, m in q.mean.items()}
            sharp = DiagonalMatrix({k: v.clone() for k, v in bend.items()})
            curvature = sharp if self.family.has_scales else None
            found = q.free_gradients(
                ElboTerms(gradient, curvature, prior, placed(0.7), placed(0.3))
            )
            assert {k: set(v) for k, v in found.items()} == {k: set(v) for k, v in free.items()}
            for kind, tensors in free.items():
                for name, tensor in tensors.items():
                    close(found[kind][name], wanted[id(tensor)])

    # Natural gradients.

    def test_another_mean_in_the_belief_s_own_coordinates(self) -> None:
        if self.family.structure is None:
            return
        q = self.posterior()
        moved = {name: value + 0.5 for name, value in q.coordinates().mean.items()}
        new = q.with_mean(moved)
        assert set(new.coordinates().mean) == set(moved)
        for name, value in moved.items():
            close(new.coordinates().mean[name], value, 0.0)
        if not self.variance_follows_mean:
            close(self.whole(new.variance()), self.whole(q.variance()), 1e-12)

    def curvature(self, q: Posterior, seed: int) -> Any:
        """An estimate of the curvature as the rule averages it for the family."""
        assert self.family.structure is not None
        estimate = self.family.structure.contract(self.rows(seed))
        local = Local(torch.zeros((), dtype=DTYPE), vectors.zeros_like(self.params), estimate, {})
        return q.draw(generator(seed)).pulled(local, Pull(1.0, 1.0, self.prior(0.5))).curvature

    def test_another_precision_leaves_the_mean(self) -> None:
        if self.family.structure is None:
            return
        q, prior = self.posterior(), self.prior(0.5)
        first, target = self.family.first_curvature(self.params, 10.0), self.curvature(q, 11)
        if self.family.structure.mixes_entropy:
            average = first.retract(target, 0.3, prior.added_to(first))
        else:
            average = first.lerp(target, 0.3)
        precision = prior.added_to(average)
        new, turn = q.with_precision(precision)
        close(self.whole(new.mean), self.whole(q.mean))
        if q.linearisable:
            variance, wanted = new.variance(), precision.inverse_diagonal()
            assert set(wanted) == set(self.names)
            for name in self.names:
                close(variance[name], wanted[name])
        before, after = q.coordinates(), new.coordinates()
        turned = before.mean if turn is None else turn(before.mean)
        divided = new.divisor(precision).solve(after.mean)
        for name, value in after.mean.items():
            close(turned[name], value)
            close(divided[name], after.precision.solve(after.mean)[name])

    def test_the_first_belief_has_the_first_curvature(self) -> None:
        if self.family.structure is None:
            return
        first = self.family.init(self.params, weight=10.0, prior=0.5)
        precision = self.prior(0.5).added_to(self.family.first_curvature(self.params, 10.0))
        same, _ = first.with_precision(precision)
        close(self.whole(first.variance()), self.whole(same.variance()))

    # Keeping.

    def test_anew_has_the_same_tensors(self) -> None:
        q = self.posterior()
        again = q.anew()
        kept, shared = q.state_dict(), again.state_dict()
        assert again is not q
        assert kept.keys() == shared.keys()
        assert all(shared[name] is value for name, value in kept.items())
        close(self.whole(again.sample(generator(2))), self.whole(q.sample(generator(2))), 0.0)

    def test_anew_sees_what_was_changed_in_place(self) -> None:
        q = tree.map_tensors(self.posterior(), torch.clone)
        q.variance(), q.sample(generator(2)), q.mean
        for value in q.state_dict().values():
            value.mul_(1.0 + 1e-3)
        wanted = tree.map_tensors(q, torch.clone)
        close(self.whole(q.anew().mean), self.whole(wanted.mean), 0.0)
        close(self.whole(q.anew().variance()), self.whole(wanted.variance()), 0.0)

    def test_state_dict_holds_the_whole_belief(self) -> None:
        q, file = self.posterior(), io.BytesIO()
        torch.save(q.state_dict(), file)
        file.seek(0)
        kept = torch.load(file, weights_only=True)
        start = self.family.init(self.params, weight=10.0, prior=0.5)
        assert set(start.state_dict()) == set(kept)
        again = tree.rebuild(start, lambda name, old: kept.get(name, old))
        close(self.whole(again.mean), self.whole(q.mean), 0.0)
        close(self.whole(again.variance()), self.whole(q.variance()), 0.0)
        close(again.entropy(), q.entropy(), 0.0)
        assert q.num_parameters == self.num_parameters(q)

    def test_first_belief_starts_at_a_copy_of_the_weights(self) -> None:
        given = {name: value.clone() for name, value in self.params.items()}
        q = self.family.init(given, weight=10.0, prior=0.5)
        close(self.whole(q.mean), self.whole(self.params), 1e-12)
        next(iter(given.values())).zero_()
        close(self.whole(q.anew().mean), self.whole(self.params), 1e-12)
