"""The linear regressions beside the bandits are the exact posterior."""

from __future__ import annotations

import torch

from benchmarks.explore.linear import LinearHeads


def _heads() -> tuple[LinearHeads, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0], dtype=torch.float64)
    y = y + 0.3 * torch.randn(30, generator=generator, dtype=torch.float64)
    heads = LinearHeads(3, 4, precision=0.5, shape=2.0, rate=0.7)
    for row in range(30):
        heads.observe(1, x[row : row + 1], y[row : row + 1])
    return heads, x, y


def test_rewards_one_by_one_give_the_posterior_of_all() -> None:
    heads, x, y = _heads()
    precision = 0.5 * torch.eye(4, dtype=torch.float64) + x.T @ x
    mean = torch.linalg.solve(precision, x.T @ y)
    torch.testing.assert_close(heads.means[1], mean)
    shape, rate = heads.noise()
    assert float(shape[1]) == 2.0 + 15.0
    # What the data and the prior cost at the mean: another form of ½ (Σ r² − mᵀ P m).
    cost = (y - x @ mean).square().sum() + 0.5 * mean.square().sum()
    torch.testing.assert_close(rate[1], 0.7 + 0.5 * cost)
    assert torch.equal(heads.means[0], torch.zeros(4, dtype=torch.float64))


def test_draws_have_the_moments_of_the_posterior() -> None:
    heads, x, _ = _heads()
    generator = torch.Generator().manual_seed(5)
    drawn = torch.stack([heads.draw(generator)[1] for _ in range(20_000)])
    shape, rate = heads.noise()
    precision = 0.5 * torch.eye(4, dtype=torch.float64) + x.T @ x
    expected = torch.linalg.inv(precision) * rate[1] / (shape[1] - 1)
    found = torch.cov((drawn - heads.means[1]).T)
    assert float((found - expected).abs().max()) < 0.05 * float(expected.diagonal().max())
    assert float((drawn.mean(0) - heads.means[1]).abs().max()) < 0.005
