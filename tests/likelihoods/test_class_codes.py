"""Classes as codes: one-hot numbers, behind Remax or softmax too, and paths through a tree."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from contracts.likelihood import LikelihoodContract
from exact import DTYPE, close, randn
from torch import Tensor
from torch.distributions import Categorical, Distribution, Normal
from torch.nn.functional import one_hot

from bayesrule.likelihoods import (
    MISSING,
    CategoricalLikelihood,
    ClassProbabilities,
    HierarchicalLikelihood,
    OneHotLikelihood,
    RemaxLikelihood,
    SoftmaxLikelihood,
)
from bayesrule.likelihoods.class_codes import binary_tree, log_cdf
from bayesrule.moments.softmax import remax_moments, softmax_moments
from bayesrule.schedules import constant, exponential

BOTH: dict[type[ClassProbabilities], Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    RemaxLikelihood: remax_moments,
    SoftmaxLikelihood: softmax_moments,
}


class OneHotContract(LikelihoodContract):
    targets = torch.tensor([0, 2, 1, 1, 0])
    bad_targets = (
        torch.tensor([0, 1, 2, 3, 0]),
        torch.tensor([0, 1, 2, -1, 0]),
        torch.tensor([0.0, 1.0, 2.0, 0.0, 1.0]),
    )
    glm = False

    def values(self) -> tuple[Tensor, float]:
        return torch.arange(3), 1.0

    def features(self, y: Tensor) -> Tensor:
        return one_hot(y, 3).to(DTYPE)

    def no_targets(self) -> Tensor:
        return torch.full((5,), MISSING)


class TestOneHot(OneHotContract):
    likelihood = OneHotLikelihood()
    outputs = 0.45 + 0.1 * randn(5, 3, seed=4)
    spread = 0.01
    off = 0.02
    off_epistemic = 0.02

    def reference(self, outputs: Tensor) -> Distribution:
        scores = torch.special.ndtr((outputs - 0.5) / 0.15)
        return Categorical(probs=scores / scores.sum(-1, keepdim=True))

    def test_a_label_is_the_kalman_update_of_its_code(self) -> None:
        variance, noise = 0.1 + randn(5, 3, seed=5).square(), 0.1
        found = self.likelihood.condition(self.outputs, variance, self.targets, {})
        gain = variance / (variance + noise**2)
        code = one_hot(self.targets, 3).to(DTYPE)
        close(self.outputs + variance * found.delta, self.outputs + gain * (code - self.outputs))
        close(variance + variance.square() * found.eta, variance * (1.0 - gain), 1e-12)


class TestRemax(OneHotContract):
    likelihood = RemaxLikelihood()
    outputs = 1.5 + 0.5 * randn(5, 3, seed=4)
    off_epistemic = 0.015

    def reference(self, outputs: Tensor) -> Distribution:
        positive = outputs.clamp_min(1e-6)
        return Categorical(probs=positive / positive.sum(-1, keepdim=True))

    def test_outputs_below_zero_have_hardly_a_chance(self) -> None:
        f = torch.tensor([[2.0, -1.0, 6.0]], dtype=DTYPE)
        found = self.likelihood.log_probs(f).exp()
        close(found, torch.tensor([[0.25, 0.0, 0.75]]).to(DTYPE), 1e-6)


class TestSoftmax(OneHotContract):
    likelihood = SoftmaxLikelihood(noise=exponential(0.3, rate=0.9))
    outputs = 1.5 * randn(5, 3, seed=1)
    glm = True
    spread = 0.3
    off, off_epistemic = 0.01, 0.01

    def reference(self, outputs: Tensor) -> Distribution:
        return Categorical(logits=outputs)

    def test_is_categorical_but_for_what_labels_say(self) -> None:
        other = CategoricalLikelihood()
        close(
            self.likelihood.log_prob(self.outputs, self.targets, {}),
            other.log_prob(self.outputs, self.targets, {}),
            1e-12,
        )


@pytest.mark.parametrize("kind", BOTH)
def test_condition_is_the_gaussian_rule_on_one_hot_targets(kind: type[ClassProbabilities]) -> None:
    m, s = 1.0 + randn(6, 4, seed=1), 0.1 + randn(6, 4, seed=2).square()
    labels = torch.tensor([0, 1, 2, 3, 1, 0])
    found = kind(noise=0.4).condition(m, s, labels, {})  # type: ignore[call-arg]
    mean, variance, slope = BOTH[kind](m, s)
    total = variance + 0.16
    close(found.delta, slope * (one_hot(labels, 4) - mean) / total, 1e-12)
    close(found.eta, -slope.square() / total, 1e-12)
    close(found.log_prob, mean[torch.arange(6), labels].log(), 1e-12)


@pytest.mark.parametrize("kind", BOTH)
def test_the_schedule_is_followed(kind: type[ClassProbabilities]) -> None:
    scheduled = kind(noise=exponential(0.8, rate=0.5))  # type: ignore[call-arg]
    m, s, labels = randn(2, 3), torch.ones(2, 3, dtype=DTYPE), torch.tensor([0, 1])
    noise = scheduled.update(scheduled.init(m), {}, 1.0)
    found = scheduled.condition(m, s, labels, noise)
    expected = kind(noise=0.4).condition(m, s, labels, {})  # type: ignore[call-arg]
    close(found.delta, expected.delta, 1e-12)


@pytest.mark.parametrize("kind", BOTH)
def test_labels_are_named_when_they_do_not_fit(kind: type[ClassProbabilities]) -> None:
    with pytest.raises(ValueError, match="class 7, but the network has 3 outputs"):
        kind().condition(randn(2, 3), torch.ones(2, 3), torch.tensor([0, 7]), {})
    with pytest.raises(ValueError, match=f"{kind.__name__}.*use BernoulliLikelihood"):
        kind().log_prob(randn(2, 1), torch.tensor([0, 1]), {})


@pytest.mark.parametrize("kind", BOTH)
def test_however_wrong_a_label_is_its_loss_is_finite(kind: type[ClassProbabilities]) -> None:
    m = torch.tensor([[500.0, -500.0]])
    found = kind().condition(m, torch.ones(1, 2), torch.tensor([1]), {})
    assert found.log_prob.isfinite().all()
    assert found.delta.isfinite().all()


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan")])
def test_a_scale_that_is_none_is_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="scale must be positive"):
        OneHotLikelihood(scale=scale)


PYTAGI = Path(__file__).parent.parent / "moments" / "data" / "pytagi.npz"


def path_probabilities(likelihood: HierarchicalLikelihood, outputs: Tensor) -> Tensor:
    """One class and one turn after the other."""
    nodes, turns = binary_tree(likelihood.num_classes)
    columns = []
    for path, signs in zip(nodes, turns, strict=True):
        p = torch.ones(len(outputs), dtype=DTYPE)
        for node, sign in zip(path, signs, strict=True):
            p = p * Normal(0.0, 1.0).cdf(int(sign) * outputs[:, int(node)] / likelihood.scale)
        columns.append(p)
    p = torch.stack(columns, dim=1)
    return p / p.sum(1, keepdim=True)


class HierarchicalContract(LikelihoodContract):
    likelihood: HierarchicalLikelihood
    glm = False

    def reference(self, outputs: Tensor) -> Distribution:
        return Categorical(probs=path_probabilities(self.likelihood, outputs))

    def values(self) -> tuple[Tensor, float]:
        return torch.arange(self.likelihood.num_classes), 1.0

    def features(self, y: Tensor) -> Tensor:
        return one_hot(y, self.likelihood.num_classes).to(DTYPE)

    def no_targets(self) -> Tensor:
        return torch.full_like(self.targets, MISSING)


class TestFourClasses(HierarchicalContract):
    """A full tree: the probabilities add up by themselves, and their average is exact."""

    likelihood = HierarchicalLikelihood(num_classes=4)
    outputs = 0.3 * randn(5, 3, seed=1)
    targets = torch.tensor([0, 3, 2, 1, 0])
    off_epistemic = 0.06

    def test_nothing_is_left_to_normalise(self) -> None:
        nodes, turns = binary_tree(4)
        z = self.outputs / self.likelihood.scale
        p = torch.special.ndtr(z[:, nodes] * torch.from_numpy(turns)).prod(-1)
        close(p.sum(1), torch.ones(5, dtype=DTYPE), 1e-12)
        close(self.likelihood.log_probs(self.outputs).exp(), p, 1e-12)


class TestFiveClasses(HierarchicalContract):
    likelihood = HierarchicalLikelihood(num_classes=5, noise=constant(0.2), scale=0.7)
    outputs = 0.5 * randn(4, 6, seed=2)
    targets = torch.tensor([4, 3, 0, 4])
    bad_targets = (torch.tensor([4, 5, 0, 4]), torch.tensor([4, -1, 0, 4]))
    # The average over the normaliser, which two of the three levels of class 4 need, is left out.
    off, off_epistemic = 0.06, 0.05


@pytest.mark.parametrize("num_classes", [2, 3, 4, 7, 10, 16, 17, 100, 1000])
class TestTree:
    def test_turns_tell_all_classes_apart(self, num_classes: int) -> None:
        nodes, turns = binary_tree(num_classes)
        assert nodes.shape == turns.shape == (num_classes, math.ceil(math.log2(num_classes)))
        assert set(np.unique(turns)) == {-1, 1}
        assert len(np.unique(turns, axis=0)) == num_classes

    def test_classes_share_a_node_as_long_as_they_turn_alike(self, num_classes: int) -> None:
        nodes, turns = binary_tree(num_classes)
        for level in range(nodes.shape[1]):
            before = [tuple(row) for row in turns[:, :level]]
            pairs = set(zip(before, nodes[:, level].tolist(), strict=True))
            assert len(pairs) == len(set(before)) == len({node for _, node in pairs})

    def test_every_output_is_a_node(self, num_classes: int) -> None:
        nodes, _ = binary_tree(num_classes)
        used = HierarchicalLikelihood(num_classes).num_outputs()
        assert np.array_equal(np.unique(nodes), np.arange(used))
        levels = (set(column) for column in nodes.T)
        assert not any(a & b for a, b in itertools.combinations(levels, 2))

    def test_probabilities_add_up(self, num_classes: int) -> None:
        likelihood = HierarchicalLikelihood(num_classes)
        f = 3.0 * randn(4, likelihood.num_outputs())
        close(likelihood.log_probs(f).exp().sum(1), torch.ones(4, dtype=DTYPE), 1e-12)
        found = likelihood.marginal(f, f.square() + 0.1, {}).mean
        close(found.sum(1), torch.ones(4, dtype=DTYPE), 1e-12)


def test_condition_observes_the_path_alone() -> None:
    """±1 under Gaussian noise at the nodes of the class, nothing elsewhere."""
    likelihood = HierarchicalLikelihood(num_classes=10, noise=0.2)
    m, s = randn(10, 11, seed=1), randn(10, 11, seed=2).square()
    found = likelihood.condition(m, s, torch.arange(10), {})
    nodes, turns = binary_tree(10)
    for k in range(10):
        observed = np.isin(np.arange(11), nodes[k])
        assert not found.delta[k, ~observed].count_nonzero()
        at, total = nodes[k], s[k, nodes[k]] + 0.04
        close(found.delta[k, at], (torch.from_numpy(turns[k]) - m[k, at]) / total, 1e-12)
        close(found.eta[k, at], -1.0 / total, 1e-12)


def test_pytagi_has_the_same_tree() -> None:
    reference = np.load(PYTAGI)
    nodes, turns = binary_tree(10)
    assert np.array_equal(nodes, reference["hierarchical_10/nodes"])
    assert np.array_equal(turns, reference["hierarchical_10/signs"])


def test_a_wrong_number_of_outputs_is_told_the_right_one() -> None:
    likelihood = HierarchicalLikelihood(num_classes=10)
    with pytest.raises(ValueError, match=r"needs 11 outputs .*num_outputs.* gives \(3, 10\)"):
        likelihood.log_prob(randn(3, 10), torch.zeros(3, dtype=torch.long), {})
    with pytest.raises(ValueError, match="class 10, but there are 10: classes 0 to 9"):
        likelihood.condition(randn(1, 11), torch.ones(1, 11), torch.tensor([10]), {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_classes": 1}, "from 2 up, got 1"),
        ({"num_classes": 2.5}, "from 2 up, got 2.5"),
        ({"num_classes": 3, "scale": 0.0}, "scale must be positive, got 0.0"),
        ({"num_classes": 3, "noise": -1.0}, "must be positive: -1.0"),
    ],
)
def test_what_makes_no_tree_is_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HierarchicalLikelihood(**arguments)  # type: ignore[arg-type]


def test_log_cdf_and_its_slopes() -> None:
    z = torch.linspace(-40.0, 40.0, 801, dtype=DTYPE, requires_grad=True)
    close(log_cdf(z), torch.special.log_ndtr(z), 1e-13)
    (first,) = torch.autograd.grad(log_cdf(z).sum(), z)
    close(first, torch.autograd.grad(torch.special.log_ndtr(z).sum(), z)[0], 1e-12)


def test_extreme_outputs_stay_finite() -> None:
    f = torch.tensor([[200.0, -200.0, 200.0]], dtype=DTYPE)
    found = HierarchicalLikelihood(4).log_prob(f, torch.tensor([3]), {})
    close(found, torch.tensor([-(600.0**2)]), 1e-3)
