"""Hidden Markov models against enumeration, conjugate evidence, and hmmlearn where it is there."""

from __future__ import annotations

import itertools
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from exact import DTYPE, close, generator, randn, z_close
from scipy import stats
from torch import Tensor

from bayesrule.families import Dirichlet, NormalWishart
from bayesrule.graphical import (
    EM,
    HMM,
    SVI,
    VB,
    CategoricalEmissions,
    FitWarning,
    GaussianEmissions,
    NotFittedError,
)

LENGTHS = (120, 60, 1, 80)
SYMBOLS = CategoricalEmissions(symbols=4)


def path(num: int, seed: int = 0) -> Tensor:
    """States that stay for a while."""
    turns = torch.rand(num, generator=generator(seed)) < 0.1
    return turns.cumsum(0) % 3


def numbers(num: int = 261, seed: int = 0) -> Tensor:
    """Rows (n, 2) of three states, far from the origin."""
    centres = torch.tensor([[0.0, 0.0], [2.0, -1.0], [-1.0, 3.0]], dtype=DTYPE)
    return 7.0 + centres[path(num, seed)] + 0.7 * randn(num, 2, seed=seed)


def symbols(num: int = 261, seed: int = 0) -> Tensor:
    """Symbols 0 to 3 of three states."""
    table = torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.1, 0.7, 0.1, 0.1], [0.05, 0.05, 0.45, 0.45]])
    return torch.multinomial(table[path(num, seed)], 1, generator=generator(seed))[:, 0]


def shares(num: int = 261) -> Tensor:
    """A vague idea of the states."""
    return (randn(num, 3, seed=9) + torch.nn.functional.one_hot(path(num), 3)).softmax(1)


def fitted(x: Any, how: Any, lengths: Any = LENGTHS, **options: Any) -> HMM:
    """A fit from shares at random, with as many passes as asked, whether they suffice or not."""
    model = HMM(states=3, inference=how, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        return model.fit(x, lengths, responsibilities=shares(sum(lengths)))


def with_gaps(x: Tensor) -> Tensor:
    """Some numbers, and some whole rows, are missing."""
    x = x.clone()
    x[torch.rand(x.shape, generator=generator(3)) < 0.2] = math.nan
    x[5:9] = math.nan
    return x


@pytest.mark.parametrize("passes", [1, 2, 8])
def test_em_with_gaussians_is_that_of_hmmlearn_pass_by_pass(passes: int) -> None:
    hmm = pytest.importorskip("hmmlearn.hmm")
    x, how = numbers(), EM(passes=passes, tol=0.0)
    first = _before_any_pass(x, GaussianEmissions(reg_covar=0.0))
    ours = fitted(x, how, emissions=GaussianEmissions(reg_covar=0.0))
    theirs = hmm.GaussianHMM(
        3, "full", n_iter=passes, tol=-np.inf, init_params="", covars_prior=0.0
    )
    theirs.startprob_, theirs.transmat_ = first.startprob_.numpy(), first.transmat_.numpy()
    theirs.means_, theirs.covars_ = first.means_.numpy(), first.covars_.numpy()
    theirs.fit(x.numpy(), LENGTHS)
    close(torch.tensor(ours.report_.objective), torch.tensor([*theirs.monitor_.history]), 1e-9)
    for name in ("startprob_", "transmat_", "means_", "covars_"):
        close(getattr(ours, name), torch.from_numpy(getattr(theirs, name)), 1e-7)
    assert ours.score(x, LENGTHS) == pytest.approx(theirs.score(x.numpy(), LENGTHS), rel=1e-10)
    assert ours.predict(x, LENGTHS).tolist() == theirs.predict(x.numpy(), LENGTHS).tolist()
    posterior = theirs.predict_proba(x.numpy(), LENGTHS)
    close(ours.predict_proba(x, LENGTHS), torch.from_numpy(posterior), 1e-7)


@pytest.mark.parametrize("passes", [1, 2, 8])
def test_em_with_symbols_is_that_of_hmmlearn_pass_by_pass(passes: int) -> None:
    hmm = pytest.importorskip("hmmlearn.hmm")
    x = symbols()
    first, ours = (
        _before_any_pass(x, SYMBOLS),
        fitted(x, EM(passes=passes, tol=0.0), emissions=SYMBOLS),
    )
    theirs = hmm.CategoricalHMM(3, n_iter=passes, tol=-np.inf, init_params="")
    theirs.startprob_, theirs.transmat_ = first.startprob_.numpy(), first.transmat_.numpy()
    theirs.emissionprob_ = first.emissionprob_.numpy()
    theirs.fit(x.numpy()[:, None], LENGTHS)
    close(torch.tensor(ours.report_.objective), torch.tensor([*theirs.monitor_.history]), 1e-9)
    for name in ("startprob_", "transmat_", "emissionprob_"):
        close(getattr(ours, name), torch.from_numpy(getattr(theirs, name)), 1e-7)


def _before_any_pass(x: Tensor, emissions: Any) -> HMM:
    """The parameters that a fit begins with."""
    model = fitted(x, EM(passes=1), emissions=emissions)
    data = model._data(x, LENGTHS)
    prior, told = model._prior(), model._first(data, shares())
    model._see({k: tuple(a + b for a, b in zip(prior[k], told[k], strict=True)) for k in told})
    return model


def _brute_force(model: HMM, x: Tensor) -> float:
    """`log p(x)` by the sum over all paths, with what is missing left out of the densities."""
    densities = torch.zeros(len(x), 3, dtype=DTYPE)
    for t, k in itertools.product(range(len(x)), range(3)):
        there = ~x[t].isnan()
        if there.any():
            mean, cov = model.means_[k][there], model.covars_[k][there][:, there]
            densities[t, k] = stats.multivariate_normal(mean, cov).logpdf(x[t][there])
    terms = []
    for states in itertools.product(range(3), repeat=len(x)):
        total = model.startprob_[states[0]].log() + densities[0, states[0]]
        for t in range(1, len(x)):
            total = (
                total + model.transmat_[states[t - 1], states[t]].log() + densities[t, states[t]]
            )
        terms.append(total)
    return float(torch.stack(terms).logsumexp(0))


def test_the_likelihood_of_rows_with_gaps_is_that_of_what_is_there() -> None:
    model = fitted(numbers(), EM(passes=5))
    x = numbers(6, seed=4)
    assert model.score(x) == pytest.approx(_brute_force(model, x), rel=1e-10)
    x[1, 0] = x[3, 1] = math.nan
    x[4] = math.nan
    assert model.score(x) == pytest.approx(_brute_force(model, x), rel=1e-10)


@pytest.mark.parametrize("how", [EM(passes=30, tol=0.0), VB(passes=30, tol=0.0)])
@pytest.mark.parametrize("data", ["numbers", "gaps", "symbols", "symbols with gaps"])
def test_every_pass_raises_the_objective(how: Any, data: str) -> None:
    emissions: Any = SYMBOLS if "symbols" in data else GaussianEmissions(reg_covar=0.0)
    x = symbols().double() if "symbols" in data else numbers()
    x = with_gaps(x) if "gaps" in data else x
    steps = np.diff(fitted(x, how, emissions=emissions).report_.objective)
    assert (steps > -1e-8).all()
    assert steps.sum() > 5.0


def test_em_with_gaps_ends_where_the_likelihood_is_flat() -> None:
    x = with_gaps(numbers())
    emissions = GaussianEmissions(reg_covar=0.0)
    model = fitted(x, EM(passes=3000, tol=1e-13), emissions=emissions)
    data, seen = model._data(x, LENGTHS), model._seen
    top = float(model._local(data).evidence)
    for direction in (randn(3, 2, seed=1), randn(3, 2, seed=2)):
        for sign in (-1e-4, 1e-4):
            model._seen = type(seen)(seen.mean + sign * direction, seen.root, seen.constant)
            assert abs(float(model._local(data).evidence) - top) < 1e-4
            assert float(model._local(data).evidence) < top


def test_one_state_is_conjugate_bayes_and_its_bound_the_evidence() -> None:
    x = numbers(40)
    model = HMM(states=1, inference=VB(), emissions=GaussianEmissions(reg_covar=0.0)).fit(x)
    centred = x - x.mean(0)
    prior = NormalWishart(tuple(one[0] for one in model._prior()["emissions"]))
    told = (centred.sum(0), torch.tensor(-20.0), -0.5 * centred.T @ centred, torch.tensor(20.0))
    after = NormalWishart(tuple(a + b for a, b in zip(prior.natural, told, strict=True)))
    evidence = after.log_partition - prior.log_partition - 40 * math.log(2 * math.pi)
    assert model.report_.objective[-1] == pytest.approx(float(evidence), rel=1e-12)


def test_one_state_of_symbols_is_the_polya_distribution() -> None:
    x = symbols(30)
    model = HMM(states=1, inference=VB(), emissions=CategoricalEmissions(4, 0.5)).fit(x)
    counts = torch.bincount(x, minlength=4).double()
    before, after = Dirichlet.make([0.5] * 4), Dirichlet.make(counts + 0.5)
    evidence = float(after.log_partition - before.log_partition)
    assert model.report_.objective[-1] == pytest.approx(evidence, rel=1e-6)
    close(model.emissionprob_[0], after.mean)


def test_lists_lengths_and_frames_are_the_same_data() -> None:
    x = numbers()
    wanted = fitted(x, EM(passes=3)).means_
    parts = [one.numpy() for one in x.split(LENGTHS)]
    model = HMM(states=3, inference=EM(passes=3))
    with pytest.warns(FitWarning, match="not converged"):
        close(model.fit(parts, responsibilities=shares()).means_, wanted, 1e-12)
    frame = pd.DataFrame(x.numpy())
    close(fitted(frame, EM(passes=3)).means_, wanted, 1e-12)
    assert model.score(parts) == pytest.approx(model.score(x, LENGTHS), rel=1e-12)
    separate = sum(model.score(one) for one in parts)
    assert model.score(parts) == pytest.approx(separate, rel=1e-10)
    close(model.log_prob(parts)[1], float(model.log_prob(parts[1])), 1e-9)


def test_batches_of_sequences_come_near_the_whole() -> None:
    x, lengths = numbers(4000), [100] * 40
    whole = HMM(states=3, inference=VB()).fit(x, lengths)
    parts = HMM(states=3, inference=SVI(batch_size=8, delay=1.0)).fit(x, lengths)
    assert parts.score(x, lengths) > whole.score(x, lengths) - 20.0
    assert sorted(parts.means_[:, 0].tolist()) == pytest.approx([6.0, 7.0, 9.0], abs=0.15)


def test_batches_of_which_nothing_was_seen_say_nothing() -> None:
    x = numbers(200)
    x[:50] = math.nan
    model = HMM(states=2, inference=SVI(batch_size=1, passes=2)).fit(x, [50] * 4)
    told = model._local(model._data(x[:50], None)).messages["emissions"]
    assert all(float(one.abs().max()) == 0.0 for one in told)


def test_gaps_are_filled_by_what_is_likely() -> None:
    x = numbers(500)
    holes = x.clone()
    holes[::7, 1] = math.nan
    model = HMM(states=3).fit(holes)
    full = model.impute(holes)
    assert torch.equal(full[1:7], holes[1:7])
    assert torch.equal(model.impute(x), x)
    close(
        model.impute(torch.full((40, 2), math.nan))[-1],
        model.predict_proba(torch.full((40, 2), math.nan))[-1] @ model.means_,
        1e-9,
    )
    error = (full[::7, 1] - x[::7, 1]).square().mean().sqrt()
    assert float(error) < 0.6 * float(x[:, 1].std())


@pytest.mark.parametrize("how", [EM(), VB()])
def test_draws_follow_the_chain(how: Any) -> None:
    model = HMM(states=3, inference=how).fit(numbers())
    drawn, states = model.sample(20_000, seed=2)
    for k in range(3):
        follows = states[1:][states[:-1] == k]
        z_close((follows == k).double(), float(model.transmat_[k, k]))
        z_close(drawn[states == k], model.means_[k])
    spelled = HMM(states=2, emissions=SYMBOLS, restarts=2).fit(symbols())
    seen, states = spelled.sample(5000)
    z_close((seen[states == 0] == 1).double(), float(spelled.emissionprob_[0, 1]))


@pytest.mark.parametrize("emissions", [GaussianEmissions(), SYMBOLS])
def test_files_hold_everything(emissions: Any, tmp_path: Path) -> None:
    x = symbols() if emissions is SYMBOLS else numbers()
    model = HMM(states=2, emissions=emissions, inference=VB(tol=1e-4)).fit(x)
    model.save(tmp_path / "hmm.safetensors")
    again = HMM.load(tmp_path / "hmm.safetensors")
    assert torch.equal(again.log_prob(x), model.log_prob(x))
    assert repr(again) == repr(model)
    assert again.emissions == emissions
    assert again.inference.at_mode is False


def test_a_state_that_collapses_is_reported() -> None:
    x = torch.cat([numbers(100), torch.full((1, 2), 500.0, dtype=DTYPE), numbers(99, seed=1)])
    with pytest.warns(FitWarning, match=r"State \d has collapsed: it holds 1 rows.*VB\(\)"):
        HMM(states=2).fit(x)


def test_bad_input_is_refused() -> None:
    x = numbers(30)
    with pytest.raises(
        ValueError, match=r"lengths are 1 or more and sum to the 30 rows.*sum to 31"
    ):
        HMM(states=2).fit(x, [10, 21])
    infinite = x.clone()
    infinite[4, 1] = math.inf
    with pytest.raises(ValueError, match="not finite at row 4, column 1: inf"):
        HMM(states=2).fit(infinite)
    with pytest.raises(ValueError, match="Column 1 of x holds no number"):
        HMM(states=2).fit(torch.stack([x[:, 0], torch.full((30,), math.nan)], 1))
    with pytest.raises(ValueError, match=r"whole numbers from 0 below 4; row 2 is 7"):
        HMM(states=2, emissions=SYMBOLS).fit([0, 1, 7, 1])
    with pytest.raises(ValueError, match=r"row 1 is 0\.5"):
        HMM(states=2, emissions=CategoricalEmissions()).fit([0, 0.5, 7, 1])
    with pytest.raises(ValueError, match="3 states need as many steps; got 2"):
        HMM(states=3).fit(x[:2])
    with pytest.raises(ValueError, match="All sequences have the same columns"):
        HMM(states=2).fit([x.numpy(), x[:, :1].numpy()])
    with pytest.raises(ValueError, match=r"got the shape \(0,\)"):
        HMM(states=2).fit([])
    with pytest.raises(ValueError, match="states is a whole number"):
        HMM(states=0)
    with pytest.raises(NotFittedError, match="no data"):
        HMM(states=2).predict(x)
    model = HMM(states=2).fit(x)
    with pytest.raises(AttributeError, match="see means_"):
        _ = model.emissionprob_
    with pytest.raises(ValueError, match="1 columns; the model was fitted to 2"):
        model.score(x[:, :1])
