"""The predictive mixture: densities, quantiles, intervals, classes, against torch and scipy."""

import math

import numpy as np
import pytest
import torch
from exact import DTYPE, close, randn, z_close
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal

from bayesrule.likelihoods import (
    BinaryTargets,
    ClassTargets,
    NegativeBinomialTargets,
    NormalTargets,
    PoissonTargets,
    TargetDistribution,
)
from bayesrule.predicting.prediction import Prediction

stable = settings(max_examples=40, deadline=None, derandomize=True, database=None)


def normals(loc: Tensor, scale: Tensor) -> Prediction:
    """An equal mixture of Gaussians (K, n, *)."""
    return Prediction(
        NormalTargets(loc, scale),
        loc.mean(0),
        loc.var(0, correction=0),
        scale.square().mean(0),
        loc,
    )


def poissons(rate: Tensor) -> Prediction:
    """An equal mixture of counts (K, n, *)."""
    return Prediction(
        PoissonTargets(rate),
        rate.mean(0),
        rate.var(0, correction=0),
        rate.mean(0),
        rate,
    )


def classes(p: Tensor) -> Prediction:
    """An equal mixture of class probabilities (K, n, C), or of yes-or-no ones (K, n), (K, n, 1)."""
    several = p.ndim == 3 and p.shape[-1] > 1
    components = ClassTargets(p.log()) if several else BinaryTargets(p.logit())
    spread = p.var(0, correction=0)
    mean = p.mean(0)
    return Prediction(components, mean, spread, mean * (1 - mean) - spread, p)


LOC, SCALE = 2.0 * randn(3, 4, 1, seed=1), randn(3, 4, 1, seed=2).exp()
NUMBERS = normals(LOC, SCALE)
PROBS = randn(5, 4, 3, seed=3).softmax(-1)
Y = randn(4, 1, seed=4)


def torch_mixture() -> MixtureSameFamily:
    weights = Categorical(torch.ones(4, 1, 3, dtype=DTYPE))
    return MixtureSameFamily(weights, Normal(LOC.movedim(0, -1), SCALE.movedim(0, -1)))


def test_log_prob_and_cdf_are_those_of_the_mixture() -> None:
    close(NUMBERS.log_prob(Y), torch_mixture().log_prob(Y)[:, 0])
    close(NUMBERS.cdf(Y), torch_mixture().cdf(Y))
    close(NUMBERS.component_log_probs(Y), Normal(LOC, SCALE).log_prob(Y)[..., 0])
    assert NUMBERS.num_components == 3


def test_moments_are_those_of_the_mixture() -> None:
    close(NUMBERS.mean, torch_mixture().mean)
    close(NUMBERS.variance, torch_mixture().variance)
    close(NUMBERS.std, torch_mixture().variance.sqrt())


def test_log_prob_adds_over_outputs_within_a_component() -> None:
    p = normals(LOC.reshape(3, 2, 2), SCALE.reshape(3, 2, 2))
    each = Normal(LOC, SCALE).log_prob(Y).reshape(3, 2, 2).sum(-1)
    close(p.log_prob(Y.reshape(2, 2)), each.logsumexp(0) - math.log(3))


@stable
@given(q=st.floats(1e-6, 1 - 1e-6), size=st.sampled_from([1e-6, 1.0, 1e6]))
def test_quantile_inverts_the_cdf(q: float, size: float) -> None:
    p = normals(size * LOC, size * SCALE)
    close(p.cdf(p.quantile(q)), torch.full((4, 1), q, dtype=DTYPE), 1e-9)


@stable
@given(q=st.floats(1e-9, 1 - 1e-9))
def test_quantile_of_one_gaussian(q: float) -> None:
    p = normals(LOC[:1], SCALE[:1])
    expected = stats.norm.ppf(q, LOC[0].numpy(), SCALE[0].numpy())
    np.testing.assert_allclose(p.quantile(q).numpy(), expected, rtol=1e-6, atol=1e-6)


def test_samples_have_the_moments_and_are_covered() -> None:
    drawn = NUMBERS.sample(6000, seed=1)
    assert drawn.shape == (6000, 4, 1)
    z_close(drawn, NUMBERS.mean)
    z_close((drawn - NUMBERS.mean).square(), NUMBERS.epistemic + NUMBERS.aleatoric)
    for level in (0.5, 0.9):
        low, high = NUMBERS.interval(level)
        z_close(((drawn >= low) & (drawn <= high)).to(DTYPE), level)
        z_close((drawn < low).to(DTYPE), 0.5 - 0.5 * level)
    assert torch.equal(NUMBERS.sample(5, seed=2), NUMBERS.sample(5, seed=2))
    assert not torch.equal(NUMBERS.sample(5, seed=2), NUMBERS.sample(5, seed=3))


@stable
@given(q=st.floats(1e-4, 1 - 1e-4), rate=st.floats(1e-3, 500.0))
def test_quantile_of_counts(q: float, rate: float) -> None:
    p = poissons(torch.tensor([[[rate]]], dtype=DTYPE))
    expected = float(stats.poisson.ppf(q, rate))
    # Where the cdf meets q to the last digit either neighbour is right.
    if abs(stats.poisson.cdf(expected, rate) - q) > 1e-12:
        assert float(p.quantile(q)) == expected


@pytest.mark.parametrize("q", [0.01, 0.5, 0.9, 0.999])
def test_quantile_of_a_mixture_of_counts(q: float) -> None:
    rates = torch.tensor([[[0.05], [2.0]], [[0.3], [30.0]]], dtype=DTYPE)
    counts = np.arange(200)
    cdf = stats.poisson.cdf(counts, rates[:, :, 0, None].numpy()).mean(0)
    expected = [int(counts[row >= q][0]) for row in cdf]
    assert poissons(rates).quantile(q)[:, 0].tolist() == expected


def test_cdf_and_density_of_counts() -> None:
    p = poissons(torch.tensor([[[0.4], [3.0]], [[1.0], [9.0]]], dtype=DTYPE))
    y = torch.tensor([[0.0], [5.0]], dtype=DTYPE)
    rates = p.conditional_means.numpy()
    np.testing.assert_allclose(p.cdf(y), stats.poisson.cdf(y, rates).mean(0), rtol=1e-10)
    np.testing.assert_allclose(p.cdf(y + 0.5), p.cdf(y), rtol=1e-12)
    close(p.cdf(torch.full((2, 1), -1.0)), torch.zeros(2, 1), 0.0)
    expected = np.log(stats.poisson.pmf(y, rates).mean(0)[:, 0])
    np.testing.assert_allclose(p.log_prob(y), expected, rtol=1e-10)
    drawn = p.sample(4000)
    z_close(drawn, p.mean)
    z_close((drawn - p.mean).square(), p.variance)


def test_classes() -> None:
    p, mean = classes(PROBS), PROBS.mean(0)
    close(p.probs, mean)
    assert p.labels.tolist() == mean.argmax(1).tolist()
    entropy = -(mean * mean.log()).sum(1)
    close(p.entropy, entropy)
    close(p.mutual_information, entropy + (PROBS * PROBS.log()).sum(-1).mean(0))
    y = torch.tensor([0, 2, 1, 0])
    close(p.log_prob(y), mean[torch.arange(4), y].log())
    drawn = torch.nn.functional.one_hot(p.sample(4000), 3).to(DTYPE)
    z_close(drawn, mean)
    z_close((drawn - mean).square(), p.variance)


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 1)])
def test_yes_or_no(shape: tuple[int, ...]) -> None:
    yes = randn(*shape, seed=6).sigmoid()
    p, both = classes(yes), torch.stack([1 - yes.reshape(5, 4), yes.reshape(5, 4)], dim=-1)
    close(p.probs, both.mean(0))
    close(p.entropy, -(both.mean(0) * both.mean(0).log()).sum(1))
    close(p.mutual_information, p.entropy + (both * both.log()).sum(-1).mean(0))
    y = torch.tensor([0, 1, 1, 0])
    close(p.log_prob(y), both.mean(0)[torch.arange(4), y].log())
    drawn = p.sample(3000)
    assert drawn.shape == (3000, *shape[1:])
    z_close(drawn, p.mean)


def test_agreeing_draws_hold_no_information_about_the_weights() -> None:
    p = classes(PROBS[:1].expand(5, 4, 3))
    close(p.mutual_information, torch.zeros(4), 1e-12)
    close(p.epistemic, torch.zeros(4, 3), 1e-12)


def test_several_yes_or_no_targets_have_no_single_label() -> None:
    yes = randn(5, 4, 3, seed=6).sigmoid()
    p = Prediction(BinaryTargets(yes.logit()), yes.mean(0), yes.mean(0), yes.mean(0), yes)
    for name in ("probs", "labels", "entropy", "mutual_information"):
        with pytest.raises(TypeError, match=r"3 yes-or-no targets"):
            getattr(p, name)
    y = torch.ones(4, 3, dtype=DTYPE)
    close(p.log_prob(y), yes.log().sum(-1).logsumexp(0) - math.log(5))


def test_rescaled_is_the_prediction_of_the_rescaled_target() -> None:
    shift, scale = torch.tensor([3.0]), torch.tensor([2.5])
    p = NUMBERS.rescaled(shift, scale)
    y = Y * 2.5 + 3.0
    close(p.log_prob(y), NUMBERS.log_prob(Y) - math.log(2.5))
    close(p.quantile(0.8), NUMBERS.quantile(0.8) * 2.5 + 3.0)
    close(p.variance, NUMBERS.variance * 6.25)
    z_close(p.sample(3000), p.mean)
    close(NUMBERS.rescaled(0.0, 1.0).mean, NUMBERS.mean, 0.0)


def test_rescaling_is_refused_where_it_means_nothing() -> None:
    with pytest.raises(TypeError, match="Only real-valued"):
        classes(PROBS).rescaled(0.0, 1.0)
    for scale in (0.0, -1.0):
        with pytest.raises(ValueError, match="positive"):
            NUMBERS.rescaled(0.0, scale)


def test_columns_and_vectors_are_taken_for_each_other() -> None:
    close(NUMBERS.log_prob(Y[:, 0]), NUMBERS.log_prob(Y), 0.0)
    flat = normals(LOC[..., 0], SCALE[..., 0])
    close(flat.log_prob(Y), NUMBERS.log_prob(Y), 0.0)
    assert flat.cdf(Y).shape == (4,)


@pytest.mark.parametrize("shape", [(1, 4), (2, 2), (3, 1), (4, 2), (1,), ()])
def test_targets_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="This prediction needs targets of the shape"):
        NUMBERS.log_prob(torch.zeros(shape, dtype=DTYPE))
    with pytest.raises(ValueError, match="class numbers of shape"):
        classes(PROBS).log_prob(torch.zeros(shape, dtype=torch.long))


def test_what_a_kind_of_target_does_not_have_is_refused() -> None:
    for use in (lambda p: p.cdf(Y), lambda p: p.quantile(0.5), lambda p: p.interval()):
        with pytest.raises(TypeError, match="no order"):
            use(classes(PROBS))
    for name in ("probs", "labels", "entropy", "mutual_information"):
        with pytest.raises(TypeError, match="belongs to classes"):
            getattr(NUMBERS, name)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 90.0])
def test_levels_lie_between_zero_and_one(level: float) -> None:
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        NUMBERS.quantile(level)
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        NUMBERS.interval(level)


def test_every_way_to_a_mixture_is_the_same() -> None:
    for p in (NUMBERS, classes(PROBS), poissons(LOC.exp())):
        again = Prediction.mixture(p.components)
        for name in ("mean", "epistemic", "aleatoric", "conditional_means"):
            close(getattr(again, name), getattr(p, name))


def test_counts_with_more_spread_are_sampled_as_such() -> None:
    p = Prediction.mixture(NegativeBinomialTargets(0.3 * LOC, dispersion=0.8))
    drawn = p.sample(6000)
    z_close(drawn, p.mean)
    z_close((drawn - p.mean).square(), p.variance)
    assert drawn.max() > 1


def test_one_component_of_yes_or_no_has_information_in_every_shape() -> None:
    """To second order, `½ Var[p] (1/p + 1/(1 − p))`."""
    yes, spread = torch.tensor([0.2, 0.5, 0.9], dtype=DTYPE), torch.full((3,), 0.01, dtype=DTYPE)
    for shape in ((3,), (3, 1)):
        mean, epistemic = yes.reshape(shape), spread.reshape(shape)
        rest = mean * (1 - mean) - epistemic
        p = Prediction(BinaryTargets(mean.logit()[None]), mean, epistemic, rest, mean[None])
        close(p.mutual_information, 0.5 * spread / (yes * (1 - yes)))


class Unordered(TargetDistribution):
    """Targets of which only the mean is known."""

    mean = LOC
    variance = SCALE.square()

    def log_prob(self, y: Tensor) -> Tensor:
        return -(y - self.mean).square()


def test_what_a_distribution_lacks_is_said_by_name() -> None:
    p = Prediction.mixture(Unordered())
    for use in (lambda: p.cdf(Y), lambda: p.quantile(0.5), lambda: p.interval()):
        with pytest.raises(TypeError, match=r"Unordered has no cumulative .* sample\(num\)"):
            use()
    with pytest.raises(TypeError, match="Unordered cannot draw targets"):
        p.sample(3)
    with pytest.raises(TypeError, match="Unordered has targets that cannot be shifted"):
        p.rescaled(0.0, 1.0)


def test_pooled_predictions_are_one_mixture_of_all_components() -> None:
    locs, scales = randn(3, 4, 6, 1), randn(3, 4, 6, 1).exp()
    members = [normals(loc, scale) for loc, scale in zip(locs, scales, strict=True)]
    pooled, whole = Prediction.pooled(members), normals(locs.flatten(0, 1), scales.flatten(0, 1))
    y = randn(6, 1)
    close(pooled.log_prob(y), whole.log_prob(y))
    close(pooled.mean, whole.mean)
    close(pooled.epistemic, whole.epistemic)
    close(pooled.aleatoric, whole.aleatoric)
    close(pooled.quantile(0.3), whole.quantile(0.3))


def test_pooled_classes_have_the_information_of_one_mixture() -> None:
    p = torch.rand(3, 4, 6, 5, dtype=DTYPE).softmax(-1)
    pooled = Prediction.pooled([classes(member) for member in p])
    whole = classes(p.flatten(0, 1))
    close(pooled.probs, whole.probs)
    close(pooled.entropy, whole.entropy)
    close(pooled.mutual_information, whole.mutual_information)


def test_predictions_of_different_sizes_are_not_pooled() -> None:
    with pytest.raises(ValueError, match="same number of components"):
        Prediction.pooled([normals(randn(k, 2, 1), torch.ones(k, 2, 1)) for k in (2, 3)])
