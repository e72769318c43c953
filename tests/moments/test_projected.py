"""Keys and values that come from weights which all tokens share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from .attention_inputs import gaussian
from .monte_carlo import by_draws, by_rule
from .nets import randn


class TestSharedWeights:
    """In a multi-head layer all tokens share the projections."""

    @staticmethod
    def layer(**spreads: float) -> tuple[Any, list[Any]]:
        """Self-attention of ten tokens that are alike, and its weights, some of them uncertain.

        Its last projection is the identity: each output is one unit of one head.
        """
        torch.manual_seed(0)
        layer = nn.MultiheadAttention(8, 2).double()
        x = 1.0 + randn(10, 1, 8).double()
        given = {name: value.detach() for name, value in layer.named_parameters()}
        given["out_proj.weight"] = torch.eye(8)
        given |= {name: gaussian(given[name], variance) for name, variance in spreads.items()}

        def run(*weights: Any) -> Any:
            named = dict(zip(given, weights, strict=True))
            with sdpa_kernel(SDPBackend.MATH):
                return functional_call(layer, named, (x, x, x), {"need_weights": False})[0]

        return run, list(given.values())

    def test_what_their_bias_adds_does_not_average_out(self) -> None:
        run, weights = self.layer(in_proj_bias=0.1)
        found = run(*weights).variance
        assert bool((found > 0.099).all())
        assert float(found.median()) < 0.11

    @pytest.mark.parametrize(
        ("name", "low", "high"), [("in_proj_weight", 0.65, 1.15), ("in_proj_bias", 0.98, 1.02)]
    )
    def test_draws(self, name: str, low: float, high: float) -> None:
        run, weights = self.layer(**{name: 0.01})
        found = by_rule(run, weights)
        truth, _ = by_draws(run, weights, 20_000)
        ratio = (found.variance / truth.variance).flatten().quantile(torch.tensor([0.05, 0.95]))
        assert low < float(ratio[0]) < float(ratio[1]) < high
        torch.testing.assert_close(found.mean, truth.mean, rtol=0.0, atol=0.1)
        off = (found.slopes[0] - truth.slopes[0]).norm() / truth.slopes[0].norm()
        assert float(off) < 0.2

    def test_innovations_of_values_return_by_the_squares_of_slopes(self) -> None:
        run, weights = self.layer(in_proj_weight=1e-9, in_proj_bias=1e-9)
        found = by_rule(run, weights)
        for slope, square in zip(found.slopes, found.squares, strict=True):
            values = slope[:, :, :, 16:], square[:, :, :, 16:]
            torch.testing.assert_close(values[1], values[0].square())

    def test_nothing_but_the_last_projection_is_uncertain(self) -> None:
        run, weights = self.layer(**{"out_proj.bias": 0.3})
        torch.testing.assert_close(run(*weights).variance, torch.full((10, 1, 8), 0.3))


@pytest.mark.parametrize("scale", [0.0, 1e3])
def test_keys_that_are_alike_do_not_divide_by_zero(scale: float) -> None:
    run, weights = TestSharedWeights.layer(in_proj_weight=0.1)
    weights[0].centre[8:16] = scale
    outputs = run(*weights)
    assert outputs.variance.isfinite().all()
    assert bool((outputs.variance > 0).all())
