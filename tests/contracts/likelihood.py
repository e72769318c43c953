"""What every likelihood p(y | f) must do, held against torch.distributions and against sums over y.

A subclass gives the likelihood, outputs for a few examples, targets, the same distribution as torch
has it, and all values that a single target may take (a fine grid where it is continuous). Which
abilities the likelihood has it says itself, by `lacks`; what it has is tested, and what it lacks
must be refused in the same words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from exact import DTYPE, close, generator, z_close
from torch import Tensor
from torch.autograd.functional import hessian

from bayesrule.likelihoods._abilities import SENTENCES
from bayesrule.predicting.prediction import Prediction
from bayesrule.tensors import randomness
from contracts.gaussian_outputs import GaussianOutputsContract


def share_close(hits: Tensor, p: Tensor) -> None:
    """The share of hits (draws along the first axis) is p to within 5 of its standard errors."""
    num = len(hits)
    error = (p * (1.0 - p) / num).sqrt().clamp_min(1.0 / num)
    worst = float(((hits.to(DTYPE).mean(0) - p).abs() / error).max())
    assert worst < 5.0, f"{worst:.1f} standard errors away"


class LikelihoodContract(GaussianOutputsContract):
    """Tests that every likelihood inherits."""

    def test_log_prob(self) -> None:
        found = self.likelihood.log_prob(self.outputs, self.targets, self.state())
        assert found.shape == (len(self.outputs),)
        close(found, self.expected_log_prob(self.outputs, self.targets))

    def test_log_prob_asks_no_other_device_for_a_number(self) -> None:
        # There are none on this device; on a GPU such a question waits, and no graph can have it.
        state = {name: value.to("meta") for name, value in self.state().items()}
        found = self.likelihood.log_prob(self.outputs.to("meta"), self.targets.to("meta"), state)
        assert found.shape == (len(self.outputs),)

    def test_distribution(self) -> None:
        """Also with a leading axis of draws."""
        stacked = torch.stack([self.outputs, self.outputs + 0.3])
        found = self.likelihood.distribution(stacked, self.state()).log_prob(self.targets)
        for one, outputs in zip(found, stacked, strict=True):
            close(one, self.reference(outputs).log_prob(self.targets))

    def test_probabilities_sum_to_one(self) -> None:
        _, _, mass = self.table()
        close(mass.sum(0), torch.ones(len(self.outputs), dtype=DTYPE), 1e-9)

    def test_moments(self) -> None:
        _, targets, mass = self.table()
        mean, variance = self.likelihood.moments(self.outputs, self.state())
        y = self.features(targets)
        mass = mass.reshape(*mass.shape, *[1] * (y.ndim - 2))
        close(mean, (mass * y).sum(0), 1e-8)
        close(variance, (mass * (y - mean).square()).sum(0), 1e-8)

    def test_samples_have_the_moments(self) -> None:
        many = self.outputs.repeat(4000, *[1] * (self.outputs.ndim - 1))
        drawn = self.likelihood.sample(many, self.state(), generator(1))
        self.likelihood.check(many, drawn)
        y = self.features(drawn).reshape(4000, len(self.outputs), *self.features(drawn).shape[1:])
        mean, variance = self.likelihood.moments(self.outputs, self.state())
        z_close(y, mean)
        z_close((y - mean).square(), variance)

    def test_samples_follow_their_generator(self) -> None:
        one, two = (
            self.likelihood.sample(self.outputs, self.state(), generator(2)) for _ in range(2)
        )
        assert torch.equal(one, two)

    def test_it_says_whether_samples_have_streams_for_many_nets(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(randomness, "normal_like", lambda x, generator: torch.zeros_like(x))
        monkeypatch.setattr(randomness, "exponential_like", lambda x, generator: torch.ones_like(x))
        source = generator(3)
        before = source.get_state()
        drawn = self.likelihood.sample(self.outputs, self.state(), source)
        assert torch.equal(before, source.get_state()) == self.likelihood.stacked_sampling
        if self.likelihood.stacked_sampling and not self.likelihood.classification:
            close(drawn, self.likelihood.moments(self.outputs, self.state())[0], 0.0)

    @pytest.mark.parametrize("joint", [False, True])
    def test_targets_of_the_marginal_are_those_without_its_variances(self, joint: bool) -> None:
        if self.likelihood.lacks("marginal"):
            pytest.skip("has no closed form")
        mean, variance = self.outputs, self.outputs.square() + 0.1
        if joint:
            variance = torch.diag_embed(variance.flatten(1))
            whole = self.likelihood.joint_marginal(mean, variance, self.state())
        else:
            whole = self.likelihood.marginal(mean, variance, self.state())
        alone = self.likelihood.marginal_targets(mean, variance, self.state(), joint=joint)
        close(alone.log_prob(self.targets), whole.distribution.log_prob(self.targets), 0.0)

    def fisher(self) -> Tensor:
        """`Σ_v L_v L_vᵀ`, (n, outputs, outputs)."""
        vectors = self.likelihood.fisher_vectors(self.outputs, self.state())
        assert vectors.shape[1:] == self.outputs.shape
        rows = vectors.reshape(*vectors.shape[:2], -1)
        return torch.einsum("vni,vnj->nij", rows, rows)

    def test_fisher_is_the_mean_of_squared_scores(self) -> None:
        outputs, targets, mass = self.table()
        leaf = outputs.reshape(-1, *self.outputs.shape[1:]).clone().requires_grad_()
        many = targets.reshape(-1, *self.targets.shape[1:])
        total = self.likelihood.log_prob(leaf, many, self.state()).sum()
        (score,) = torch.autograd.grad(total, leaf)
        score = score.reshape(*mass.shape, -1)
        close(self.fisher(), torch.einsum("mn,mni,mnj->nij", mass, score, score), 1e-8)

    def test_fisher_is_the_hessian(self) -> None:
        if not self.glm:
            return

        def loss(output: Tensor, target: Tensor) -> Tensor:
            return -self.likelihood.log_prob(output[None], target[None], self.state()).sum()

        for fisher, f, y in zip(self.fisher(), self.outputs, self.targets, strict=True):
            found = hessian(lambda output, y=y: loss(output, y), f)
            close(fisher, found.reshape(fisher.shape))

    def test_targets_that_do_not_fit_are_refused(self) -> None:
        n = len(self.outputs)
        misfits = (torch.zeros(n + 1), torch.zeros(n, 7), torch.zeros(1, n), torch.zeros(n, 1, 1))
        for bad in misfits:
            shape = re.escape(str(tuple(bad.shape)))
            with pytest.raises(ValueError, match=f"{type(self.likelihood).__name__}.*{shape}"):
                self.likelihood.log_prob(self.outputs, bad, self.state())
        for bad in self.bad_targets:
            with pytest.raises(ValueError, match=r"needs|hold"):
                self.likelihood.log_prob(self.outputs, bad, self.state())

    def test_update_without_a_state_changes_nothing(self) -> None:
        state = self.state()
        if state:
            return
        assert self.likelihood.statistics(self.outputs, self.targets) == {}
        assert self.likelihood.update(state, {}, 10.0) == {}

    def test_only_what_learns_has_statistics(self) -> None:
        found = self.likelihood.statistics(self.outputs, self.targets)
        assert bool(found) == self.likelihood.learns

    def uses(self) -> dict[str, Callable[[], object]]:
        """Every ability by name, and a use of it."""
        f, y, state = self.outputs, self.targets, self.state()
        one = torch.ones((), dtype=DTYPE)
        return {
            "condition": lambda: self.likelihood.condition(f, f.square(), y, state),
            "expected_log_prob": lambda: self.likelihood.expected_log_prob(f, f.square(), y, state),
            "marginal": lambda: self.likelihood.marginal(f, f.square(), state),
            "fisher_vectors": lambda: self.likelihood.fisher_vectors(f, state),
            "sample": lambda: self.likelihood.sample(f, state, generator(0)),
            "cdf": lambda: self.likelihood.distribution(f, state).cdf(y),
            "rescaled": lambda: self.likelihood.distribution(f, state).rescaled(one, one),
        }

    def test_what_it_lacks_it_says_by_name(self) -> None:
        uses = self.uses()
        assert uses.keys() == SENTENCES.keys()
        for ability, use in uses.items():
            problem = self.likelihood.lacks(ability)
            if problem is None:
                use()
                continue
            missing, way_out = SENTENCES[ability]
            assert problem.startswith(f"{type(self.likelihood).__name__} {missing}")
            assert problem.endswith(way_out)
            with pytest.raises(TypeError, match=re.escape(missing)):
                use()
        with pytest.raises(ValueError, match="'predict' is not an ability"):
            self.likelihood.lacks("predict")

    def test_distributions_are_of_the_class_that_it_names(self) -> None:
        found = self.likelihood.distribution(self.outputs, self.state())
        assert type(found) is self.likelihood.distribution_class
        assert found.classification == self.likelihood.classification
        mean, variance = self.likelihood.moments(self.outputs, self.state())
        assert mean.shape == variance.shape
        assert (mean.shape == self.targets.shape) == (not found.class_numbers)

    def test_so_many_outputs_for_the_targets(self) -> None:
        mean, _ = self.likelihood.moments(self.outputs, self.state())
        assert self.likelihood.num_outputs(mean.shape[1]) == self.outputs.shape[1]

    def many_draws(self, num: int = 4000) -> Tensor:
        """Targets (num, n, *)."""
        many = self.outputs.repeat(num, *[1] * (self.outputs.ndim - 1))
        drawn = self.likelihood.sample(many, self.state(), generator(4))
        return drawn.reshape(num, *self.targets.shape)

    def test_the_cdf_is_the_share_of_draws_below(self) -> None:
        if self.likelihood.lacks("cdf"):
            return
        found = self.likelihood.distribution(self.outputs, self.state())
        drawn = self.many_draws()
        for y in (self.targets, drawn[0], drawn[1] + 0.5):
            share_close(drawn <= y, found.cdf(y))
        above = torch.full_like(self.targets, 1e9)
        close(found.cdf(above), torch.ones_like(above))
        close(found.cdf(-above), torch.zeros_like(above))

    def test_quantiles_invert_the_cdf(self) -> None:
        """The smallest value with at least that probability below it."""
        if self.likelihood.lacks("cdf"):
            return
        found = self.likelihood.distribution(self.outputs, self.state())
        for level in (0.01, 0.3, 0.5, 0.99):
            y = found.quantile(level)
            if found.whole_numbers:
                assert torch.equal(y, y.round())
                assert (found.cdf(y) >= level).all()
                assert (found.cdf(y - 1.0) < level).all()
            else:
                close(found.cdf(y), torch.full_like(y, level))

    def test_rescaled_targets(self) -> None:
        if self.likelihood.lacks("rescaled"):
            return
        shift, scale = torch.tensor(3.0, dtype=DTYPE), torch.tensor(2.5, dtype=DTYPE)
        before = self.likelihood.distribution(self.outputs, self.state())
        after = before.rescaled(shift, scale)
        y = shift + scale * self.targets
        close(after.log_prob(y), before.log_prob(self.targets) - math.log(2.5))
        close(after.mean, shift + scale * before.mean)
        close(after.variance, scale.square() * before.variance)

    def test_components_are_chosen_by_number(self) -> None:
        stacked = torch.stack([self.outputs, self.outputs + 0.3, self.outputs - 0.3])
        found = self.likelihood.distribution(stacked, self.state())[torch.tensor([2, 0])]
        wanted = self.likelihood.distribution(stacked[[2, 0]], self.state())
        close(found.log_prob(self.targets), wanted.log_prob(self.targets), 0.0)

    def test_a_prediction_is_the_mixture(self) -> None:
        """Of two components, by draws of it: moments, the cdf, and quantiles."""
        stacked = torch.stack([self.outputs, self.outputs + 0.3])
        components = self.likelihood.distribution(stacked, self.state())
        p = Prediction.mixture(components)
        drawn = p.sample(6000, seed=5)
        y = self.features(drawn)
        z_close(y, p.mean)
        z_close((y - p.mean).square(), p.variance)
        logs = components.log_prob(self.targets).reshape(2, len(self.targets), -1).sum(-1)
        close(p.log_prob(self.targets), logs.logsumexp(0) - math.log(2.0))
        if self.likelihood.lacks("cdf"):
            return
        share_close(drawn <= self.targets, p.cdf(self.targets))
        low, high = p.interval(0.8)
        assert (((drawn >= low) & (drawn <= high)).to(DTYPE).mean(0) > 0.76).all()


class OneOutputContract(LikelihoodContract):
    """Likelihoods with one output for each target."""

    def test_columns_and_vectors_are_taken_for_each_other(self) -> None:
        column = self.likelihood.log_prob(self.outputs, self.targets[:, 0], self.state())
        vector = self.likelihood.log_prob(self.outputs[:, 0], self.targets, self.state())
        for found in (column, vector):
            close(found, self.expected_log_prob(self.outputs, self.targets))

    def test_several_outputs_add_up(self) -> None:
        outputs, targets = self.outputs.reshape(2, 2), self.targets.reshape(2, 2)
        each = self.likelihood.log_prob(self.outputs, self.targets, self.state())
        found = self.likelihood.log_prob(outputs, targets, self.state())
        close(found, each.reshape(2, 2).sum(1))
        vectors = self.likelihood.fisher_vectors(outputs, self.state())
        rows = torch.einsum("vni,vnj->nij", vectors, vectors)
        close(rows, torch.diag_embed(self.fisher().reshape(2, 2)))
