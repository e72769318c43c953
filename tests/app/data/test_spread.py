"""Mean, spread and median of numbers near both ends of their range."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from bayesrule.app.data import DataError, Encoder, Table
from bayesrule.app.data.columns import NumberColumn
from bayesrule.app.data.spread import median_of, moments_of


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1.0, 1e200, 1e307])
def test_moments_are_those_of_exact_fractions(scale: float) -> None:
    values = scale * np.array([1.0, 2.0, 3.5, -7.0])
    exact = [Fraction(value) for value in values.tolist()]
    mean = sum(exact, Fraction()) / 4
    square = sum(((value - mean) ** 2 for value in exact), Fraction()) / 4
    found = moments_of(values)
    assert found[0] == pytest.approx(float(mean), rel=1e-12, abs=0.0)
    assert float(Fraction(found[1]) ** 2 / square) == pytest.approx(1.0, rel=1e-12)


def test_ordinary_numbers_have_the_moments_of_numpy_to_the_last_bit() -> None:
    values = np.random.default_rng(0).normal(5.0, 3.0, 1000)
    assert moments_of(values) == (values.mean(), values.std())
    assert median_of(values) == np.median(values)


def test_the_median_of_the_largest_numbers_is_finite() -> None:
    assert median_of(np.array([1.6e308, 1.7e308])) == pytest.approx(1.65e308)
    assert moments_of(np.zeros(3)) == (0.0, 0.0)


@pytest.mark.parametrize("scale", [1e-200, 1e200, 1e308])
def test_features_of_any_size_are_standardised(scale: float) -> None:
    values = scale * np.array([1.0, -1.0, 0.25, 0.5])
    table = Table.from_frame(pd.DataFrame({"x": values, "y": [1.0, 2.0, 3.0, 5.0]}))
    x = Encoder.fit(table, "y").transform(table).double()
    assert float(x.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(x.std(correction=0)) == pytest.approx(1.0, abs=1e-6)


def test_equal_numbers_beside_a_missing_one_are_zero() -> None:
    """The mean of 31 times 1e30 is not 1e30 but 3e14 away from it."""
    table = Table.from_frame(pd.DataFrame({"x": [1e30] * 30 + [np.nan], "y": range(31)}))
    x = Encoder.fit(table, "y", missing="impute").transform(table)
    assert x[:, 0].tolist() == [0.0] * 31
    assert x[:, 1].tolist() == [0.0] * 30 + [1.0]


def test_a_later_number_at_the_other_end_is_refused_without_a_warning() -> None:
    table = Table.from_frame(pd.DataFrame({"x": [1.6e308, 1.7e308], "y": [1.0, 2.0]}))
    later = Table.from_frame(pd.DataFrame({"x": [-1.7e308]}))
    with pytest.raises(DataError, match="too large to scale in row 0"):
        Encoder.fit(table, "y").transform(later)


def test_numbers_far_from_the_others_are_drawn_in() -> None:
    """`asinh` of the distance from the median, in deviations of the middle half."""
    rng = np.random.default_rng(0)
    values = np.append(rng.normal(size=999), 1e6)
    table = Table.from_frame(pd.DataFrame({"x": values, "y": np.arange(1000.0)}))
    encoder = Encoder.fit(table, "y")
    (column,) = encoder.columns
    assert isinstance(column, NumberColumn)
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
    assert column.heavy == pytest.approx((high - low) / 1.349)
    expected = np.arcsinh((values - middle) / column.heavy)
    expected = (expected - expected.mean()) / expected.std()
    expected /= np.sqrt(1.0 + (expected / 5.0) ** 2)
    np.testing.assert_allclose(encoder.transform(table).squeeze(1), expected, rtol=1e-5)
    # Without that it would be 31 standard deviations away, and all others equal.
    assert encoder.transform(table).max() < 5.0
    assert Encoder.from_json(encoder.to_json()) == encoder


@pytest.mark.parametrize("values", [[0.0, 1.0] * 10, list(range(20))])
def test_ordinary_columns_are_only_standardised(values: list) -> None:
    table = Table.from_frame(pd.DataFrame({"x": values, "y": np.arange(20.0)}))
    x = Encoder.fit(table, "y").transform(table).squeeze(1).double().numpy()
    plain = (np.array(values) - np.mean(values)) / np.std(values)
    np.testing.assert_allclose(x, plain, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-250, 1.0, 1e307])
def test_columns_with_heavy_tails_may_have_any_size(scale: float) -> None:
    values = scale * np.array([0.0, 0.001, 0.002, 0.003, 0.004, 10.0])
    table = Table.from_frame(pd.DataFrame({"x": values, "y": np.arange(6.0)}))
    x = Encoder.fit(table, "y").transform(table)
    assert x.isfinite().all()
    assert (x.diff(dim=0) > 0).all()


def test_encoders_of_former_versions_standardise_as_they_did() -> None:
    table = Table.from_frame(pd.DataFrame({"x": [0.0, 1.0, 2.0, 900.0], "y": np.arange(4.0)}))
    former = NumberColumn("x", 1.0, 2.0, 1.5)
    assert former.encode(table, False, False).squeeze(1).tolist() == [-0.5, 0.0, 0.5, 449.5]
