"""The Gaussian tensor, its table of rules, and the tape."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesrule import Learner, moments
from bayesrule.moments import GaussianTensor, MomentMatched, NoRule, Tape, uncertain
from bayesrule.moments.tensor import RULES, name_of, parts, tape_of
from bayesrule.types import State

from . import equations
from .nets import NOISE, assert_same, belief_of, learner_of, randn, uneven


def gaussian(*shape: int, seed: int = 0) -> GaussianTensor:
    """Any Gaussian of this shape."""
    return GaussianTensor(randn(*shape, seed=seed), randn(*shape, seed=seed + 1).square() + 0.1)


class TestTheTensor:
    """It looks like a tensor and answers by the table."""

    def test_facts_are_those_of_its_means(self) -> None:
        x = gaussian(4, 3)
        assert (x.shape, x.ndim, len(x), x.numel()) == ((4, 3), 2, 4, 12)
        assert x.dtype == torch.float64
        assert x.device.type == "cpu"
        assert isinstance(x, Tensor)
        assert x.is_floating_point()
        assert not x.requires_grad

    def test_it_prints_both_moments(self) -> None:
        text = repr(GaussianTensor(torch.zeros(1), torch.ones(1)))
        assert text == "GaussianTensor(centre=tensor([0.]), variance=tensor([1.]))"

    def test_parts_of_gaussian_and_plain_tensors(self) -> None:
        x, plain = gaussian(2), torch.ones(2)
        assert parts(x) == (x.centre, x.variance, None)
        assert parts(plain) == (plain, None, None)
        assert tape_of(plain, None, x) is x.tape

    def test_what_has_no_rule_is_refused_by_name(self) -> None:
        x = gaussian(2)
        with pytest.raises(NoRule, match=r"No moment rule for '\w*i0e'. Known: .*linear"):
            torch.special.i0e(x)
        with pytest.raises(NoRule, match=r"No moment rule for 'i0'"):
            torch.ops.aten.i0(x)

    @pytest.mark.parametrize("method", ["add_", "mul_", "zero_", "normal_"])
    def test_changes_in_place_are_refused(self, method: str) -> None:
        x = gaussian(2)
        arguments = () if method in ("zero_", "normal_") else (1.0,)
        with pytest.raises(NoRule, match=f"No moment rule for '{method}'"):
            getattr(x, method)(*arguments)

    def test_values_cannot_be_looked_at(self) -> None:
        x = gaussian(1)
        for look in (Tensor.item, Tensor.tolist, Tensor.numpy, float, bool):
            with pytest.raises(TypeError):
                look(x)

    def test_private_names_are_not_listed_among_the_known(self) -> None:
        with pytest.raises(NoRule) as caught:
            torch.special.i0e(gaussian(2))
        known = str(caught.value).partition("Known: ")[2].partition(". Add")[0].split(", ")
        assert known == sorted(known)
        assert {"relu", "linear", "conv2d"} <= set(known)
        assert not any(name.startswith("_") for name in known)

    def test_names_as_people_know_them(self) -> None:
        assert name_of(F.relu) == "relu"
        assert name_of(Tensor.shape.__get__) == "shape"


class TestRules:
    """One's own."""

    @pytest.fixture
    def table(self) -> Iterator[None]:
        """The table as it was, afterwards."""
        before = dict(RULES)
        yield
        RULES.clear()
        RULES.update(before)

    @pytest.mark.usefixtures("table")
    def test_a_rule_of_ones_own(self) -> None:
        @moments.rule(torch.special.i0e)
        def tripled(x: GaussianTensor) -> GaussianTensor:
            def pull(delta: Tensor, eta: Tensor) -> tuple[moments.Innovation]:
                return ((3.0 * delta, 9.0 * eta),)

            return x.tape.result("tripled", 3.0 * x.centre, 9.0 * x.variance, (x.node,), pull)

        tape = Tape(MomentMatched(), record=True)
        x = tape.leaf(randn(2), torch.ones(2))
        y = torch.special.i0e(x)
        assert torch.equal(y.centre, 3.0 * x.centre)
        tape.back(y, torch.ones(2), torch.ones(2))
        assert x.node is not None
        assert torch.equal(x.node.delta, torch.full((2,), 3.0))
        assert torch.equal(x.node.eta, torch.full((2,), 9.0))


class TestUncertain:
    """Inputs that are not known for sure."""

    def test_one_variance_for_all_or_one_for_each(self) -> None:
        x = uncertain([[1.0, 2.0]], 0.5)
        assert torch.equal(x.variance, torch.full((1, 2), 0.5))
        each = torch.tensor([[0.1, 0.2]])
        assert torch.equal(uncertain(torch.ones(1, 2), each).variance, each)

    @pytest.mark.parametrize("bad", [0.0, -1.0, torch.inf, torch.nan])
    def test_variances_that_are_none(self, bad: float) -> None:
        with pytest.raises(ValueError, match=r"positive and finite, got .* plain tensor"):
            uncertain(torch.zeros(3), bad)
        with pytest.raises(ValueError, match="positive and finite"):
            uncertain(torch.zeros(2), torch.tensor([1.0, bad]))

    def test_another_shape(self) -> None:
        with pytest.raises(ValueError, match=r"shape \(2,\), the mean \(3, 2\)"):
            uncertain(torch.zeros(3, 2), torch.ones(2))


class TestTheTape:
    """Innovations add up over all uses of a quantity."""

    def test_a_branch_that_is_not_used_gives_nothing(self) -> None:
        tape = Tape(MomentMatched(), record=True)
        x, w = tape.leaf(randn(2, 3), torch.ones(2, 3)), tape.leaf(randn(4, 3), torch.ones(4, 3))
        used, _ = F.relu(x), F.linear(x, w)
        tape.back(used, torch.ones(2, 3), torch.ones(2, 3))
        assert w.node is not None
        assert w.node.delta is None
        assert x.node is not None
        assert x.node.delta is not None

    def test_outputs_that_are_inputs(self) -> None:
        tape = Tape(MomentMatched(), record=True)
        x = tape.leaf(randn(2), torch.ones(2))
        tape.back(x, torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
        assert x.node is not None
        assert torch.equal(x.node.delta, torch.tensor([1.0, 2.0]))
        assert torch.equal(x.node.eta, torch.tensor([3.0, 4.0]))

    def test_nothing_is_kept_without_recording(self) -> None:
        tape = Tape(MomentMatched(), record=False)
        result = F.relu(tape.leaf(randn(2), torch.ones(2)))
        assert (tape.nodes, result.node) == (None, None)


Relu = equations.MatchedReLU


class Residual(nn.Module):
    """`out(h + inner(h))` with `h = relu(first x)`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.out = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.first(x))
        return self.out(h + self.inner(h))


class Tied(nn.Module):
    """The same layer three times."""

    def __init__(self) -> None:
        super().__init__()
        self.same, self.out = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = F.relu(self.same(x))
        return self.out(x)


class Branches(nn.Module):
    """A trunk with two branches that are joined again."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.left, self.right = nn.Linear(3, 4), nn.Linear(4, 3), nn.Linear(4, 2)
        self.out = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        trunk = F.relu(self.trunk(x))
        return self.out(torch.cat([self.left(trunk), F.relu(self.right(trunk))], dim=1))


class TestSharing:
    """Residual sums, shared weights and branches, against the same computation unrolled."""

    @pytest.fixture(autouse=True)
    def batch(self, double_precision: None) -> None:
        """Nine examples."""
        self.x, self.y = randn(9, 3, seed=1), randn(9, 2, seed=2)

    def start(self, model: nn.Module) -> tuple[Learner, State]:
        """TAGI without bounds, on weights that are fairly sure already."""
        learner = learner_of(model, Relu, gain=0.1)
        return learner, uneven(learner.init())

    def dense(self, state: State, name: str) -> equations.Dense:
        """One layer in the equations of TAGI."""
        belief = belief_of(state)
        return equations.Dense({k: belief[f"{name}.{k}"] for k in ("weight", "bias")})

    def check(self, learner: Learner, state: State, **layers: equations.Weights) -> None:
        """One step from the state is what the layers have learned."""
        found, _ = learner.step(state, (self.x, self.y))
        expected = {
            f"{name}.{k}": moments
            for name, layer in layers.items()
            for k, moments in layer.updated().items()
        }
        assert_same(belief_of(found), expected)

    def observe(self, outputs: equations.Moments) -> equations.Moments:
        """What the targets say."""
        return equations.observe(*outputs, self.y, NOISE)

    def test_a_residual_sum(self) -> None:
        learner, state = self.start(Residual())
        first, inner, out = (self.dense(state, k) for k in ("first", "inner", "out"))
        relu = Relu()
        h = relu.forward(*first.forward(self.x, torch.zeros(9, 3)))
        both = [a + b for a, b in zip(h, inner.forward(*h), strict=True)]
        back = out.backward(*self.observe(out.forward(*both)))
        to_h = [a + b for a, b in zip(back, inner.backward(*back), strict=True)]
        first.backward(*relu.backward(*to_h))
        self.check(learner, state, first=first, inner=inner, out=out)

    def test_a_layer_used_three_times(self) -> None:
        learner, state = self.start(Tied())
        copies = [self.dense(state, "same") for _ in range(3)]
        out = self.dense(state, "out")
        unrolled = [layer for copy in copies for layer in (copy, Relu())]
        layers: list[equations.Layer] = [*unrolled, out]
        outputs = equations.forward(layers, self.x)
        equations.backward(layers, *self.observe(outputs))
        total = copies[0]
        total.learned = {
            k: (
                torch.stack([copy.learned[k][0] for copy in copies]).sum(0),
                torch.stack([copy.learned[k][1] for copy in copies]).sum(0),
            )
            for k in ("weight", "bias")
        }
        self.check(learner, state, same=total, out=out)

    def test_branches_from_one_trunk(self) -> None:
        learner, state = self.start(Branches())
        trunk, left, right, out = (self.dense(state, k) for k in ("trunk", "left", "right", "out"))
        bottom, top = Relu(), Relu()
        h = bottom.forward(*trunk.forward(self.x, torch.zeros(9, 3)))
        ends = left.forward(*h), top.forward(*right.forward(*h))
        joined = [torch.cat(pair, 1) for pair in zip(*ends, strict=True)]
        delta, eta = out.backward(*self.observe(out.forward(*joined)))
        one = left.backward(delta[:, :3], eta[:, :3])
        two = right.backward(*top.backward(delta[:, 3:], eta[:, 3:]))
        trunk.backward(*bottom.backward(*(a + b for a, b in zip(one, two, strict=True))))
        self.check(learner, state, trunk=trunk, left=left, right=right, out=out)

    def test_terms_of_one_sum_do_not_share_memory(self) -> None:
        class Sum(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.Parameter(torch.ones(9, 2)), nn.Parameter(torch.zeros(9, 2))
                self.c = nn.Parameter(torch.zeros(5, 2))
                self.d = nn.Parameter(torch.zeros(4, 2))

            def forward(self, x: Tensor) -> Tensor:
                return self.a + self.b + torch.cat([self.c, self.d]) + 0.0 * x[:, :2]

        model = Sum()
        learner, state = self.start(model)
        belief = belief_of(state)
        total = sum(belief[k][1] for k in "ab") + torch.cat([belief["c"][1], belief["d"][1]])
        assert isinstance(total, Tensor)
        delta, eta = self.observe((torch.ones(9, 2), total))
        expected = {
            k: (m + v * delta[rows], v + v**2 * eta[rows])
            for k, rows in (("a", slice(9)), ("b", slice(9)), ("c", slice(5)), ("d", slice(5, 9)))
            for m, v in [belief[k]]
        }
        found, _ = learner.step(state, (self.x, self.y))
        assert_same(belief_of(found), expected)
