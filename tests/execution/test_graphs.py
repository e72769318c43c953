"""Tensors that stay where they are, and get other numbers."""

import torch

from bayesrule.execution.graphs import copy_into


def test_every_tensor_is_copied_into_its_place() -> None:
    target = {"a": torch.zeros(2), "b": {"c": torch.zeros(3), "d": 1.0}}
    places = target["a"], target["b"]["c"]
    copy_into(target, {"a": torch.ones(2), "b": {"c": torch.full((3,), 2.0), "d": 5.0}})
    assert target["a"] is places[0]
    assert target["b"]["c"] is places[1]
    assert places[0].tolist() == [1.0, 1.0]
    assert places[1].tolist() == [2.0, 2.0, 2.0]


def test_a_tensor_that_moves_to_another_place_is_copied_before_it_is_written_over() -> None:
    """As the mean does that becomes the mean of the step before."""
    target = {"mean": torch.ones(2), "previous": torch.zeros(2), "part": torch.zeros(1)}
    mean = target["mean"]
    copy_into(target, {"mean": torch.full((2,), 3.0), "previous": mean, "part": mean[1:]})
    assert target["mean"].tolist() == [3.0, 3.0]
    assert target["previous"].tolist() == [1.0, 1.0]
    assert target["part"].tolist() == [1.0]
