"""Mean-field and k-tied posteriors: figures, summaries, going on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import adaptive_avg_pool2d
from torch.testing import assert_close

from bayesrule.predicting.scales import Spectrum
from benchmarks.images import tied
from benchmarks.pictures.thumbnails import thumbnail, version

from .small_tasks import tied as small


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tied.TASKS, "small", small())
    monkeypatch.setattr(tied, "DRAWS", 3)


def run(**options: Any) -> dict[str, Any]:
    given = {"ranks": (0, 2), "seeds": (0,), "marks": (12, 20), "epochs": 2}
    return tied.run("small", **{**given, **options})


def bare(one: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in one.items() if name != "seconds"}


def test_what_is_found_of_each_rank() -> None:
    lines: list[str] = []
    found = run(show=lines.append)
    whole, two = found["results"]
    assert (whole["method"], two["method"]) == ("mean_field", "2-tied")
    sizes = 36 * 8 + 8 + 8 * 8 + 8 + 8 * 3 + 3
    assert whole["parameters"] == 2 * sizes
    # The last layer is not among the task's tied ones.
    assert two["parameters"] == sizes + 2 * (36 + 8 + 8 + 8) + 8 + 8 + 8 * 3 + 3
    assert found["num_data"] == 300
    for one in (whole, two):
        assert list(one["snr"]) == list(one["negative_elbo"]) == [12, 20]
        assert len(one["curve"]) == 2
        assert one["test"]["negative_elbo"] > one["test"]["nll_of_draws"]
    assert set(whole["truncated"]) == {"1", "2", "3"}
    assert set(whole["explained"]) == {"0.weight", "2.weight"}
    assert whole["deviations"]["name"] == "2.weight"
    assert torch.tensor(whole["deviations"]["full"]).shape == (8, 8)
    assert "deviations" not in two
    assert lines[1].startswith("[2/2] 2-tied, seed 0: NLL ")


def test_an_earlier_result_is_gone_on_with() -> None:
    whole, half = run(), run(ranks=(0,))
    lines: list[str] = []
    rest = run(previous=half, show=lines.append)
    assert len(lines) == 1
    assert [bare(one) for one in rest["results"]] == [bare(one) for one in whole["results"]]
    assert run(previous=rest, device="nowhere") is rest, "nothing is missing"


def test_summaries_are_means_over_seeds() -> None:
    def one(seed: int, nll: float) -> dict[str, Any]:
        test = {"nll": nll, "accuracy": 90.0 + seed}
        ratio = {"median": nll, "mean": 10 * nll}
        return {
            "method": "mean_field",
            "test": test,
            "parameters": 7,
            "snr": {"50": ratio},
            "negative_elbo": {"50": 2 * nll},
            "truncated": {"1": {"nll": 2 * nll, "accuracy": 50.0}},
        }

    result = {"results": [one(0, 1.0), one(2, 3.0)]}
    assert tied.summary(result) == {"mean_field": {"nll": 2.0, "accuracy": 91.0, "parameters": 7}}
    assert tied.ratio_summary(result) == [("mean_field", 50, 2.0, 20.0, 4.0)]
    cut = tied.truncated_summary(result)
    assert cut == {"all": {"nll": 2.0, "accuracy": 91.0}, "1": {"nll": 4.0, "accuracy": 50.0}}
    assert tied.truncated_summary({"results": []}) == {}


@pytest.mark.parametrize("shape", [(70, 48), (5, 100)])
def test_a_thumbnail_is_of_means_over_blocks(shape: tuple[int, int]) -> None:
    matrix = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    small = thumbnail(matrix, size=10)
    whole = torch.tensor(small["full"], dtype=torch.float64)
    size = min(shape[0], 10), 10
    assert_close(whole, adaptive_avg_pool2d(matrix[None], size)[0], rtol=1e-3, atol=0)
    for rank in (1, 2, 3):
        blocks = adaptive_avg_pool2d(Spectrum(matrix).truncated(rank)[None], size)[0]
        assert_close(version(small, rank), blocks.float(), rtol=0, atol=2e-3)
