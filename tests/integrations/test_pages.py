"""The pages' programs for Hugging Face run as they are, and are short."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from bayesrule.predicting import Prediction

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("peft")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "hugging-face.md"
PROGRAMS = [
    block
    for block in re.findall(r"```py\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    if "from_pretrained" in block
]
REVIEWS = [("a film to remember", 1), ("a bore", 0), ("to remember a film", 1), ("bore", 0)] * 4
NAME = "distilbert-base-uncased"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small model and its tokenizer, kept as those that people load by name are."""
    words = sorted({word for text, _ in REVIEWS for word in text.split()})
    index = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *words])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(index, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]",
        model_input_names=["input_ids", "attention_mask"],
    ).save_pretrained(tmp_path / "small")  # fmt: skip
    config = transformers.DistilBertConfig(
        vocab_size=len(index), dim=16, n_layers=1, n_heads=2, hidden_dim=32,
        max_position_embeddings=16,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.DistilBertForSequenceClassification(config)
    model.save_pretrained(tmp_path / "small")
    return tmp_path


def lines(program: str) -> int:
    return sum(1 for line in program.splitlines() if line.strip())


def test_there_is_one_for_ivon_and_one_for_laplace() -> None:
    assert ["IVON" in one for one in PROGRAMS] == [True, False]
    assert "br.laplace" in PROGRAMS[1]


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.parametrize("program", PROGRAMS, ids=["ivon", "laplace"])
def test_a_classifier_with_adapters_is_a_short_program(
    program: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lines(program) < 25
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    names: dict[str, Any] = {"reviews": REVIEWS}
    code = program.replace(f'"{NAME}"', repr(str(folder / "small")))
    assert code != program
    exec(compile(code, str(PAGE), "exec"), names)
    prediction = names["prediction"]
    assert isinstance(prediction, Prediction)
    torch.testing.assert_close(prediction.probs.sum(-1), torch.ones(len(prediction.probs)))
    assert (prediction.epistemic > 0.0).all()
    # The base is as it was loaded.
    base = transformers.AutoModelForSequenceClassification.from_pretrained(folder / "small")
    found = names["model"].base_model.model.distilbert.embeddings.word_embeddings.weight
    torch.testing.assert_close(found, base.distilbert.embeddings.word_embeddings.weight)
