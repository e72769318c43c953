"""Predictive variances against those of NUTS."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesrule.training.checkpoint import CheckpointError
from benchmarks.hmc import reference
from benchmarks.hmc.reference import Plan

PLAN = Plan(seed=3)


class _Sampled:
    """What NUTS would give: variances that grow with the first input."""

    rhat, ess = {"outputs": torch.tensor([1.0, 1.01])}, {"outputs": torch.tensor([300.0, 200.0])}
    divergences, seconds = 0, 0.1

    def predict(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(epistemic=x[:, :1].exp())


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of a few columns, one of them constant, and no sampling."""
    source = np.random.default_rng(0)
    x = np.concatenate([source.normal(3.0, 2.0, (130, 2)), np.ones((130, 1))], 1)
    monkeypatch.setattr(reference, "uci_arrays", lambda name: (x, x[:, 0] ** 2))
    monkeypatch.setattr(reference, "hmc", lambda *given, **options: _Sampled())


def test_rows_are_standardised_by_those_that_are_learned_from() -> None:
    x, y, pool = reference.trial_data("yacht", 0, PLAN)
    assert (x.shape, y.shape, pool.shape) == ((20, 3), (20, 1), (100, 3))
    torch.testing.assert_close(x[:, :2].mean(0), torch.zeros(2, dtype=x.dtype))
    torch.testing.assert_close(x[:, :2].std(0), torch.ones(2, dtype=x.dtype))
    assert not x[:, 2].any()
    torch.testing.assert_close(y.std(), torch.ones((), dtype=y.dtype))
    assert not torch.equal(x, reference.trial_data("yacht", 1, PLAN)[0])
    assert torch.equal(pool, reference.trial_data("yacht", 0, PLAN)[2])


def test_correlations() -> None:
    a = torch.tensor([1.0, 2.0, 4.0])
    assert reference.correlation(a, 3.0 * a - 1.0) == pytest.approx(1.0)
    assert reference.correlation(a, -a) == pytest.approx(-1.0)
    expected = float(np.corrcoef([1.0, 2.0, 4.0], [2.0, 1.0, 5.0])[0, 1])
    assert reference.correlation(a, torch.tensor([2.0, 1.0, 5.0])) == pytest.approx(expected)


def test_references_are_kept_and_gone_on_with(tmp_path: Path) -> None:
    file, lines = tmp_path / "kept.json", list[str]()

    def keep(found: dict[str, Any]) -> None:
        file.write_text(json.dumps(found))

    whole = reference.references(["yacht", "boston"], 2, PLAN, keep=keep, progress=lines.append)
    assert [(one["set"], one["trial"]) for one in whole["references"]] == [
        ("yacht", 0), ("boston", 0), ("yacht", 1), ("boston", 1),
    ]  # fmt: skip
    assert len(lines) == 4
    known = reference.read(file, PLAN)
    assert known == whole["references"]
    reference.references(["yacht", "boston"], 2, PLAN, known=known, progress=lines.append)
    assert len(lines) == 4
    assert reference.read(tmp_path / "none.json", PLAN) == []
    with pytest.raises(CheckpointError, match="Choose another file"):
        reference.read(file, Plan(seed=4))
    file.write_text("[]")
    with pytest.raises(CheckpointError, match="holds no variances of NUTS"):
        reference.read(file, PLAN)
