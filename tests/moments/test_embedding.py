"""Tables of Gaussian rows, and dropout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.testing import assert_close

from moments.linear_maps import check_linear, learned, leaves

WORDS = torch.tensor([[0, 2, 2], [4, 0, 1]])


def test_rows() -> None:
    check_linear(lambda table: F.embedding(WORDS, table), (5, 3))


def test_module() -> None:
    layer = nn.Embedding(5, 3)
    check_linear(lambda table: functional_call(layer, {"weight": table}, (WORDS,)), (5, 3))


@pytest.mark.parametrize("padding", [2, -3])
def test_padding_learns_nothing(padding: int) -> None:
    (table,) = leaves((5, 3))
    result = F.embedding(WORDS, table, padding_idx=padding)
    assert_close(result.variance, table.variance[WORDS])
    delta = torch.randn(2, 3, 3)
    result.tape.back(result, delta, -delta.abs())
    expected = torch.zeros(5, 3).index_add(0, WORDS.flatten(), delta.reshape(-1, 3))
    expected[2] = 0.0
    assert_close(learned(table)[0], expected)
    assert not learned(table)[1][2].any()


@pytest.mark.parametrize("setting", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
def test_what_changes_the_table_is_refused(setting: dict[str, float]) -> None:
    (table,) = leaves((5, 3))
    with pytest.raises(ValueError, match="no moment rule"):
        F.embedding(WORDS, table, **setting)  # type: ignore[arg-type]


def seeded(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """A layer that draws the same mask each time."""

    def run(x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return layer(x.clone())

    return run


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Dropout(0.3), (4, 5)),
        (nn.Dropout(1.0), (2, 3)),
        (nn.Dropout(0.3, inplace=True), (4, 5)),
        (nn.Dropout1d(), (4, 3, 2)),
        (nn.Dropout2d(0.4), (4, 3, 2, 2)),
        (nn.Dropout3d(), (4, 3, 1, 2, 2)),
        (nn.AlphaDropout(0.3), (4, 5)),
        (nn.FeatureAlphaDropout(0.3), (4, 3, 2, 2)),
    ],
)
def test_dropout_is_a_known_map(layer: nn.Module, shape: tuple[int, ...]) -> None:
    """From the same seed, the mask and all that follows from it is what plain tensors get."""
    result = check_linear(seeded(layer), shape)
    assert (result.variance == 0).any()


@pytest.mark.parametrize("layer", [nn.Dropout(), nn.Dropout2d(), nn.AlphaDropout()])
def test_evaluation_changes_nothing(layer: nn.Module) -> None:
    (x,) = leaves((2, 3, 2, 2))
    assert layer.eval()(x) is x
