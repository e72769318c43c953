"""Walks through nested objects: every tensor and number is found, and put back where it was."""

from dataclasses import dataclass, field

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import bayesrule as br
from bayesrule.tensors import tree
from bayesrule.types import State


@dataclass(frozen=True)
class Node:
    value: Tensor
    inside: dict[str, object]
    label: str = "kept"
    made: float = field(init=False, default=1.0)


def example() -> Node:
    inside: dict[str, object] = {
        "count": 3,
        "rate": 0.5,
        "flag": True,
        "none": None,
        "deep": {"t": torch.arange(2.0)},
    }
    return Node(torch.ones(2), inside)


def test_leaves_are_named_by_their_path() -> None:
    found = dict(tree.leaves(example()))
    assert list(found) == ["value", "inside/count", "inside/rate", "inside/flag", "inside/deep/t"]
    assert found["inside/count"] == 3
    assert torch.equal(torch.as_tensor(found["inside/deep/t"]), torch.arange(2.0))


def test_a_single_tensor_is_a_leaf_without_a_name() -> None:
    ((name, value),) = tree.leaves(torch.ones(1))
    assert name == ""
    assert torch.equal(torch.as_tensor(value), torch.ones(1))


def test_rebuild_asks_for_every_leaf_and_keeps_the_rest() -> None:
    asked: list[str] = []

    def leaf(name: str, old: object) -> object:
        asked.append(name)
        return old if isinstance(old, Tensor) else 7

    again = tree.rebuild(example(), leaf)
    assert asked == [name for name, _ in tree.leaves(example())]
    assert again.inside["count"] == 7
    assert again.inside["none"] is None
    assert again.label == "kept"
    assert torch.equal(again.value, torch.ones(2))


def test_map_tensors_leaves_numbers_and_the_original_alone() -> None:
    before = example()
    after = tree.map_tensors(before, lambda value: value + 1.0)
    assert torch.equal(after.value, torch.full((2,), 2.0))
    assert after.inside["count"] == 3
    assert torch.equal(before.value, torch.ones(2))


nested = st.recursive(
    st.one_of(st.integers(-5, 5), st.floats(-1, 1), st.booleans(), st.none()),
    lambda children: st.dictionaries(st.text("ab", min_size=1, max_size=2), children, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(nested)
def test_what_was_taken_apart_is_put_together(value: object) -> None:
    kept = dict(tree.leaves(value))
    assert tree.rebuild(value, lambda name, _: kept[name]) == value
    blank = tree.rebuild(value, lambda name, _: 0)
    assert tree.rebuild(blank, lambda name, _: kept[name]) == value


def test_a_state_survives() -> None:
    learner = br.vogn(nn.Linear(2, 1), br.GaussianLikelihood(), num_data=8)
    batch = torch.ones(4, 2), torch.ones(4)
    state, _ = learner.step(learner.init(seed=5), batch)
    kept = dict(tree.leaves(state))
    assert {"step", "seed", "likelihood/a", "posterior/mean/weight"} <= set(kept)
    again: State = tree.rebuild(learner.init(), lambda name, _: kept[name])
    one, two = learner.step(state, batch)[0], learner.step(again, batch)[0]
    for (name, a), (_, b) in zip(tree.leaves(one), tree.leaves(two), strict=True):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b)), name
