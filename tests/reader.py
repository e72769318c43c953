"""A small transformer with the manners of Hugging Face's, and the same wrapped by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

WORDS, PLACES, WIDTH = 12, 6, 8


@dataclass
class Classified:
    """What the module returns; nobody says which field is meant."""

    hidden: Tensor
    logits: Tensor


class Reader(nn.Module):
    """Ids and a mask by name in, a dataclass out: attention, layer norms, a head.

    With `tied` the scores of all words are made with the weights of the first layer.
    """

    def __init__(self, classes: int = 2, tied: bool = False) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(PLACES, WIDTH)
            self.asked, self.known = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.said, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, WORDS if tied else classes)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, *, input_ids: Tensor, attention_mask: Tensor) -> Any:
        places = torch.arange(input_ids.shape[1]).expand(input_ids.shape)
        x = self.words(input_ids) + self.places(places)
        scores = self.asked(x) @ self.known(x).mT / WIDTH**0.5
        scores = scores.masked_fill(attention_mask.unsqueeze(1) == 0, -1e9)
        x = self.norm(x + scores.softmax(-1) @ self.said(x))
        weight = attention_mask.unsqueeze(2) / attention_mask.sum(1)[:, None, None]
        hidden = (x * weight).sum(1)
        return Classified(hidden, self.head(hidden))


class ByHand(Reader):
    """The same weights by the same names, but one tensor (n, 2, places) in and one tensor out."""

    def forward(self, both: Tensor) -> Tensor:  # type: ignore[override]
        ids, mask = both.unbind(1)
        found: Tensor = super().forward(input_ids=ids, attention_mask=mask).logits
        return found


class Adapted(nn.Module):
    """A layer that stays as it is, and a product of two small matrices beside it (LoRA)."""

    def __init__(self, layer: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.layer = layer
            self.down = nn.Linear(layer.in_features, rank, bias=False)
            self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))  # type: ignore[no-any-return]


def adapted(model: Reader) -> Reader:
    """The reader with adapters and a head that learn; everything else is frozen."""
    model.requires_grad_(False)
    model.asked, model.said = Adapted(model.asked), Adapted(model.said)  # type: ignore[assignment]
    model.head.requires_grad_(True)
    return model


def texts(num: int = 16, classes: int = 2) -> tuple[dict[str, Tensor], Tensor]:
    """Ids with padding, their masks, and classes that follow from the first id."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, WORDS, (num, PLACES), generator=generator)
    lengths = torch.randint(2, PLACES + 1, (num, 1), generator=generator)
    mask = (torch.arange(PLACES) < lengths).long()
    return {"input_ids": ids * mask, "attention_mask": mask}, ids[:, 0] % classes


def packed(x: dict[str, Tensor]) -> Tensor:
    """The same as one tensor."""
    return torch.stack([x["input_ids"], x["attention_mask"]], 1)
