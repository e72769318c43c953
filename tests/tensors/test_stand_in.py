"""Stand-ins answer for a tensor that is worked out only when its values are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.tensors.stand_in import StandIn, WeightStandIn, gradients, plain


class Doubled(WeightStandIn):
    """Twice a leaf, made when it is needed; linear layers double their outputs instead."""

    leaf: Tensor
    made: int
    alternative = "Use a plain weight."

    @staticmethod
    def __new__(cls, leaf: Tensor) -> Doubled:
        tensor = Tensor._make_wrapper_subclass(
            cls, leaf.shape, dtype=leaf.dtype, device=leaf.device, requires_grad=True
        )
        tensor.label, tensor.leaf, tensor.made = "w", leaf, 0
        return tensor

    def materialised(self) -> Tensor:
        self.made += 1
        return 2.0 * self.leaf

    @classmethod
    def bypassed(cls, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        raise RuntimeError("bypassed")


Doubled.handlers = {F.linear: lambda x, w, bias=None: 2.0 * F.linear(x, w.leaf, bias)}


@pytest.fixture
def weight() -> Doubled:
    """A stand-in for [[2, 4], [6, 8]]."""
    return Doubled(torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True))


def test_facts_are_told_without_the_values(weight: Doubled) -> None:
    assert (weight.shape, weight.ndim, len(weight), weight.numel()) == ((2, 2), 2, 2, 4)
    assert (weight.dtype, weight.requires_grad) == (torch.float32, True)
    assert {weight: "by identity"}[weight] == "by identity"
    assert weight.made == 0


def test_functions_with_a_handler_run_it_and_others_get_the_values(weight: Doubled) -> None:
    x = torch.tensor([[1.0, 1.0]])
    assert F.linear(x, weight).tolist() == [[6.0, 14.0]]
    assert weight.made == 0
    assert (x @ weight.mT).tolist() == [[6.0, 14.0]]
    assert torch.cat([x, weight]).tolist() == [[1.0, 1.0], [2.0, 4.0], [6.0, 8.0]]
    assert weight.made == 2


def test_plain_reaches_into_lists_and_tuples(weight: Doubled) -> None:
    first, (second, third) = plain((weight, [1, weight]))
    assert (first.tolist(), second, third.tolist()) == (first.tolist(), 1, first.tolist())
    assert first.tolist() == [[2.0, 4.0], [6.0, 8.0]]


def test_calls_that_look_for_no_handler_are_seen(weight: Doubled) -> None:
    with torch._C.DisableTorchFunctionSubclass(), pytest.raises(RuntimeError, match="bypassed"):
        weight + 1.0


def test_gradients_reach_the_leaves_and_are_zero_for_what_is_not_used(weight: Doubled) -> None:
    unused, weights = torch.ones(3, requires_grad=True), {"w": weight}
    leaves = {"used": weight.leaf, "unused": unused}
    used, zero = gradients(weight.sum(), leaves, weights).values()
    assert used.tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert zero.tolist() == [0.0, 0.0, 0.0]


class Twice(torch.autograd.Function):
    """Looks for no handler, as torch has it for functions of one's own."""

    @staticmethod
    def forward(context: Any, x: Tensor, w: Tensor) -> Tensor:
        return 2.0 * x

    @staticmethod
    def backward(context: Any, *slopes: Tensor) -> tuple[Tensor, Tensor]:
        return 2.0 * slopes[0], torch.ones(2, 2)


def test_a_gradient_that_would_be_lost_is_refused(weight: Doubled) -> None:
    outputs = Twice.apply(torch.ones(2, requires_grad=True), weight).sum()
    message = r"'w' is given to a torch\.autograd\.Function.* Use a plain weight\."
    with pytest.raises(TypeError, match=message):
        gradients(outputs, {"w": weight.leaf}, {"w": weight})


def test_a_subclass_has_to_say_what_it_does() -> None:
    bare = Tensor._make_wrapper_subclass(StandIn, (2,))
    with pytest.raises(NotImplementedError):
        bare + 1.0
