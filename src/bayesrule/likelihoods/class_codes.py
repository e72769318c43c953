"""Classes observed as codes under Gaussian noise: one-hot codes, or paths through a binary tree."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.func import jacrev

from bayesrule.likelihoods._base import Conditioned
from bayesrule.likelihoods._classes import ClassLikelihood, one_hot
from bayesrule.likelihoods._noise import Noise, Noisy
from bayesrule.moments.softmax import remax_moments, softmax_moments
from bayesrule.types import Params

# The least value of a rectified output; `remax_moments` has the same floor.
_FLOOR = 1e-6


class ClassProbabilities(Noisy, ClassLikelihood):
    """`y ~ Categorical(p(f))` for any p, targets (n,) class numbers.

    `condition` observes the class as a code under Gaussian `noise`, a standard deviation or a
    schedule of them; class `MISSING` = -1 marks a missing label.
    """

    stacked_sampling = True

    def fisher_vectors(self, outputs: Tensor, state: Params) -> Tensor:
        # Σ_k p_k ∇log p_k ∇log p_kᵀ; examples do not mix, so the gradient of their sum suffices.
        outputs = outputs.detach()
        slopes = jacrev(lambda f: self.log_probs(f).sum(0))(outputs)
        return torch.exp(0.5 * self.log_probs(outputs)).mT.unsqueeze(-1) * slopes


@dataclass(frozen=True)
class OneHotLikelihood(ClassProbabilities):
    """`p_c(f) ∝ Φ((f_c − ½) / scale)`: outputs (n, C), targets (n,) class numbers.

    For `tagi`: a label says that its own output is 1 and all others are 0, up to `noise` (a
    standard deviation or a schedule). This observation is exactly Gaussian whatever the outputs'
    variances. Among the class likelihoods it learned fastest on images. In `condition`, class -1
    marks a missing label. For other methods choose CategoricalLikelihood.
    """

    noise: Noise = 0.1
    scale: float = 0.15

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.scale > 0 and math.isfinite(self.scale)):
            raise ValueError(f"scale must be positive, got {self.scale}.")

    def log_probs(self, outputs: Tensor) -> Tensor:
        return log_cdf((outputs - 0.5) / self.scale).log_softmax(-1)

    def condition(
        self, mean: Tensor, variance: Tensor, targets: Tensor, state: Params
    ) -> Conditioned:
        labels, seen = self._observed(mean, targets)
        log_prob = self._picked(self.averaged(mean, variance), labels, mean)
        weight = seen.unsqueeze(-1) / (variance + self.noise_variance(state))
        delta = (one_hot(labels, mean) - mean) * weight
        return Conditioned(delta, -weight, torch.where(seen, log_prob, 0.0))

    def averaged(self, mean: Tensor, variance: Tensor) -> Tensor:
        # E[Φ(f / c)] = Φ(m / √(c² + s)) is exact; the variance of the normaliser is ignored.
        width = (self.scale**2 + variance).sqrt()
        return log_cdf((mean - 0.5) / width).log_softmax(-1)


class _OneHot(ClassProbabilities):
    """One output for each class; a one-hot target observes p(f), through its moments."""

    _moments: ClassVar[staticmethod[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]]
    """Turns means and variances of f into mean, variance and slope `Cov(p, f) / s` of p, (n, C)."""

    def condition(
        self, mean: Tensor, variance: Tensor, targets: Tensor, state: Params
    ) -> Conditioned:
        labels, seen = self._observed(mean, targets)
        p, spread, slope = self._moments(mean, variance)
        log_prob = torch.where(seen, self._picked(_log(p), labels, mean), 0.0)
        weight = seen.unsqueeze(-1) * slope / (spread + self.noise_variance(state))
        return Conditioned((one_hot(labels, p) - p) * weight, -slope * weight, log_prob)

    def averaged(self, mean: Tensor, variance: Tensor) -> Tensor:
        return _log(self._moments(mean, variance)[0])


def _log(p: Tensor) -> Tensor:
    """`log p`, kept finite: every label has some probability."""
    return p.clamp_min(torch.finfo(p.dtype).tiny).log()


@dataclass(frozen=True)
class RemaxLikelihood(_OneHot):
    """`p(f) = max(f, 0) / Σ max(f, 0)`: outputs (n, C), targets (n,) class numbers.

    A softmax without exponentials, for `tagi`. A label is the one-hot code up to `noise`, a
    standard deviation or a schedule; in `condition`, class -1 marks a missing label. An output
    below zero has no slope, so methods that follow gradients may never move it: give them
    CategoricalLikelihood.
    """

    noise: Noise = 0.1

    _moments = staticmethod(remax_moments)

    def log_probs(self, outputs: Tensor) -> Tensor:
        positive = outputs.clamp_min(_FLOOR)
        return positive.log() - positive.sum(-1, keepdim=True).log()


@dataclass(frozen=True)
class SoftmaxLikelihood(_OneHot):
    """`p(f) = softmax f`, observed by its moments: outputs (n, C), targets (n,) class numbers.

    The same p(y | f) as CategoricalLikelihood, which is the one to choose for all methods but
    `tagi`. In `tagi`, CategoricalLikelihood follows the derivatives of `log p(y)`. This one takes a
    label as the one-hot code up to `noise`, a standard deviation or a schedule; class -1 marks a
    missing label.
    """

    noise: Noise = 0.1

    _moments = staticmethod(softmax_moments)

    def log_probs(self, outputs: Tensor) -> Tensor:
        return outputs.log_softmax(-1)


def binary_tree(num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The nodes (K, L) on each class's path and its turns ±1 at them, L = ⌈log₂ K⌉.

    The turns are the class number in binary, +1 for 0 and −1 for 1. Earlier turns determine the
    next node; nodes are numbered level by level.

    >>> nodes, turns = binary_tree(3)
    >>> nodes.tolist(), turns.tolist()
    ([[0, 1], [0, 1], [0, 2]], [[1, 1], [1, -1], [-1, 1]])
    """
    levels = (num_classes - 1).bit_length()
    classes = np.arange(num_classes)[:, None]
    heights = np.arange(levels, 0, -1)
    before = classes >> heights
    first = np.concatenate([[0], np.cumsum(before.max(0) + 1)[:-1]])
    return before + first, 1 - 2 * (classes >> (heights - 1) & 1)


@lru_cache(maxsize=64)
def _tables(num_classes: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes and turns of each class (K, L), and its turn at each node or 0 off its path, (K, O)."""
    nodes, turns = binary_tree(num_classes)
    code = np.zeros((num_classes, nodes.max() + 1), dtype=np.int8)
    np.put_along_axis(code, nodes, turns.astype(np.int8), axis=1)
    # Tensors made in inference mode could not be used outside it.
    with torch.inference_mode(False):
        first, second, third = (
            torch.from_numpy(t).to(device) for t in (nodes, turns.astype(np.int8), code)
        )
        return first, second, third


@dataclass(frozen=True)
class HierarchicalLikelihood(ClassProbabilities):
    """Binary decisions tell classes apart: each class is a path through a tree.

    At each node of the tree, one output f of the network turns to + with probability
    `Φ(f / scale)`. The probability of a class is the product along its path of ⌈log₂ K⌉ nodes,
    normalised over the K classes. 10 classes need 11 outputs:

    >>> HierarchicalLikelihood(num_classes=10).num_outputs()
    11

    The class likelihood to try first with `tagi`: a label says that the outputs on its path are ±1
    up to `noise` (a standard deviation or a schedule), and nothing about the other nodes. This
    observation is exactly Gaussian whatever the outputs' variances, and cheap with many classes. In
    `condition`, class -1 marks a missing label. For other methods choose CategoricalLikelihood.
    Goulet, Nguyen & Amiri (2021); Morin & Bengio (2005).
    """

    num_classes: int
    noise: Noise = 0.1
    scale: float = 1.0 / 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.num_classes, int) or self.num_classes < 2:
            raise ValueError(f"num_classes is a whole number from 2 up, got {self.num_classes!r}.")
        if not (self.scale > 0 and math.isfinite(self.scale)):
            raise ValueError(f"scale must be positive, got {self.scale}.")

    def num_outputs(self, targets: int | None = None) -> int:
        """The number of outputs the network must have: one for each node of the tree."""
        if targets not in (None, self.num_classes):
            raise ValueError(
                f"HierarchicalLikelihood was built for {self.num_classes} classes, got {targets}: "
                f"write HierarchicalLikelihood(num_classes={targets})."
            )
        return _tables(self.num_classes, torch.device("cpu"))[2].shape[1]

    def _classes(self, outputs: Tensor) -> tuple[int, str]:
        num_nodes = self.num_outputs()
        if outputs.ndim != 2 or outputs.shape[1] != num_nodes:
            raise ValueError(
                f"HierarchicalLikelihood tells {self.num_classes} classes apart by decisions at "
                f"the {num_nodes} nodes of a tree: it needs {num_nodes} outputs "
                f"(likelihood.num_outputs()), the network gives {tuple(outputs.shape)}."
            )
        return self.num_classes, f"there are {self.num_classes}"

    def log_probs(self, outputs: Tensor) -> Tensor:
        return self._paths(outputs / self.scale)

    def _paths(self, z: Tensor) -> Tensor:
        """`log Π Φ(± z)` along each path, normalised."""
        nodes, turns, _ = _tables(self.num_classes, z.device)
        return log_cdf(z[..., nodes] * turns).sum(-1).log_softmax(-1)

    def condition(
        self, mean: Tensor, variance: Tensor, targets: Tensor, state: Params
    ) -> Conditioned:
        labels, seen = self._observed(mean, targets)
        log_prob = self._picked(self.averaged(mean, variance), labels, mean)
        code = _tables(self.num_classes, mean.device)[2][labels] * seen.unsqueeze(-1)
        weight = code.abs() / (variance + self.noise_variance(state))
        return Conditioned((code - mean) * weight, -weight, torch.where(seen, log_prob, 0.0))

    def averaged(self, mean: Tensor, variance: Tensor) -> Tensor:
        # E[Φ(f / c)] = Φ(m / √(c² + s)) is exact; the variance of the normaliser is ignored.
        return self._paths(mean / (self.scale**2 + variance).sqrt())


def log_cdf(z: Tensor) -> Tensor:
    """`log Φ(z)`; torch's own `log_ndtr` does not work under vmap."""
    root, low = math.sqrt(0.5), z.clamp_max(-1.0)
    left = (0.5 * torch.special.erfcx(-root * low)).log() - 0.5 * low.square()
    return torch.where(z < -1.0, left, torch.log1p(-0.5 * torch.erfc(root * z.clamp_min(-1.0))))
