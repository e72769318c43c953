"""Film reviews in the form of Hugging Face's models, and a small classifier made of its classes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.app.data.errors import DataError
from bayesrule.tensors.network import forked_randomness
from benchmarks.data.reviews import reviews

Tokens = dict[str, Tensor]
_TARGETS = ["q_lin", "v_lin"]


@dataclass(frozen=True)
class Plan:
    """What all rows of a result share.

    `pretrain` reviews train only the body of the adapters. The first `train` of the others train
    the classifier, the first `few` the adapters; `test` are for testing.
    """

    pretrain: int = 12_000
    train: int = 6_000
    few: int = 1_000
    test: int = 5_000
    words: int = 5_000
    length: int = 64
    width: int = 48
    layers: int = 2
    dropout: float = 0.1
    rank: int = 4
    epochs: int = 5
    batch_size: int = 32
    draws: int = 16


class Texts(torch.utils.data.Dataset[Tokens]):
    """Reviews as the trainer expects them: one dict each, with its target under `labels`."""

    def __init__(self, x: Tokens, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> Tokens:
        return {**{name: part[row] for name, part in self.x.items()}, "labels": self.y[row]}

    def rows(self, begin: int, end: int) -> Texts:
        """Some of them."""
        return Texts({name: part[begin:end] for name, part in self.x.items()}, self.y[begin:end])


@dataclass(frozen=True, eq=False)
class Parts:
    """Reviews for the body, the classifier and the test; no review is in two."""

    body: Texts
    train: Texts
    test: Texts


@lru_cache(maxsize=1)
def parts(plan: Plan, folder: str | None = None) -> Parts:
    """The parts of a plan; tokens are read from a file in the folder, if there is one."""
    x, y, x_test, y_test = reviews(plan.words, plan.length, folder=folder)
    if plan.pretrain + plan.train > len(y) or plan.few > plan.train:
        raise DataError(
            f"There are {len(y):,} reviews to learn from; got {plan.pretrain:,} for the body and "
            f"{plan.train:,} others, of which {plan.few:,} for the adapters. Take fewer."
        )
    train, test = Texts(tokens(x, plan.words), y.long()), Texts(tokens(x_test, plan.words), y_test)
    return Parts(
        train.rows(len(y) - plan.pretrain, len(y)),
        train.rows(0, plan.train),
        Texts(test.x, test.y.long()).rows(0, plan.test),
    )


def tokens(x: Tensor, words: int) -> Tokens:
    """Padding goes to the end, and a token that the classifier reads, `words`, to the front.

    >>> tokens(torch.tensor([[0, 5, 6]]), words=9)
    {'input_ids': tensor([[9, 5, 6, 0]]), 'attention_mask': tensor([[1, 1, 1, 0]])}
    """
    order = (x == 0).long().argsort(dim=1, stable=True)
    ids = torch.cat([torch.full((len(x), 1), words), x.gather(1, order)], 1)
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def config(plan: Plan) -> Any:
    """A DistilBERT of the size of a plan."""
    from transformers import DistilBertConfig

    return DistilBertConfig(
        vocab_size=plan.words + 1,
        max_position_embeddings=plan.length + 1,
        dim=plan.width,
        hidden_dim=2 * plan.width,
        n_layers=plan.layers,
        n_heads=4,
        dropout=plan.dropout,
        attention_dropout=plan.dropout,
        seq_classif_dropout=plan.dropout,
        num_labels=2,
    )


def classifier(plan: Plan, seed: int) -> nn.Module:
    """A classifier with random weights."""
    from transformers import DistilBertForSequenceClassification

    with forked_randomness(torch.device("cpu"), seed):
        model: nn.Module = DistilBertForSequenceClassification(config(plan))
    return model


def adapted(plan: Plan, body: dict[str, Tensor], seed: int) -> nn.Module:
    """A classifier with a frozen body, low-rank adapters and a new head."""
    from peft import LoraConfig, get_peft_model

    model = classifier(plan, seed)
    inside: Any = model.distilbert
    inside.load_state_dict(body)
    wanted = LoraConfig(task_type="SEQ_CLS", r=plan.rank, lora_alpha=16, target_modules=_TARGETS)
    with forked_randomness(torch.device("cpu"), seed):
        found: nn.Module = get_peft_model(model, wanted)
    return found
