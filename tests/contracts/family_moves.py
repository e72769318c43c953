"""How beliefs of every family move: by gradient descent, by natural gradients, or both."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from exact import DTYPE, close, generator, randn
from torch import Tensor

from bayesrule.matrices import DiagonalMatrix
from bayesrule.posteriors import ElboTerms, GaussianPrior, Posterior, Prior, Pull
from bayesrule.tensors import tree, vectors
from bayesrule.types import Local
from contracts.family_case import FamilyCase


class MovesContract(FamilyCase):
    """Tests that every family inherits: gradients of the bound, other means and precisions."""

    def regulariser(self, q: Any, prior: Prior) -> Tensor:
        """What pulls on the free parameters: the KL, and −log p of weights without variance."""
        values = [q.mean[name] for name in self.params if name not in self.names]
        precision = prior.precision if isinstance(prior, GaussianPrior) else 0.0
        squares = [0.5 * precision * value.square().sum() for value in values]
        return torch.stack([q.kl(prior).to(DTYPE), *squares]).sum()

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
