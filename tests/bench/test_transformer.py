"""A small transformer of Hugging Face: every method learns it, whole and by adapters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from calling import bench, only_line

from bayesrule.app.data.errors import DataError
from benchmarks.language import reviews, transformer
from benchmarks.language.reviews import Plan, tokens
from benchmarks.language.transformer import METHODS

SIZES = {"train": 40, "pretrain": 40, "few": 20, "test": 20, "epochs": 1}
FEW = [word for name, size in SIZES.items() for word in (f"--{name}", str(size))]


def _made_up(words: int, length: int, folder: str | None = None) -> tuple[torch.Tensor, ...]:
    """Reviews of which one word says whether they praise, padded at the front."""
    generator = torch.Generator().manual_seed(0)
    found: list[torch.Tensor] = []
    for num in (100, 30):
        x = torch.randint(3, 30, (num, length), generator=generator)
        y = torch.arange(num) % 2
        x[:, -1] = 40 + y
        x[:5, : length // 2] = 0
        found += [x, y.float()]
    return tuple(found)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    reviews.parts.cache_clear()
    monkeypatch.setattr(reviews, "reviews", _made_up)


@pytest.mark.usefixtures("small")
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing. is deprecated:FutureWarning")
def test_every_method_learns_in_both_stages(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    out = tmp_path / "transformer.json"
    said = bench("transformer", *FEW, "--out", out)
    assert said.code == 0, said.err
    rows = json.loads(out.read_text())["results"]
    expected = [(stage, method) for stage, own in METHODS.items() for method in own]
    assert [(row["stage"], row["method"]) for row in rows] == expected
    for row in rows:
        assert "failed" not in row, row
        assert 0.0 < row["nll"] < 5.0, row
    sizes = {row["stage"]: row["weights"] for row in rows}
    assert sizes["adapters"] < 0.05 * sizes["scratch"]
    again = bench("transformer", *FEW, "--out", out)
    assert f"{len(rows)} rows are there already" in again.err


@pytest.mark.usefixtures("small")
def test_no_review_is_in_two_parts() -> None:
    found = reviews.parts(Plan(train=40, pretrain=50, few=20, test=20))
    assert [len(one) for one in (found.body, found.train, found.test)] == [50, 40, 20]
    x, _, x_test, y_test = _made_up(5000, 64)
    ids = [tokens(part, 5000)["input_ids"] for part in (x[-50:], x[:40], x_test[:20])]
    for part, expected in zip((found.body, found.train, found.test), ids, strict=True):
        assert torch.equal(part.x["input_ids"], expected)
    assert torch.equal(found.test.y, y_test[:20].long())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("sizes", [{"train": 60}, {"few": 41}])
def test_parts_that_would_overlap_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(DataError, match="There are 100 reviews to learn from"):
        reviews.parts(Plan(**{"train": 40, "pretrain": 50, "few": 20, **sizes}))


def test_padding_is_at_the_end_and_masked() -> None:
    found = tokens(torch.tensor([[0, 0, 7, 8], [3, 1, 4, 2]]), words=9)
    assert found["input_ids"].tolist() == [[9, 7, 8, 0, 0], [9, 3, 1, 4, 2]]
    assert found["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]


def test_a_method_that_is_not_there_is_refused() -> None:
    assert "No method 'adam'" in only_line(bench("transformer", "--methods", "adam"))
    assert "No stage 'whole'" in only_line(bench("transformer", "--stages", "whole"))
    assert transformer.SCRATCH in only_line(bench("transformer", "--stages", "whole"))
