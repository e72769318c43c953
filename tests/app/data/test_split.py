"""Random splits: they partition, repeat, keep class shares and leave the global seed alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesrule.app.data import DataError, split_rows

fraction_lists = st.lists(st.integers(1, 9), min_size=2, max_size=4).map(
    lambda parts: [part / sum(parts) for part in parts]
)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(40, 300), fractions=fraction_lists, seed=st.integers(0, 2**40))
def test_parts_partition_the_rows_with_the_right_sizes(
    n: int, fractions: list[float], seed: int
) -> None:
    parts = split_rows(n, fractions, seed=seed)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(n))
    for part, fraction in zip(parts, fractions, strict=True):
        assert abs(len(part) - fraction * n) < 1
        assert torch.equal(part, part.sort().values)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), fractions=fraction_lists, seed=st.integers(0, 1000))
def test_stratified_parts_keep_every_class(
    data: st.DataObject, fractions: list[float], seed: int
) -> None:
    sizes = data.draw(st.lists(st.integers(1, 60), min_size=1, max_size=6))
    labels = torch.cat([torch.full((size,), code) for code, size in enumerate([200, *sizes])])
    parts = split_rows(len(labels), fractions, seed=seed, stratify=labels)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(labels)))
    for code, size in enumerate([200, *sizes]):
        counts = [int((labels[part] == code).sum()) for part in parts]
        assert counts[0] >= 1
        # A carried remainder is below one row, a row lent to training is one more.
        assert all(abs(c - f * size) <= 3 for c, f in zip(counts, fractions, strict=True))


def test_rare_classes_go_to_training() -> None:
    labels = torch.tensor([0] * 98 + [1, 2])
    for seed in range(20):
        train, test = split_rows(100, (0.5, 0.5), seed=seed, stratify=labels)
        assert set(labels[train].tolist()) == {0, 1, 2}
        assert set(labels[test].tolist()) == {0}


def test_remainders_of_small_classes_add_up() -> None:
    labels = torch.arange(50).repeat(3)  # 0.3 test rows for each class
    _, test = split_rows(150, (0.9, 0.1), stratify=labels)
    assert len(test) == 15
    assert labels[test].bincount().max() == 1


def test_same_seed_same_split_and_the_global_seed_is_untouched() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (split_rows(50, (0.6, 0.2, 0.2), seed=seed) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("fractions", [(1.0,), (0.5, 0.4), (1.0, 0.0), (1.2, -0.2), ()])
def test_fractions_must_be_positive_and_sum_to_one(fractions: tuple[float, ...]) -> None:
    with pytest.raises(DataError, match="sum to 1"):
        split_rows(10, fractions)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_too_few_rows(n: int) -> None:
    with pytest.raises(DataError, match="too few"):
        split_rows(n, (0.8, 0.1, 0.1))


def test_labels_must_fit_the_rows() -> None:
    with pytest.raises(DataError, match=r"10 rows, but labels of shape \(9,\)"):
        split_rows(10, stratify=torch.zeros(9))
