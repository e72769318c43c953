"""Who takes part in a comparison where nobody says."""

from __future__ import annotations

import numpy as np
import pytest

from bayesrule.app import baselines
from bayesrule.app.data import Encoder, Table
from bayesrule.app.lineup import applicable, lineup
from bayesrule.methods import METHODS, Need, record

pandas = pytest.importorskip("pandas")
pytest.importorskip("sklearn")


def encoder(target: str) -> Encoder:
    x = np.linspace(-1, 1, 50)
    frame = pandas.DataFrame({"x": x, "price": x**2, "kind": np.where(x > 0, "up", "down")})
    return Encoder.fit(Table.from_frame(frame), target)


def test_of_close_relatives_one_takes_part() -> None:
    """Plain optimisers, near-duplicates and what takes most of the time are left out."""
    found = lineup(encoder("price"), 40)
    assert {"map", "ridge", "vogn", "ivon", "laplace", "tagi", "mean_field"} <= {*found.methods}
    away = {"sgd", "adam", "rmsprop", "newton", "noisy_full", "noisy_tridiagonal", "k_tied"}
    assert away.isdisjoint(found.methods)
    assert 5 <= len(found.methods) <= 10
    (note,) = found.notes
    assert all(name in note for name in away)
    assert "--all runs every method" in note


def test_a_relative_that_does_not_fit_represents_nobody() -> None:
    assert "ridge" not in lineup(encoder("kind"), 40).methods
    assert "newton" in lineup(encoder("kind"), 40).methods


@pytest.mark.parametrize("target", ["price", "kind"])
def test_every_method_and_named_methods(target: str) -> None:
    fitted = encoder(target)
    every = lineup(fitted, 40, every=True)
    assert every.methods == applicable(None, fitted.task.kind)
    assert every.notes == ()
    named = lineup(fitted, 40, ["SGD", "noisy-full"])
    assert named.methods == ["sgd", "noisy_full"]
    assert named.notes == ()
    assert named.baselines == baselines.names(fitted.task.kind)
    assert len(named) == 7
    assert lineup(fitted, 40, ["sgd"], with_baselines=False).baselines == []


def test_a_baseline_that_cannot_take_part_is_named() -> None:
    found = lineup(encoder("price"), 5000, ["map"])
    assert "gaussian process" not in found.baselines
    assert found.notes == (
        "The baseline gaussian process is left out: it takes at most 1,000 training rows, and here "
        "are 5,000.",
    )


def test_relatives_are_methods_that_represent_themselves() -> None:
    relatives = {record(name).represented_by for name in METHODS} - {""}
    assert relatives
    assert all(record(name).represented_by == "" for name in relatives)


def test_methods_that_fit_the_task() -> None:
    wanted = [name for name in METHODS if Need.SCALED_LAYERS not in record(name).needs]
    assert applicable(None, "regression") == wanted
    assert "ridge" not in applicable(None, "classification")
    assert applicable(["VOGN", "map", "vogn"], "regression") == ["vogn", "map"]
    with pytest.raises(ValueError, match="newton is its counterpart"):
        applicable(["ridge"], "classification")
    with pytest.raises(ValueError, match="Did you mean 'map'"):
        applicable(["mop"], "regression")
