"""Classes as paths through a binary tree: one output for each decision."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from bayesrule.likelihoods import _noise
from bayesrule.likelihoods._base import Conditioned, Marginal
from bayesrule.likelihoods._classes import choice_marginal
from bayesrule.likelihoods._probabilities import ClassProbabilities, hazard, log_cdf
from bayesrule.likelihoods._targets import ClassTargets
from bayesrule.types import Params


def binary_tree(num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """The nodes (K, L) that each class passes and its turns ±1 there, L = ⌈log₂ K⌉.

    The turns are the class number in binary, +1 for 0 and −1 for 1. The node of a turn is given by
    the turns before it; nodes are numbered level by level.

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
def _num_nodes(num_classes: int) -> int:
    return int(binary_tree(num_classes)[0].max()) + 1


@lru_cache(maxsize=64)
def _tables(num_classes: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes and turns of each class (K, L), and its turn or 0 at each node (K, O)."""
    nodes, turns = binary_tree(num_classes)
    code = np.zeros((num_classes, nodes.max() + 1), dtype=np.int8)
    np.put_along_axis(code, nodes, turns.astype(np.int8), axis=1)
    # Tensors born in inference mode could not be used outside of it.
    with torch.inference_mode(False):
        made = (torch.from_numpy(t).to(device) for t in (nodes, turns.astype(np.int8), code))
        return tuple(made)  # type: ignore[return-value]


@dataclass(frozen=True)
class HierarchicalLikelihood(ClassProbabilities):
    """Classes told apart by binary decisions: each class is a path through a tree.

    At each node of the tree one output f of the network turns to + with the probability
    `Φ(f / scale)`; a class has the product along its path of ⌈log₂ K⌉ nodes, normalised over the K
    classes. 10 classes need 11 outputs:

    >>> HierarchicalLikelihood(num_classes=10).num_outputs()
    11

    The likelihood of classes to try first with `tagi`: a label says that the outputs on its path
    are ±1 up to `noise` (a standard deviation or a schedule) and nothing of the other nodes, which
    is exactly Gaussian whatever the outputs' variances are, and cheap with many classes. In
    `condition` a class of -1 is no label at all. For other methods choose CategoricalLikelihood.
    Goulet, Nguyen & Amiri (2021); Morin & Bengio (2005).
    """

    num_classes: int
    noise: _noise.Noise = 0.1
    scale: float = 1.0 / 3.0

    def __post_init__(self) -> None:
        _noise.checked(self.noise)
        if not isinstance(self.num_classes, int) or self.num_classes < 2:
            raise ValueError(f"num_classes is a whole number from 2 up, got {self.num_classes!r}.")
        if not (self.scale > 0 and math.isfinite(self.scale)):
            raise ValueError(f"scale must be positive, got {self.scale}.")

    def num_outputs(self, targets: int | None = None) -> int:
        """How many outputs the network must have: one for each node of the tree."""
        if targets not in (None, self.num_classes):
            raise ValueError(
                f"HierarchicalLikelihood was built for {self.num_classes} classes, got {targets}: "
                f"write HierarchicalLikelihood(num_classes={targets})."
            )
        return _num_nodes(self.num_classes)

    def _classes(self, outputs: Tensor) -> tuple[int, str]:
        num_nodes = _num_nodes(self.num_classes)
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
        log_prob = self._picked(self._paths(mean / self._width(variance)), labels, mean)
        code = _tables(self.num_classes, mean.device)[2][labels] * seen.unsqueeze(-1)
        weight = code.abs() / (variance + _noise.variance(self.noise, state))
        return Conditioned((code - mean) * weight, -weight, torch.where(seen, log_prob, 0.0))

    def _width(self, variance: Tensor) -> Tensor:
        return (self.scale**2 + variance).sqrt()

    def marginal(self, mean: Tensor, variance: Tensor, state: Params) -> Marginal:
        # E[Φ(f / c)] = Φ(m / √(c² + s)) is exact; that the normaliser varies too is left out.
        width = self._width(variance)
        log_probs = self._paths(mean / width)
        p = log_probs.exp()
        epistemic = p.square() * self._spread(mean / width, p, variance / width**2)
        return choice_marginal(ClassTargets(log_probs), p, epistemic)

    def _spread(self, z: Tensor, p: Tensor, share: Tensor) -> Tensor:
        """`Σ_j (∂ log p_k / ∂z_j)² share_j`, (n, K): how sure the outputs are of each class.

        As `∂E[p]/∂m = Cov(p, f) / s`, this is the part of p's variance that is linear in f.
        """
        nodes, turns, code = _tables(self.num_classes, z.device)
        # ∂ log p_k / ∂z = g_k − Σ_i p_i g_i, and g_k is zero off the path of k.
        slopes = turns * hazard(z[..., nodes] * turns)
        plus, minus = (p @ (code == turn).to(p.dtype) for turn in (1, -1))
        mean = plus * hazard(z) - minus * hazard(-z)
        near = (share[..., nodes] * slopes * (slopes - 2.0 * mean[..., nodes])).sum(-1)
        return (near + (share * mean.square()).sum(-1, keepdim=True)).clamp_min(0.0)
