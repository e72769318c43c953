"""Generated tables are what their names say."""

import numpy as np
import pytest

from benchmarks.trust.families import FAMILIES, TEST_ROWS


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_seed_makes_the_same_table_and_another_seed_another(name: str) -> None:
    one, same, other = (FAMILIES[name](np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert np.array_equal(one.x, same.x)
    assert np.array_equal(one.y, same.y)
    assert not np.array_equal(one.y, other.y)
    assert np.isfinite(one.x).all()
    assert np.isfinite(one.y).all()
    assert len(one.x) == len(one.y) == one.train + TEST_ROWS


def test_heavy_tails_reach_far_and_collinear_columns_have_few_directions() -> None:
    rng = np.random.default_rng(0)
    far = FAMILIES["heavy_tails"](rng).x
    assert np.abs((far - far.mean(0)) / far.std(0)).max() > 20.0
    spectrum = np.linalg.svd(FAMILIES["collinear"](rng).x, compute_uv=False)
    assert spectrum[3] < 1e-2 * spectrum[0]


def test_the_rare_class_is_one_in_fifty() -> None:
    assert np.isclose(FAMILIES["rare_class"](np.random.default_rng(0)).y.mean(), 0.02)
