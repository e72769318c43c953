"""Spectra of standard deviations and their truncation, against numpy's decomposition."""

from typing import Any

import numpy as np
import pytest
import torch
from exact import DTYPE, close, generator, randn
from torch import Tensor, nn

import bayesrule as br
from bayesrule.matrices import DiagonalMatrix, IsotropicMatrix
from bayesrule.posteriors import Gaussian, KTied, MeanField, PointBelief, Posterior, Product
from bayesrule.predicting.scales import (
    Spectrum,
    compress,
    compressed_parameters,
    spectrum,
)
from bayesrule.types import Params

MEAN = {
    "w": randn(7, 5, seed=1),
    "c": randn(4, 3, 2, 2, seed=2),
    "row": randn(1, 5, seed=3),
    "b": randn(7, seed=4),
}
LOG_STD = {k: 0.7 * randn(*v.shape, seed=10 + i) - 2.0 for i, (k, v) in enumerate(MEAN.items())}


def _mean_field() -> MeanField:
    return MeanField(MEAN, LOG_STD)


def _numpy(std: Tensor) -> tuple[Any, Any, Any]:
    return np.linalg.svd(std.reshape(len(std), -1).numpy(), full_matrices=False)


def _truncated(std: Tensor, rank: int) -> Tensor:
    left, values, right = _numpy(std)
    return torch.from_numpy(left[:, :rank] * values[:rank] @ right[:rank]).view(std.shape)


def test_singular_values_and_shares_are_numpys() -> None:
    found = spectrum(_mean_field())
    assert list(found) == ["w", "c"]
    for name, one in found.items():
        std = LOG_STD[name].exp()
        _, values, _ = _numpy(std)
        close(one.std, std.flatten(start_dim=1))
        close(one.singular_values, torch.from_numpy(values))
        close(one.explained, torch.from_numpy(values**2 / (values**2).sum()))
        close(one.cumulative, one.explained.cumsum(0))
        close(one.cumulative[-1], 1.0)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_truncation_is_numpys(rank: int) -> None:
    for name, one in spectrum(_mean_field()).items():
        wanted = _truncated(LOG_STD[name].exp(), rank)
        close(one.truncated(rank), wanted.flatten(start_dim=1))
        lost = (one.std - one.truncated(rank)).square().sum() / one.std.square().sum()
        close(lost, 1.0 - one.cumulative[rank - 1])


def test_a_rank_outside_the_matrix_is_refused() -> None:
    one = Spectrum(torch.ones(3, 2))
    for rank in (0, 3):
        with pytest.raises(ValueError, match=f"rank must be from 1 to 2, got {rank}"):
            one.truncated(rank)


def test_single_precision_is_computed_in_double() -> None:
    std = torch.rand(30, 20, generator=generator(1))
    close(Spectrum(std).singular_values, torch.from_numpy(_numpy(std.double())[1]))


def _precision(names: tuple[str, ...] = tuple(MEAN)) -> Params:
    return {name: (-2.0 * LOG_STD[name]).exp() for name in names}


def _beside_known(belief: Posterior) -> Product:
    """A belief over the matrix alone; all other weights are known."""
    others = {name: value for name, value in MEAN.items() if name != "w"}
    parts = {"w": belief, "*": PointBelief(others)}
    return Product(parts, {"w": ("w",), "*": tuple(others)})


INDEPENDENT: dict[str, Posterior] = {
    "mean-field": _mean_field(),
    "diagonal": Gaussian(MEAN, DiagonalMatrix(_precision())),
    "some weights": _beside_known(
        Gaussian({"w": MEAN["w"]}, DiagonalMatrix(_precision(("w",)))),
    ),
    "known": _beside_known(MeanField({"w": MEAN["w"]}, {"w": LOG_STD["w"]})),
}


@pytest.mark.parametrize("posterior", INDEPENDENT.values(), ids=INDEPENDENT)
def test_every_belief_with_independent_weights_is_taken(posterior: Posterior) -> None:
    close(spectrum(posterior)["w"].std, LOG_STD["w"].exp())
    found = compress(posterior, {"w": 1})
    variance = posterior.variance()
    for name in MEAN:
        wanted = _truncated(LOG_STD["w"].exp(), 1) ** 2 if name == "w" else variance[name]
        close(found.variance()[name], wanted)
        assert torch.equal(found.mean[name], MEAN[name])


def test_tied_and_isotropic_beliefs_have_their_rank() -> None:
    tied = KTied({"w": MEAN["w"]}, {"w.u": randn(2, 7, seed=5), "w.v": randn(2, 5, seed=6)})
    close(spectrum(tied)["w"].cumulative[1], 1.0)
    close(compress(tied, 2).std()["w"], tied.std()["w"])
    one = IsotropicMatrix(torch.tensor(4.0, dtype=DTYPE), {"w": (7, 5)})
    close(spectrum(Gaussian({"w": MEAN["w"]}, one))["w"].explained[0], 1.0)


def test_dependent_weights_are_refused() -> None:
    dense = br.Dense().identity({"w": MEAN["w"]}, 1.0)
    with pytest.raises(TypeError, match=r"independent weights.*got Gaussian over DenseMatrix"):
        spectrum(Gaussian({"w": MEAN["w"]}, dense))


# Compression.


def test_negative_entries_become_positive_and_zeros_tiny() -> None:
    """A truncated σ below zero is the same Gaussian as |σ|; a KL needs it above zero."""
    std = torch.rand(3, 3, dtype=DTYPE, generator=generator(5)) ** 3
    raw = Spectrum(std).truncated(2)
    assert raw.min() < -0.01
    q = compress(MeanField({"w": torch.zeros_like(std)}, {"w": std.log()}), 2)
    close(q.std()["w"], raw.abs())
    eye = 1e-9 + torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=DTYPE))
    q = compress(MeanField({"w": eye}, {"w": eye.log()}), 2)
    close(q.std()["w"][2, 2], 1e-6 * eye.mean(), 1e-12)
    assert torch.isfinite(q.kl(1.0))


def test_full_rank_changes_nothing() -> None:
    q = _mean_field()
    same = compress(q, {"w": 5, "c": 4})
    for name in MEAN:
        close(same.std()[name], q.std()[name])
    assert same.mean["w"] is not q.mean["w"]


def test_ranks_are_as_for_the_family() -> None:
    q = _mean_field()
    found = compress(q, {"c": None, "*": 2})
    assert torch.linalg.matrix_rank(found.std()["w"], rtol=1e-4) <= 5
    close(found.std()["w"], _truncated(q.std()["w"], 2).abs())
    close(found.std()["c"], q.std()["c"])
    with pytest.raises(ValueError, match="Rank 5 is too large for 'c', a 4 × 12 matrix"):
        compress(q, 5)


def test_the_compressed_belief_counts_as_a_tied_one() -> None:
    params = {k: v.detach() for k, v in nn.Linear(20, 30).named_parameters()}
    free = br.MeanFieldFamily().init(params, weight=1.0, prior=1.0)
    for rank in (1, 2, 3):
        tied = br.KTiedFamily(rank).init(params, weight=1.0, prior=1.0)
        assert compressed_parameters(free, rank) == tied.num_parameters
        assert compressed_parameters(tied, rank) == tied.num_parameters
        assert compress(free, rank).num_parameters == free.num_parameters
    assert compressed_parameters(free, {"bias": None}) == free.num_parameters


def test_a_state_keeps_all_but_its_posterior_and_predicts() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    learner = br.mean_field(net, br.CategoricalLikelihood(), num_data=16)
    x, y = torch.randn(16, 4), torch.arange(16) % 3
    state, _ = learner.step(learner.init(0), (x, y))
    assert isinstance(state.posterior, MeanField)
    for scales in state.posterior.scales.values():
        scales.add_(torch.randn(scales.shape, generator=generator(2)))
    small = br.predicting.compress(state, 1)
    assert isinstance(small.posterior, MeanField)
    assert small.rule is state.rule
    assert small.step == 1
    assert br.predicting.spectrum(small.posterior)["0.weight"].explained[0] > 1.0 - 1e-9
    before, after = (br.predict(learner, s, x).mean for s in (state, small))
    # The same draws at standard deviations that are close to each other.
    close(after, before, 0.03)
    assert not torch.equal(after, before)
