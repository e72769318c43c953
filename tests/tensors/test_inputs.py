"""Inputs in nested tuples, lists and dicts."""

from collections import UserDict
from typing import Any

import pytest
import torch

from bayesrule.tensors import inputs

A, B, C = torch.arange(4.0), torch.arange(8.0).reshape(4, 2), torch.zeros(4, 1)


def test_leaves_of_dicts_have_the_order_of_their_names() -> None:
    one, other = {"b": (A, B), "a": C}, {"a": C, "b": (A, B)}
    assert [k for k, _ in inputs.named(one)] == ["a", "b/0", "b/1"]
    assert [k for k, _ in inputs.named(one)] == [k for k, _ in inputs.named(other)]
    assert [id(part) for part in inputs.parts(one)] == [id(C), id(A), id(B)]


@pytest.mark.parametrize(
    "x", [A, (A, B), [A, B], {"x": A}, ((A, [B]), {"y": (C,)}), UserDict(x=A, y=B)]
)
def test_examples_are_counted_and_taken_in_every_nest(x: Any) -> None:
    some = inputs.take(x, slice(1, 3))
    assert inputs.num_examples(x) == 4
    assert inputs.num_examples(some) == 2
    for (name, part), (same, whole) in zip(inputs.named(some), inputs.named(x), strict=True):
        assert name == same
        assert torch.equal(part, whole[1:3])


def test_one_tensor_is_not_looked_into() -> None:
    assert inputs.parts(A)[0] is A
    assert inputs.arguments(A) == ((A,), {})


def test_a_tuple_is_arguments_in_order_and_a_dict_by_name() -> None:
    assert inputs.arguments((A, B)) == ((A, B), {})
    assert inputs.arguments({"x": A}) == ((), {"x": A})
    args, named = inputs.arguments(({"x": A},))
    assert args[0]["x"] is A
    assert not named


def test_lists_of_numbers_are_arrays() -> None:
    assert inputs.parts([[1.0, 2.0], [3.0, 4.0]]) == [[[1.0, 2.0], [3.0, 4.0]]]
    assert inputs.parts([torch.tensor(1.0), torch.tensor(2.0)])[0][0] == 1.0


def test_other_leaves_by_name() -> None:
    nest = (A, {"b": B, "a": (C,)})
    new = {name: i for i, (name, _) in enumerate(inputs.named(nest))}
    assert inputs.replaced(nest, new) == (0, {"b": 2, "a": (1,)})
    assert inputs.zipped([nest, nest], len) == (2, {"b": 2, "a": (2,)})


def test_what_is_no_batch_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"gave a dict of x, y\. .*targets under 'labels'"):
        inputs.pair({"x": A, "y": B})
    with pytest.raises(TypeError, match="gave a dict of labels"):
        inputs.pair({"labels": A})
    with pytest.raises(TypeError, match="gave 3 parts"):
        inputs.pair((A, B, C))
    with pytest.raises(TypeError, match="gave Tensor"):
        inputs.pair(A)
