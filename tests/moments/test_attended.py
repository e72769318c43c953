"""The average that attention takes, held against draws, and the way back through it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.moments import LocallyLinear, MomentMatched, attended, attention

from .attention_inputs import KEY, QUERY, VALUE, gaussian
from .monte_carlo import by_draws, by_rule, check_moments
from .nets import randn


class TestDraws:
    """Queries, keys and values of small variance."""

    @pytest.mark.parametrize("activations", [MomentMatched(), LocallyLinear()], ids=str)
    def test_keys_and_values(self, activations: Any) -> None:
        inputs = [QUERY, gaussian(KEY), gaussian(VALUE)]
        only = ("mean", "variance", "slopes")
        check_moments(
            F.scaled_dot_product_attention,
            inputs,
            activations,
            rtol=0.05,
            atol=0.005,
            num=1_000_000,
            only=only,
        )

    def test_queries_too(self) -> None:
        inputs = [gaussian(x) for x in (QUERY, KEY, VALUE)]
        rule = by_rule(F.scaled_dot_product_attention, inputs)
        truth, _ = by_draws(F.scaled_dot_product_attention, inputs, 1_000_000)
        torch.testing.assert_close(rule.mean, truth.mean, rtol=0.05, atol=0.005)
        for slope, true in zip(rule.slopes, truth.slopes, strict=True):
            torch.testing.assert_close(slope, true, rtol=0.05, atol=0.01)
        ratio = rule.variance / truth.variance
        assert float(ratio.min()) > 0.95
        assert float(ratio.max()) < 1.05

    def test_what_all_keys_share_adds_nothing(self) -> None:
        # softmax does not see it; scores that were taken one by one would vary with it.
        queries = [gaussian(QUERY), KEY, VALUE]
        plain = by_rule(F.scaled_dot_product_attention, queries)
        shifted = by_rule(F.scaled_dot_product_attention, [queries[0], KEY + 3.0, VALUE])
        torch.testing.assert_close(shifted.variance, plain.variance, rtol=1e-9, atol=0.0)
        torch.testing.assert_close(shifted.squares[0], plain.squares[0])

    def test_what_all_values_share_is_passed_on(self) -> None:
        inputs = [gaussian(QUERY), gaussian(KEY), VALUE]
        plain = by_rule(F.scaled_dot_product_attention, inputs)
        shifted = by_rule(F.scaled_dot_product_attention, [*inputs[:2], VALUE + 3.0])
        torch.testing.assert_close(shifted.mean, plain.mean + 3.0)
        torch.testing.assert_close(shifted.variance, plain.variance)

    def test_wide_scores_stay_bounded(self) -> None:
        inputs = [gaussian(QUERY, 1e6), gaussian(KEY, 1e6), VALUE]
        outputs = F.scaled_dot_product_attention(*inputs)
        range_ = VALUE.amax(-2, keepdim=True) - VALUE.amin(-2, keepdim=True)
        assert outputs.centre.isfinite().all()
        assert bool((outputs.variance <= VALUE.shape[-2] * range_.square()).all())


class TestInnovations:
    def test_variances_return_by_the_squares_of_slopes(self) -> None:
        scores = by_rule(
            lambda q, k: attention._scores(q, k, None, 0.7), [*map(gaussian, (QUERY, KEY))]
        )
        whole = by_rule(F.scaled_dot_product_attention, [gaussian(x) for x in (QUERY, KEY, VALUE)])
        for found in (scores, whole):
            for slope, square in zip(found.slopes, found.squares, strict=True):
                torch.testing.assert_close(square, slope.square())
                assert float(square.max()) > 0.01

    def test_those_of_many_features_are_right_in_sum(self) -> None:
        inputs = [gaussian(randn(1, 4, 40)), randn(1, 30, 40, seed=1), randn(1, 30, 20, seed=2)]
        found = by_rule(F.scaled_dot_product_attention, inputs)
        exact, rule = found.slopes[0].square().sum(), found.squares[0].sum()
        torch.testing.assert_close(rule, exact, rtol=0.15, atol=0.0)


def test_a_compiled_step_with_many_features_is_the_plain_one() -> None:
    """The directions that many features are seen by are numbers to it, not draws."""
    attended._directions.cache_clear()
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(40, 2, 8, dropout=0.0, batch_first=True)
    learner = br.tagi(layer, br.GaussianLikelihood(noise=1.0), num_data=8)
    batch = randn(8, 5, 40), randn(8, 5, 40, seed=1)
    compiled = br.execution.Compiled(learner, backend="aot_eager")
    states = [one.step(learner.init(seed=0), batch)[0] for one in (compiled, learner)]
    found, expected = (state.posterior.variance() for state in states)
    torch.testing.assert_close(found, expected)


def test_expected_weights_are_nearer_to_draws_where_scores_are_uncertain() -> None:
    inputs = [gaussian(x, 0.6) for x in (QUERY, KEY, VALUE)]
    truth, _ = by_draws(F.scaled_dot_product_attention, inputs, 50_000)
    usual, expected = (
        by_rule(F.scaled_dot_product_attention, inputs, MomentMatched(expected_weights=choice))
        for choice in (False, True)
    )
    off = [(found.mean - truth.mean).abs().max() for found in (usual, expected)]
    assert float(off[1]) < 0.5 * float(off[0])
    torch.testing.assert_close(expected.mean, truth.mean, rtol=0.0, atol=0.05)
