"""R-hat and effective draws on chains that are known, and as arviz tells them."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from exact import close, randn
from torch import Tensor

from bayesrule.hmc import ess, rhat


def _autoregression(phi: float, chains: int = 4, num: int = 1000) -> Tensor:
    noise = randn(chains, num, seed=11)
    values = [noise[:, 0] / math.sqrt(1.0 - phi**2)]
    for t in range(1, num):
        values.append(phi * values[-1] + noise[:, t])
    return torch.stack(values, dim=1)


@pytest.mark.parametrize("phi", [-0.3, 0.0, 0.5, 0.9])
def test_effective_draws_of_an_autoregression(phi: float) -> None:
    found = float(ess(_autoregression(phi)))
    assert found == pytest.approx(4000 * (1.0 - phi) / (1.0 + phi), rel=0.25)


def test_chains_that_differ_in_place_or_width_are_told() -> None:
    white = randn(4, 500, seed=12)
    apart, wide = white.clone(), white.clone()
    apart[0] += 2.0
    wide[0] *= 5.0
    drifting = white + torch.linspace(0, 3, 500)
    assert float(rhat(white)) < 1.01
    assert min(float(rhat(one)) for one in (apart, wide, drifting)) > 1.1
    assert float(ess(apart)) < 50


@pytest.mark.parametrize("kind", ["white", "slow", "apart", "rounded", "odd"])
def test_mixing_is_told_as_arviz_tells_it(kind: str) -> None:
    with warnings.catch_warnings():
        # It announces its next version.
        warnings.simplefilter("ignore")
        arviz = pytest.importorskip("arviz", reason="comes with bayesrule[hmc]")

    draws = {
        "white": randn(4, 100, seed=13),
        "slow": _autoregression(0.95, 3, 200),
        "apart": randn(2, 80, seed=14) + torch.tensor([[0.0], [1.0]]),
        "rounded": randn(4, 100, seed=15).round(),
        "odd": randn(3, 101, seed=16).exp(),
    }[kind]
    assert float(rhat(draws)) == pytest.approx(arviz.rhat(draws.numpy(), method="rank"), rel=1e-10)
    assert float(ess(draws)) == pytest.approx(arviz.ess(draws.numpy(), method="bulk"), rel=1e-10)


def test_mixing_of_many_quantities_is_that_of_each() -> None:
    draws = torch.stack([_autoregression(phi, num=60) for phi in (0.0, 0.5, 0.9)], dim=2)
    close(rhat(draws), torch.stack([rhat(draws[..., i]) for i in range(3)]))
    close(ess(draws), torch.stack([ess(draws[..., i]) for i in range(3)]))
    with pytest.raises(ValueError, match=r"4 draws of each chain or more, got \(2, 3\)"):
        ess(draws[:2, :3, 0])
