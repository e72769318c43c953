"""The one update, reports, tables and files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from exact import DTYPE, close, randn
from safetensors import safe_open
from safetensors.torch import save_file

from bayesrule.families import Beta, Dirichlet, Gamma
from bayesrule.graphical import (
    EM,
    HMM,
    PPCA,
    SVI,
    VB,
    FitWarning,
    GaussianMixture,
    Inference,
    Model,
    OnlineEM,
    Report,
    saving,
    tables,
)
from bayesrule.graphical._base import added, moved
from bayesrule.training.checkpoint import CheckpointError

NODES = {"a": (randn(3), randn(2, 2)), "b": (randn(4),)}
AIM = {"a": (randn(3, seed=1), randn(2, 2, seed=1)), "b": (randn(4, seed=1),)}


def test_the_update_is_an_average_in_natural_parameters() -> None:
    there = moved(NODES, AIM, 1.0)
    assert all(torch.equal(x, y) for k in AIM for x, y in zip(there[k], AIM[k], strict=True))
    for rate in (0.0, 0.3):
        for name, parts in moved(NODES, AIM, rate).items():
            for now, old, new in zip(parts, NODES[name], AIM[name], strict=True):
                close(now, (1.0 - rate) * old + rate * new, 1e-14)


def test_short_steps_come_closer_by_the_same_factor_each_time() -> None:
    here = dict(NODES)
    for _ in range(20):
        here = moved(here, AIM, 0.25)
    for old, now, aim in zip(NODES["a"], here["a"], AIM["a"], strict=True):
        close(now - aim, 0.75**20 * (old - aim), 1e-13)


@pytest.mark.parametrize(
    ("prior", "told", "wanted"),
    [
        (Beta.make(2.0, 3.0), (7.0, 4.0), Beta.make(9.0, 7.0)),
        (Gamma.make(2.0, 3.0), (11.0, -5.0), Gamma.make(13.0, 8.0)),
        (Dirichlet.make([1.0, 2.0]), (torch.tensor([3.0, 4.0]),), Dirichlet.make([4.0, 6.0])),
    ],
    ids=["7 of 11", "11 events in 5 hours", "3 and 4 votes"],
)
def test_bayes_rule_is_a_sum_of_messages(prior: Any, told: Any, wanted: Any) -> None:
    messages = {"node": tuple(torch.as_tensor(one) for one in told)}
    after = added({"node": prior.natural}, messages)["node"]
    for found, truth in zip(after, wanted.natural, strict=True):
        close(found, truth, 1e-12)


def test_rates_of_batches_fall_as_they_should() -> None:
    how = SVI(delay=10.0, forgetting=0.7)
    assert how.rate(0) == pytest.approx(10.0**-0.7)
    assert how.rate(990) == pytest.approx(1000.0**-0.7)
    assert SVI(delay=0.0).rate(0) == 1.0
    assert {EM().rate(5), VB().rate(5)} == {1.0}
    assert [one().at_mode for one in (EM, OnlineEM, VB, SVI)] == [True, True, False, False]


@pytest.mark.parametrize("wrong", [{"passes": 0}, {"tol": -1.0}, {"tol": math.nan}])
def test_inference_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="passes are 1 or more and tol is 0 or more"):
        Inference(**wrong)


def test_a_report_says_how_it_ended() -> None:
    report = Report((-5.0, -4.0), True, "the last pass changed it by 1e-9")
    assert report.passes == 2
    assert str(report) == (
        "converged after 2 passes, objective -4: the last pass changed it by 1e-9"
    )


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ppca.safetensors"
    PPCA(components=1).fit(randn(20, 3)).save(file)
    assert isinstance(Model.load(file), PPCA)
    with pytest.raises(CheckpointError, match="holds PPCA, not a GaussianMixture"):
        GaussianMixture.load(file)
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        PPCA.load(tmp_path / "nothing")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="not a whole checkpoint"):
        PPCA.load(file)


def test_files_build_nothing_but_options_of_the_library(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    PPCA(components=1).fit(randn(20, 3)).save(file)
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    facts = json.loads(metadata["facts"])
    for name in ("os:system", "bayesrule.graphical.saving:Path", "bayesrule.graphical.nope:EM"):
        facts["options"]["inference"] = {"is": name}
        save_file(tensors, file, {**metadata, "facts": json.dumps(facts)})
        with pytest.raises(CheckpointError, match="that the library does not have"):
            PPCA.load(file)


def test_files_of_which_something_is_missing_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    PPCA(components=1).fit(randn(20, 3)).save(file)
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    save_file({k: v for k, v in tensors.items() if k != "mean"}, file, metadata)
    with pytest.raises(CheckpointError, match=r"not a whole checkpoint.*'mean'"):
        PPCA.load(file)
    facts = json.loads(metadata["facts"])
    facts.pop("report")
    save_file(tensors, file, {**metadata, "facts": json.dumps(facts)})
    with pytest.raises(CheckpointError, match=r"not a whole checkpoint.*'report'"):
        PPCA.load(file)


def test_options_go_there_and_back() -> None:
    for value in (3, None, "word", 1.5, (1, (2, 3)), EM(passes=7), SVI(batch_size=3)):
        assert saving.decoded(json.loads(json.dumps(saving.encoded(value)))) == value
    with pytest.raises(TypeError):
        saving.encoded(object())


@pytest.mark.parametrize("frame", [True, False])
def test_tables_keep_what_they_can(frame: bool) -> None:
    numbers = np.arange(6).reshape(3, 2)
    found = tables.matrix(pd.DataFrame(numbers) if frame else numbers)
    assert found.dtype == DTYPE
    assert found.tolist() == numbers.tolist()
    kept = torch.ones(3, 2)
    assert tables.matrix(kept).data_ptr() == kept.data_ptr()
    mapped = np.ones((3, 2), dtype=np.float32)
    mapped.setflags(write=False)
    assert tables.matrix(mapped).dtype == torch.float32
    assert tables.matrix(numbers[::-1]).tolist() == numbers[::-1].tolist()


def test_missing_values_of_frames_are_missing() -> None:
    frame = pd.DataFrame({"a": pd.array([1, None, 3], dtype="Int64"), "b": [1.0, 2.0, 3.0]})
    found = tables.matrix(frame, missing=True)
    assert bool(found[1, 0].isnan())
    with pytest.raises(ValueError, match="row 1, column 'a': nan"):
        tables.matrix(frame)


def test_rows_beyond_the_first_chunk_are_looked_at() -> None:
    x = torch.zeros(70_000, 1)
    x[69_999] = math.inf
    with pytest.raises(ValueError, match="row 69999, column 0: inf"):
        tables.matrix(x)


def test_numbers_whose_squares_overflow_are_refused() -> None:
    x = randn(30, 2)
    x[4, 1] = 1e160
    with pytest.raises(ValueError, match=r"x is too large at row 4, column 1: 1e\+160"):
        GaussianMixture(components=2).fit(x)


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e8])
def test_fits_do_not_depend_on_units(scale: float) -> None:
    x = torch.cat([randn(60, 2), randn(40, 2, seed=1) + 8.0])
    one = GaussianMixture(components=2, reg_covar=0.0).fit(x)
    other = GaussianMixture(components=2, reg_covar=0.0).fit(scale * x + 3.0 * scale)
    close(other.means_ / scale - 3.0, one.means_, 1e-6)
    close(other.covariances_ / scale**2, one.covariances_, 1e-6)


@pytest.mark.parametrize("how", [EM(), VB()])
def test_columns_of_very_different_sizes_and_copies_of_them_are_fine(how: Inference) -> None:
    x = torch.cat([randn(60, 2), randn(40, 2, seed=1) + 8.0])
    sizes = torch.tensor([1e-4, 1e6], dtype=DTYPE)
    one = GaussianMixture(components=2, inference=how, reg_covar=0.0).fit(x)
    other = GaussianMixture(components=2, inference=how, reg_covar=0.0).fit(x * sizes)
    close(other.means_ / sizes, one.means_, 1e-5)
    twice = GaussianMixture(components=2, inference=VB()).fit(torch.cat([x, x], 1))
    close(twice.means_[:, :2], twice.means_[:, 2:], 1e-5)
    assert sorted(twice.weights_.tolist()) == pytest.approx([0.4, 0.6], abs=0.02)


def test_a_column_that_does_not_vary_is_reported() -> None:
    clouds = torch.cat([randn(30, 2), randn(30, 2, seed=1) + 8.0])
    x = torch.cat([clouds, torch.full((60, 1), 7.0, dtype=DTYPE)], 1)
    with pytest.warns(FitWarning, match="Column 2 does not vary"):
        GaussianMixture(components=2).fit(x)


def test_progress_is_shown_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    GaussianMixture(components=2).fit(randn(50, 2), progress=True)
    assert "GaussianMixture" in capsys.readouterr().err
    GaussianMixture(components=2).fit(randn(50, 2), progress=False)
    assert capsys.readouterr().err == ""


def test_batches_are_never_said_to_be_unfinished() -> None:
    x = randn(200, 2)
    model = GaussianMixture(components=2, inference=OnlineEM(batch_size=50, passes=3, tol=0.0))
    assert not model.fit(x).report_.converged
    with pytest.warns(FitWarning, match="not converged in 2 passes"):
        HMM(states=2, inference=EM(passes=2, tol=0.0)).fit(x)
