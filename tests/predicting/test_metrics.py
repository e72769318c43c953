"""Metrics against scipy, scikit-learn, numerical integration and brute force."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from scipy.special import erfc
from sklearn import metrics as reference
from torch import Tensor

from bayesrule.predicting import metrics

mixture = metrics.crps_mixture_of_gaussians
quick = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 2**31)
numbers = st.floats(-100, 100)


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def classes(n: int, c: int, seed: int = 0, ties: bool = False) -> tuple[Tensor, Tensor]:
    """Probabilities, coarse ones on request, and labels drawn from them."""
    generator = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(n, c, generator=generator, dtype=torch.float64)).softmax(-1)
    if ties:
        probs = probs.mul(10).round().clamp_min(1)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs, torch.multinomial(probs, 1, generator=generator).squeeze(-1)


def close(got: Tensor, expected: object, tol: float = 1e-12) -> None:
    torch.testing.assert_close(got, torch.as_tensor(expected, dtype=got.dtype), rtol=tol, atol=tol)


def test_errors_equal_sklearn_and_count_every_entry() -> None:
    mean, y = normal(5, 4), normal(5, 4, seed=1)
    close(metrics.rmse(mean, y).square(), reference.mean_squared_error(y, mean))
    close(metrics.mae(mean, y), reference.mean_absolute_error(y, mean))
    # An integer target is not rounded on its way to the prediction's dtype.
    close(metrics.mae(torch.tensor([2.0**40]).double(), torch.tensor([2**40 + 1])), 1.0)


def test_gaussian_log_likelihood_equals_scipy() -> None:
    mean, variance, y = normal(20), normal(20, seed=1).exp(), normal(20, seed=2)
    expected = stats.norm.logpdf(y, mean, variance.sqrt()).mean()
    close(metrics.gaussian_log_likelihood(mean, variance, y), expected)
    with pytest.raises(ValueError, match="variance must be above 0, got 0"):
        metrics.gaussian_log_likelihood(mean, 0 * variance, y)


def test_mixture_log_likelihood_is_per_point_and_not_joint() -> None:
    densities = stats.norm.pdf(normal(20, seed=1), normal(7, 20), 0.5)
    got = metrics.mixture_log_likelihood(torch.as_tensor(densities).log())
    close(got, np.log(densities.mean(0)).mean())
    assert abs(got - np.log(densities.prod(1).mean()) / 20) > 0.1
    close(metrics.mixture_log_likelihood(torch.full((3, 2, 1), -1e5)), -1e5)  # exp underflows


@quick
@given(seeds, st.integers(2, 40), st.integers(2, 5))
def test_scores_of_classes_equal_sklearn(seed: int, n: int, c: int) -> None:
    probs, y = classes(n, c, seed)
    labels = list(range(c))
    close(metrics.accuracy(probs, y), reference.accuracy_score(y, probs.argmax(-1)))
    close(metrics.nll(probs, y), reference.log_loss(y, probs, labels=labels))
    expected = reference.brier_score_loss(y, probs, labels=labels, scale_by_half=False)
    close(metrics.brier(probs, y), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_perfect_and_worst_predictions(dtype: torch.dtype) -> None:
    probs, y = torch.eye(3, dtype=dtype), torch.arange(3)
    for score in (metrics.nll, metrics.brier, metrics.ece):
        close(score(probs, y), 0.0)
    close(metrics.entropy(probs), torch.zeros(3))
    wrong = y.roll(1)  # probability 0 on the true class is finite
    close(metrics.nll(probs, wrong), -math.log(torch.finfo(dtype).tiny), 1e-6)
    close(metrics.brier(probs, wrong), 2.0)
    close(metrics.ece(probs[:1], wrong[:1]), 1.0)
    close(metrics.accuracy(probs, y) - metrics.accuracy(probs, wrong), 1.0)


def brute_ece(probs: Tensor, y: Tensor, edges: list[float]) -> float:
    confidence, best = probs.max(-1)
    excess = (best == y).double() - confidence
    bins = pairwise([*edges[:-1], 2.0])  # rounding may lift a confidence above 1
    gaps = [excess[(confidence > low) & (confidence <= high)].sum().abs() for low, high in bins]
    return float(sum(gaps)) / len(y)


@quick
@given(seeds, st.integers(1, 40), st.integers(2, 4), st.integers(1, 20))
def test_ece_equals_brute_force(seed: int, n: int, c: int, bins: int) -> None:
    probs, y = classes(n, c, seed)
    equal_width = [b / bins for b in range(bins + 1)]
    close(metrics.ece(probs, y, bins), brute_ece(probs, y, equal_width))
    ranked = probs.max(-1).values.sort().values.tolist()
    equal_mass = [0.0, *(ranked[math.ceil(n * b / bins) - 1] for b in range(1, bins)), 1.0]
    close(metrics.ece(probs, y, bins, adaptive=True), brute_ece(probs, y, equal_mass))
    count = metrics.reliability(probs, y, bins, adaptive=True).count
    assert count.max() - count.min() <= 1


@quick
@given(seeds, st.integers(1, 40), st.integers(2, 4), st.integers(1, 20), st.booleans())
def test_ece_is_in_range_and_blind_to_order(
    seed: int, n: int, c: int, bins: int, adaptive: bool
) -> None:
    probs, y = classes(n, c, seed, ties=True)
    got = metrics.ece(probs, y, bins, adaptive)
    assert 0 <= got <= 1
    close(metrics.ece(probs.flip(0), y.flip(0), bins, adaptive), got)


def test_ece_tells_calibrated_from_overconfident() -> None:
    probs, y = classes(20_000, 3)
    bold = probs**3 / (probs**3).sum(-1, keepdim=True)
    for adaptive in (False, True):
        assert metrics.ece(probs, y, adaptive=adaptive) < 0.02
        assert metrics.ece(bold, y, adaptive=adaptive) > 0.1


def test_reliability_table() -> None:
    probs = torch.tensor([[0.6, 0.4], [0.75, 0.25], [0.2, 0.8], [1.0, 0.0]])
    table = metrics.reliability(probs, torch.tensor([0, 1, 1, 0]), bins=4)
    close(table.edges, [0, 0.25, 0.5, 0.75, 1])
    assert table.count.tolist() == [0, 0, 2, 2]  # 0.75 belongs below its edge
    close(table.confidence[2:], [0.675, 0.9], 1e-6)
    close(table.accuracy[2:], [0.5, 1.0])
    assert torch.stack([table.accuracy[:2], table.confidence[:2]]).isnan().all()


@quick
@given(seeds, st.integers(1, 6), st.integers(1, 10))
def test_entropy_and_mutual_information_equal_scipy(seed: int, draws: int, n: int) -> None:
    probs = (3 * normal(draws, n, 3, seed=seed)).softmax(-1)
    close(metrics.entropy(probs[0]), stats.entropy(probs[0], axis=-1))
    got = metrics.mutual_information(probs)
    close(got, stats.entropy(probs, probs.mean(0), axis=-1).mean(0))
    assert (got <= math.log(draws) + 1e-12).all()
    agreeing = metrics.mutual_information(probs[:1].float().expand(3, n, 3))
    assert ((agreeing >= 0) & (agreeing < 1e-6)).all()


@quick
@given(st.lists(st.integers(0, 8), min_size=1), st.lists(st.integers(0, 8), min_size=1))
def test_auroc_equals_sklearn_with_ties(inside: list[int], outside: list[int]) -> None:
    got = metrics.auroc(torch.tensor(inside) / 8, torch.tensor(outside) / 8)
    truth = [0] * len(inside) + [1] * len(outside)
    close(got, reference.roc_auc_score(truth, inside + outside), 1e-6)
    close(metrics.auroc(torch.tensor(outside), torch.tensor(inside)), 1 - got, 1e-6)
    strided = torch.tensor([[score, math.nan] for score in outside])[:, 0]
    close(metrics.auroc(torch.tensor(inside)[:, None], strided), got)


@quick
@given(seeds, st.integers(2, 40), st.integers(2, 4), st.booleans())
def test_scores_for_imbalanced_classes_equal_sklearn(seed: int, n: int, c: int, ties: bool) -> None:
    probs, y = classes(n, c, seed, ties)
    truth, present = np.eye(c)[y], y.unique()
    found = reference.recall_score(y, probs.argmax(-1), labels=present, average="macro")
    close(metrics.balanced_accuracy(probs, y), found)
    precision = reference.average_precision_score(truth[:, present], probs[:, present])
    close(metrics.average_precision(probs, y), precision)
    if len(present) < 2:
        assert metrics.class_auroc(probs, y).isnan()
    else:
        ranked = reference.roc_auc_score(truth[:, present], probs[:, present])
        close(metrics.class_auroc(probs, y), ranked)


def test_one_class_for_all_looks_good_by_accuracy_alone() -> None:
    probs, y = torch.tensor([[0.9, 0.1]] * 20), torch.tensor([0] * 19 + [1])
    close(metrics.accuracy(probs, y), 0.95, 1e-6)
    close(metrics.balanced_accuracy(probs, y), 0.5, 1e-6)
    close(metrics.class_auroc(probs, y), 0.5, 1e-6)
    close(metrics.average_precision(probs, y), (0.95 + 0.05) / 2, 1e-6)


def test_coverage_includes_the_bounds_and_sharpness_is_the_width() -> None:
    lower, upper = torch.zeros(4), torch.tensor([1.0, 1.0, 2.0, 0.0])
    close(metrics.coverage(lower, upper, torch.tensor([0.0, 1.5, 2.0, -0.1])), 0.5)
    close(metrics.sharpness(lower, upper), 1.0)
    for bound in (-1.0, math.nan):
        with pytest.raises(ValueError, match=r"got 1 of 4 that do; were they swapped"):
            metrics.coverage(lower, torch.tensor([1.0, 1.0, 1.0, bound]), lower)


@quick
@given(seeds, st.integers(1, 50))
def test_coverage_curve_equals_the_coverage_of_each_central_interval(seed: int, n: int) -> None:
    mean, std, y = normal(n, seed=seed), normal(n, seed=seed + 1).exp(), normal(n, seed=seed + 2)
    levels = [0.1, 0.5, 0.9, 0.99]
    strided = torch.tensor([levels, levels], dtype=torch.float64).T.contiguous()[:, 0]
    pit = torch.as_tensor(stats.norm.cdf(y, mean, std))[:, None]
    got = metrics.coverage_curve(pit, strided)
    for level, share in zip(levels, got, strict=True):
        lower, upper = map(torch.as_tensor, stats.norm.interval(level, mean, std))
        close(share, metrics.coverage(lower, upper, y))


@pytest.mark.parametrize("y", [-4.0, 0.3, 8.0])
@pytest.mark.parametrize(
    ("means", "stds"), [([1.0], [2.0]), ([0.0], [0.5]), ([-1.0, 0.5, 3.0], [0.5, 2.0, 1.0])]
)
def test_crps_of_gaussians_equals_its_integral(
    means: list[float], stds: list[float], y: float
) -> None:
    def cdf(z: float) -> float:
        return float(np.mean(0.5 * erfc((np.array(means) - z) / (np.array(stds) * 2**0.5))))

    below = integrate.quad(lambda z: cdf(z) ** 2, -60, y, limit=400, epsabs=1e-10)[0]
    above = integrate.quad(lambda z: (1 - cdf(z)) ** 2, y, 60, limit=400, epsabs=1e-10)[0]
    m, s = torch.tensor([means, stds], dtype=torch.float64)
    target = torch.tensor([y], dtype=torch.float64)
    close(mixture(m[:, None], s[:, None], target), below + above, 1e-8)
    if len(means) == 1:
        close(metrics.crps_gaussian(m, s, target), below + above, 1e-8)


@quick
@given(st.lists(numbers, min_size=2, max_size=12), numbers)
def test_crps_samples_equals_brute_force(draws: list[float], y: float) -> None:
    samples, k = np.array(draws), len(draws)
    error, pairs = np.abs(samples - y).mean(), np.abs(samples[:, None] - samples).sum()
    column, target = torch.as_tensor(samples)[:, None], torch.tensor([y], dtype=torch.float64)
    plain = metrics.crps_samples(column, target, fair=False)
    close(plain, error - pairs / (2 * k * k), 1e-10)
    close(metrics.crps_samples(column, target), error - pairs / (2 * k * (k - 1)), 1e-10)
    # Points without width are a mixture of Gaussians too.
    zero = torch.zeros_like(column)
    close(mixture(column, zero, target), plain, 1e-10)
    close(metrics.crps_gaussian(column, zero, zero), np.abs(samples).mean())


def test_fair_crps_is_unbiased_and_the_plain_one_is_not() -> None:
    y = torch.full((100_000,), 0.7, dtype=torch.float64)
    samples = normal(3, 100_000)
    exact = metrics.crps_gaussian(torch.zeros_like(y), torch.ones_like(y), y)
    close(metrics.crps_samples(samples, y), exact, 0.01)
    # The bias is E|X - X'| / (2K) = 1 / (K √π).
    close(metrics.crps_samples(samples, y, fair=False), exact + 1 / (3 * math.sqrt(math.pi)), 0.01)


@quick
@given(st.floats(-2, 2), st.floats(0.3, 3))
def test_crps_is_proper(mean: float, std: float) -> None:
    quantiles = torch.as_tensor(stats.norm.ppf((np.arange(2000) + 0.5) / 2000))
    ones = torch.ones_like(quantiles)
    truth = metrics.crps_gaussian(0 * ones, ones, quantiles)
    other = metrics.crps_gaussian(mean * ones, std * ones, quantiles)
    assert other >= truth - 1e-4  # slack, because the quantiles stand in for N(0, 1)


PAIRS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rmse": metrics.rmse,
    "mae": metrics.mae,
    "log_likelihood": lambda a, y: metrics.gaussian_log_likelihood(a, torch.ones_like(y), y),
    "coverage": lambda a, y: metrics.coverage(a - 1, a + 1, y),
    "sharpness": lambda a, y: metrics.sharpness(a - 9, y + 9),
    "crps_gaussian": lambda a, y: metrics.crps_gaussian(a, torch.ones_like(a), y),
    "crps_samples": lambda a, y: metrics.crps_samples(torch.stack([a, a + 1]), y),
    "crps_mixture": lambda a, y: mixture(torch.stack([a, a]), torch.ones(2, *a.shape), y),
}
pairs = pytest.mark.parametrize("metric", PAIRS.values(), ids=PAIRS.keys())


@pairs
@quick
@given(seeds, st.integers(1, 12))
def test_columns_rows_order_and_dtype_do_not_matter(
    metric: Callable[..., Tensor], seed: int, n: int
) -> None:
    # Quarters are exact in every dtype.
    a, y = (8 * normal(2, n, seed=seed)).round().clamp(-16, 16) / 4
    expected = metric(a, y)
    assert expected.shape == ()
    for left, right in ((a[:, None], y), (a, y[:, None]), (a[:, None], y[:, None])):
        close(metric(left, right), expected)
    close(metric(a.flip(0), y.flip(0)), expected)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        got = metric(a.to(dtype), y.to(dtype))
        assert got.dtype == torch.float32
        close(got.double(), expected, 1e-5)


@pairs
@pytest.mark.parametrize(
    ("left", "right"),
    [((5,), (4,)), ((5,), (1,)), ((5,), ()), ((5,), (1, 5)), ((5, 2), (5, 1)), ((0,), (0,))],
)
def test_other_shapes_are_refused_by_name(
    metric: Callable[..., Tensor], left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match="Shapes must be equal and not empty") as caught:
        metric(torch.zeros(left), torch.zeros(right))
    assert f"{left}" in str(caught.value) or f"{(2, *left)}" in str(caught.value)
    assert f"{right}" in str(caught.value)


CLASS_SCORES = [metrics.accuracy, metrics.nll, metrics.brier, metrics.ece]


@pytest.mark.parametrize("score", CLASS_SCORES)
def test_labels_may_be_a_column_or_bool(score: Callable[..., Tensor]) -> None:
    probs, y = classes(40, 2)
    expected = score(probs, y)
    assert expected.dtype == torch.float64
    for same in (y[:, None], y.bool(), y.int()):
        close(score(probs.T.contiguous().T, same), expected)
    close(score(probs.flip(0), y.flip(0)), expected)
    close(score(probs.half(), y).double(), expected, 1e-2)


@pytest.mark.parametrize("score", CLASS_SCORES)
@pytest.mark.parametrize(
    ("probs", "y", "message"),
    [
        (torch.eye(3), torch.tensor([0, 1]), r"shape \(3,\) for probs \(3, 3\)"),
        (torch.eye(3), torch.eye(3).long(), r"got torch.int64 of shape \(3, 3\).*argmax"),
        (torch.eye(3), torch.ones(3), r"got torch.float32 .*y.long"),
        (torch.eye(3), torch.tensor([1, 2, 3]), r"3 classes lie in 0\.\.2, got 1\.\.3"),
        (torch.eye(3), torch.tensor([-1, 0, 0]), r"got -1\.\.0"),
        (torch.ones(3), torch.zeros(3).long(), r"probs must be \(n, C\), got \(3,\)"),
        (3 * torch.eye(3), torch.arange(3), r"got values from 0 to 3.*softmax"),
        (torch.tensor([[1.5, -0.5]]), torch.tensor([0]), "0 or more and sum to 1"),
        (torch.tensor([[math.nan, 1.0]]), torch.tensor([0]), "0 or more and sum to 1"),
    ],
)
def test_wrong_labels_and_probabilities_are_refused(
    score: Callable[..., Tensor], probs: Tensor, y: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        score(probs, y)


one, two, nan = torch.ones(3), torch.ones(2, 3), torch.tensor([math.nan])
listed: Any = [0, 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.rmse(listed, one), r"mean must be a torch tensor, got list.*as_tensor"),
        (lambda: metrics.nll(torch.eye(2), listed), "y must be a torch tensor, got list"),
        (lambda: metrics.mixture_log_likelihood(one), r"must be \(K, n\), got \(3,\)"),
        (lambda: metrics.mixture_log_likelihood(two[None]), r"got \(1, 2, 3\); sum over"),
        (lambda: metrics.mutual_information(torch.eye(2)), r"be \(K, n, C\), got \(2, 2\)"),
        (lambda: metrics.ece(torch.eye(2), torch.arange(2), bins=0), "1 or more, got 0"),
        (lambda: metrics.auroc(one, nan), "scores_out has NaN"),
        (lambda: metrics.auroc(two, one), r"scores_in must be \(n,\) .*got \(2, 3\)"),
        (lambda: metrics.coverage_curve(2 * one, [0.5]), r"pit must lie in 0\.\.1"),
        (lambda: metrics.coverage_curve(one, [90.0]), r"levels must lie in 0\.\.1"),
        (lambda: metrics.crps_samples(one[0], one[0]), r"samples \(\), y \(\)"),
        (lambda: metrics.crps_samples(two.T, one), r"samples \(3, 2\), y \(3,\)"),
        (lambda: metrics.crps_samples(two[:1], one), "2 draws or more, got 1; pass fair=False"),
        (lambda: mixture(two, two[:1], one), "draws, got 2 and 1"),
        (lambda: metrics.crps_gaussian(one, -one, one), "0 or more, got -1"),
    ],
)
def test_other_refusals(call: Callable[[], Tensor], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()
