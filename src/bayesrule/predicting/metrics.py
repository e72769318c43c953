"""How good a predictive is: error, likelihood, calibration and detection, on torch tensors.

Every function averages over the points into a 0-d tensor unless it says otherwise. Targets that
are (n, d) count every entry as a point. A trailing 1 is dropped where the partner has none, so
that (n, 1) against (n,) never broadcasts to (n, n); every other difference in shape is an error.
Half precision and integers are computed in float32.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bayesrule.predicting.shapes import aligned, classes, floats, simplex


def rmse(mean: Tensor, y: Tensor) -> Tensor:
    """Root mean squared error, √(1/n Σ (y - mean)²).

    >>> rmse(torch.tensor([1.0, 2.0]), torch.tensor([[1.0], [4.0]]))
    tensor(1.4142)
    """
    mean, y = aligned(mean=mean, y=y)
    return (y - mean).square().mean().sqrt()


def mae(mean: Tensor, y: Tensor) -> Tensor:
    """Mean absolute error, 1/n Σ |y - mean|.

    >>> mae(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    tensor(1.)
    """
    mean, y = aligned(mean=mean, y=y)
    return (y - mean).abs().mean()


def gaussian_log_likelihood(mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
    """Log-likelihood per point under one Gaussian, 1/n Σ log N(y | mean, variance).

    The figure of Hernández-Lobato & Adams (2015), not the joint log-likelihood of the test set.

    >>> gaussian_log_likelihood(torch.zeros(2), torch.ones(2), torch.zeros(2))
    tensor(-0.9189)
    """
    mean, variance, y = aligned(mean=mean, variance=variance, y=y)
    if (variance <= 0).any():
        raise ValueError(f"variance must be above 0, got {variance.min():.3g}; add the noise.")
    return -0.5 * ((y - mean).square() / variance + (2 * math.pi * variance).log()).mean()


def mixture_log_likelihood(log_probs: Tensor) -> Tensor:
    """Log-likelihood per point under the mixture of K draws, (K, n) log densities.

    1/n Σ_i log 1/K Σ_k exp(log_probs[k, i]): a mixture at each point, as in Zhang et al. (2018),
    and not the joint log-likelihood, which sums over the points inside the exponential.

    >>> mixture_log_likelihood(torch.tensor([[0.2], [0.4]]).log())  # log 0.3
    tensor(-1.2040)
    """
    (log_probs,) = aligned(log_probs=log_probs)
    if log_probs.ndim != 2 and log_probs.shape[2:] != (1,):
        shape = tuple(log_probs.shape)
        raise ValueError(f"log_probs must be (K, n), got {shape}; sum over a point's outputs.")
    return log_probs.logsumexp(0).mean() - math.log(len(log_probs))


def accuracy(probs: Tensor, y: Tensor) -> Tensor:
    """Share of points whose most probable class is y, probs (n, C); the first class wins ties.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    tensor(0.5000)
    """
    probs, y = classes(probs, y)
    return (probs.argmax(-1) == y).to(probs.dtype).mean()


def balanced_accuracy(probs: Tensor, y: Tensor) -> Tensor:
    """Mean over the classes in y of the accuracy on each class (its recall).

    >>> balanced_accuracy(torch.tensor([[0.9, 0.1]] * 4), torch.tensor([0, 0, 0, 1]))
    tensor(0.5000)
    """
    probs, y = classes(probs, y)
    correct = probs.argmax(-1) == y
    return torch.stack([correct[y == c].to(probs.dtype).mean() for c in y.unique()]).mean()


def nll(probs: Tensor, y: Tensor) -> Tensor:
    """Negative log-likelihood per point, -1/n Σ log probs[i, y_i], floored at the dtype's tiny.

    >>> nll(torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([0, 0]))
    tensor(0.3466)
    """
    probs, y = classes(probs, y)
    chosen = probs.gather(-1, y[:, None]).clamp_min(torch.finfo(probs.dtype).tiny)
    return -chosen.log().mean()


def brier(probs: Tensor, y: Tensor) -> Tensor:
    """Brier score, summed over the classes (0..2): 1/n Σ_i Σ_c (probs[i, c] - [y_i = c])².

    >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
    tensor(0.5000)
    """
    probs, y = classes(probs, y)
    truth = torch.nn.functional.one_hot(y, probs.shape[-1])
    return (probs - truth).square().sum(-1).mean()


class Reliability(NamedTuple):
    """A reliability diagram: bin edges (bins + 1,), then per bin (bins,); NaN in an empty bin."""

    edges: Tensor
    confidence: Tensor
    accuracy: Tensor
    count: Tensor  # type: ignore[assignment]  # the word of the field, over tuple.count


def reliability(probs: Tensor, y: Tensor, bins: int = 15, adaptive: bool = False) -> Reliability:
    """Mean confidence max_c probs[i, c] and accuracy per bin (edge_b, edge_b+1] of confidence.

    The bins have equal width, or with ``adaptive`` equal mass, up to ties, which share a bin.

    >>> reliability(torch.tensor([[0.9, 0.1], [0.3, 0.7]]), torch.tensor([0, 0]), bins=2).accuracy
    tensor([ nan, 0.5000])
    """
    probs, y = classes(probs, y)
    if bins < 1:
        raise ValueError(f"bins must be 1 or more, got {bins}.")
    confidence, best = probs.max(-1)
    edges = torch.linspace(0, 1, bins + 1, dtype=probs.dtype, device=probs.device)
    if adaptive:
        ends = [-(-len(y) * b // bins) - 1 for b in range(1, bins)]
        edges[1:-1] = confidence.sort().values[ends]
    bin_of = torch.bucketize(confidence, edges[1:-1])
    count = torch.bincount(bin_of, minlength=bins)

    def average(values: Tensor) -> Tensor:
        # Plain sums bin by bin: index_add_ on a GPU would differ from run to run.
        sums = [values.where(bin_of == b, 0).sum() for b in range(bins)]
        return torch.stack(sums) / count

    return Reliability(edges, average(confidence), average((best == y).to(probs.dtype)), count)


def ece(probs: Tensor, y: Tensor, bins: int = 15, adaptive: bool = False) -> Tensor:
    """Expected calibration error, Σ_b count_b / n |accuracy_b - confidence_b|.

    The bins are those of ``reliability``; the figure depends on their number.

    >>> ece(torch.tensor([[0.9, 0.1], [0.9, 0.1]]), torch.tensor([0, 1]))
    tensor(0.4000)
    """
    table = reliability(probs, y, bins, adaptive)
    gaps = (table.accuracy - table.confidence).abs().nan_to_num()
    return (gaps * table.count).sum() / table.count.sum()


def entropy(probs: Tensor) -> Tensor:
    """Entropy per point in nats, -Σ_c p_c log p_c: (n, C) to (n,).

    >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    tensor([0.6931, 0.0000])
    """
    return torch.special.entr(simplex(probs, "(n, C)")).sum(-1)


def mutual_information(probs: Tensor) -> Tensor:
    """Epistemic part of the entropy per point: probs (K, n, C) of K draws to (n,).

    H(1/K Σ_k p_k) - 1/K Σ_k H(p_k), between y and the weights.

    >>> mutual_information(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
    tensor([0.6931])
    """
    probs = simplex(probs, "(K, n, C)")
    total = torch.special.entr(probs.mean(0)).sum(-1)
    within = torch.special.entr(probs).sum(-1).mean(0)
    return (total - within).clamp_min(0)  # draws that agree may round below 0


def auroc(scores_in: Tensor, scores_out: Tensor) -> Tensor:
    """Area under the ROC curve, P(out > in) + ½ P(out = in), for out-of-distribution detection.

    Higher scores (entropy, say) mean "out", the positive class; (n,) and (m,), n ≠ m allowed.

    >>> auroc(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.2, 0.9]))
    tensor(0.7500)
    """
    scores_in, scores_out = floats(scores_in=scores_in, scores_out=scores_out)
    for name, scores in {"scores_in": scores_in, "scores_out": scores_out}.items():
        if scores.numel() == 0 or scores.ndim < 1 or scores.shape[1:] not in ((), (1,)):
            raise ValueError(f"{name} must be (n,) and not empty, got {tuple(scores.shape)}.")
        if scores.isnan().any():
            raise ValueError(f"{name} has NaN, which has no rank; drop those points first.")
    ordered, out = scores_in.flatten().sort().values, scores_out.flatten().contiguous()
    below = torch.searchsorted(ordered, out) + torch.searchsorted(ordered, out, right=True)
    return (below.to(out.dtype) / (2 * len(ordered))).mean()


def class_auroc(probs: Tensor, y: Tensor) -> Tensor:
    """AUROC of each class in y against the others, by its probability (n, C); their mean.

    With two classes it is the AUROC of either. NaN where y holds one class only.

    >>> class_auroc(torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3]]), torch.tensor([0, 0, 1]))
    tensor(0.5000)
    """
    probs, y = classes(probs, y)
    present = y.unique()
    if len(present) < 2:
        return probs.new_tensor(math.nan)
    return torch.stack([auroc(probs[y != c, c], probs[y == c, c]) for c in present]).mean()


def average_precision(probs: Tensor, y: Tensor) -> Tensor:
    """Mean over the classes in y of Σ_k (R_k - R_k-1) P_k, the area under precision by recall.

    P_k and R_k are precision and recall of the points with at least the k-th highest probability.
    Guessing gives each class its share of the points.

    >>> average_precision(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    tensor(1.)
    """
    probs, y = classes(probs, y)
    return torch.stack([_average_precision(probs[:, c], y == c) for c in y.unique()]).mean()


def _average_precision(scores: Tensor, positive: Tensor) -> Tensor:
    ordered, order = scores.sort(descending=True)
    hits = positive[order].to(scores.dtype).cumsum(0)
    # Points with equal scores come in together.
    last = torch.cat([ordered[1:] != ordered[:-1], ordered.new_ones(1, dtype=torch.bool)])
    taken = torch.arange(1, len(scores) + 1, device=scores.device)[last]
    hits = hits[last]
    gained = torch.diff(hits, prepend=hits.new_zeros(1)) / hits[-1]
    return (gained * hits / taken).sum()


def coverage(lower: Tensor, upper: Tensor, y: Tensor) -> Tensor:
    """Share of points inside their interval, 1/n Σ [lower <= y <= upper].

    >>> coverage(torch.zeros(4), torch.ones(4), torch.tensor([0.0, 0.5, 1.0, 2.0]))
    tensor(0.7500)
    """
    lower, upper, y = aligned(lower=lower, upper=upper, y=y)
    sharpness(lower, upper)  # refuses crossed or NaN bounds, which would only look like misses
    return ((lower <= y) & (y <= upper)).to(y.dtype).mean()


def sharpness(lower: Tensor, upper: Tensor) -> Tensor:
    """Mean width of the intervals, 1/n Σ (upper - lower); smaller is better at equal coverage.

    >>> sharpness(torch.zeros(2), torch.tensor([1.0, 3.0]))
    tensor(2.)
    """
    lower, upper = aligned(lower=lower, upper=upper)
    if not (lower <= upper).all():
        got = f"{int((~(lower <= upper)).sum())} of {lower.numel()} that do"
        raise ValueError(f"lower must not exceed upper or be NaN, got {got}; were they swapped?")
    return (upper - lower).mean()


def coverage_curve(pit: Tensor, levels: Tensor | Sequence[float]) -> Tensor:
    """Coverage of the central intervals at each nominal level, (n,) and (L,) to (L,).

    With the values u_i = F_i(y_i) of the predictive distribution functions at the targets (the
    probability integral transform): 1/n Σ_i [|2 u_i - 1| <= level]. Calibrated: curve = levels.

    >>> coverage_curve(torch.tensor([0.01, 0.3, 0.5, 0.8]), [0.5, 0.9])
    tensor([0.5000, 0.7500])
    """
    (pit,) = aligned(pit=pit)
    nominal = torch.as_tensor(levels, dtype=pit.dtype, device=pit.device).contiguous()
    for name, values in {"pit": pit, "levels": nominal}.items():
        if not ((values >= 0) & (values <= 1)).all():
            raise ValueError(f"{name} must lie in 0..1, got {values.min()} to {values.max()}.")
    centred = (2 * pit - 1).abs().flatten().sort().values
    return torch.searchsorted(centred, nominal, right=True).to(pit.dtype) / len(centred)


def _expected_absolute(mean: Tensor, std: Tensor) -> Tensor:
    """E|X| for X ~ N(mean, std²): mean (2Φ(z) - 1) + 2 std φ(z), z = mean / std."""
    z = mean / std.clamp_min(torch.finfo(std.dtype).tiny)
    return mean * torch.erf(z / math.sqrt(2)) + std * math.sqrt(2 / math.pi) * (-z * z / 2).exp()


def crps_gaussian(mean: Tensor, std: Tensor, y: Tensor) -> Tensor:
    """Continuous ranked probability score of N(mean, std²), in the units of y; std may be 0.

    ∫ (F(z) - [y <= z])² dz = E|X - y| - ½ E|X - X'| = E|X - y| - std / √π.

    >>> crps_gaussian(torch.zeros(1), torch.ones(1), torch.zeros(1))  # (√2 - 1) / √π
    tensor(0.2337)
    """
    mean, std, y = aligned(mean=mean, std=std, y=y)
    return crps_mixture_of_gaussians(mean[None], std[None], y)


def crps_mixture_of_gaussians(means: Tensor, stds: Tensor, y: Tensor) -> Tensor:
    """CRPS of the equal mixture of K Gaussians, means and stds (K, n), y (n,).

    1/K Σ_k E|X_k - y| - 1/(2K²) Σ_kl E|X_k - X_l| in closed form (Grimit et al., 2006).

    >>> crps_mixture_of_gaussians(torch.zeros(3, 1), torch.ones(3, 1), torch.zeros(1))
    tensor(0.2337)
    """
    means, stds, y = aligned(("means", "stds"), means=means, stds=stds, y=y)
    draws = len(means)
    if len(stds) != draws:
        raise ValueError(f"means and stds need as many draws, got {draws} and {len(stds)}; expand.")
    if (stds < 0).any():
        raise ValueError(f"Standard deviations must be 0 or more, got {stds.min():.3g}.")
    spread = stds.sum(0) / math.sqrt(math.pi)  # the pairs k = l
    for k in range(1, draws):  # one row of pairs at a time, so that memory stays (K, n)
        width = torch.hypot(stds[:k], stds[k])
        spread = spread + _expected_absolute(means[:k] - means[k], width).sum(0)
    return (_expected_absolute(means - y, stds).mean(0) - spread / draws**2).mean()


def crps_samples(samples: Tensor, y: Tensor, fair: bool = True) -> Tensor:
    """CRPS from K draws, samples (K, n) and y (n,), by sorting.

    1/K Σ_k |x_k - y| - 1/(2K(K - 1)) Σ_kl |x_k - x_l|, unbiased for the distribution the draws
    come from; with ``fair=False`` 1/(2K²), the score of the K draws as a distribution themselves.

    >>> crps_samples(torch.tensor([[0.0], [1.0]]), torch.tensor([0.5]), fair=False)
    tensor(0.2500)
    """
    samples, y = aligned(("samples",), samples=samples, y=y)
    draws = len(samples)
    if fair and draws < 2:
        raise ValueError("The fair CRPS takes 2 draws or more, got 1; pass fair=False.")
    gaps = samples.sort(0).values.diff(dim=0).movedim(0, -1)
    # Gap i lies between i lower and K - i upper draws; a sum of positive terms loses no digits.
    below = torch.arange(1, draws, dtype=y.dtype, device=y.device)
    spread = (gaps * (below * (draws - below))).sum(-1)
    pairs = draws * (draws - 1) if fair else draws**2
    return ((samples - y).abs().mean(0) - spread / pairs).mean()
