"""What every family of beliefs must do: a subclass gives a posterior and its `log_prob`."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from exact import close, generator, randn, z_close
from torch import Tensor

from bayesrule.posteriors import Point
from bayesrule.tensors import tree, vectors
from contracts.family_case import PARAMS as PARAMS
from contracts.family_moves import MovesContract
from contracts.family_priors import PriorsContract


class FamilyContract(PriorsContract, MovesContract):
    """Tests that every family inherits: moments, points, abilities, and how beliefs are kept."""

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
