"""What is no chain of layers is refused by name, when it is seen."""

import pytest
import torch
from curvature.zoo import ZOO, Twice
from exact import TableRows, mlp, randn
from torch import Tensor, nn

from bayesrule.matrices import BlockTridiagonal
from matrices.layer_nets import params_of, rows_of


@pytest.fixture(autouse=True)
def _exact(double_precision: None) -> None:
    """Double precision and a fixed seed."""


class Shortcut(nn.Module):
    """The first layer reaches the third around the second."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (nn.Linear(2, 2) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        first = torch.tanh(self.one(x))
        return self.three(torch.tanh(self.two(first)) + first)


class Backwards(Shortcut):
    """The layers are called in another order than they are kept."""

    def forward(self, x: Tensor) -> Tensor:
        return self.one(self.two(self.three(x)))


class Beside(Shortcut):
    """Two layers side by side."""

    def forward(self, x: Tensor) -> Tensor:
        return self.three(self.one(x) * self.two(x))


class Lost(Shortcut):
    """The first layer has no part in the outputs."""

    def forward(self, x: Tensor) -> Tensor:
        return self.three(self.two(self.one(x).detach()))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Shortcut(), r"'one\.weight' has a way to three\.weight around 'two\.weight'"),
        (Backwards(), r"order three\.weight, two\.weight, one\.weight"),
        (Beside(), r"'one\.weight' has a way to three\.weight around 'two\.weight'"),
        (Twice(), r"'layer\.weight' is not the weight of one call"),
    ],
)
def test_what_is_no_chain_is_refused_by_name(model: nn.Module, reason: str) -> None:
    model = model.double()
    rows = rows_of(model, randn(4, 3 if isinstance(model, Twice) else 2))
    with pytest.raises(ValueError, match=f"chains of linear.*{reason}.*Kronecker"):
        BlockTridiagonal().for_model(model).contract(rows)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("layer norm", r"'parts\.1' \(LayerNorm\)"),
        ("embedding", r"'parts\.0' \(Embedding\)"),
        ("attention", r"'attention' \(MultiheadAttention\)"),
        ("arithmetic", r"the module \(Arithmetic\)"),
        ("conv2d, groups", r"'parts\.0' \(Conv2d\)"),
        ("tied embedding", r"'embedding' \(Embedding\)"),
    ],
)
def test_modules_with_other_layers_are_refused_by_name(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"{reason}.*Kronecker"):
        BlockTridiagonal().for_model(ZOO[name]()[0])


def test_parameters_and_rows_without_layers_are_refused_by_name() -> None:
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    with pytest.raises(ValueError, match=r"'0\.weight' belongs to several layers"):
        BlockTridiagonal().for_model(tied)
    params = params_of(mlp(2, 2, 1))
    with pytest.raises(ValueError, match=r"'scale' belongs to none"):
        BlockTridiagonal().identity({**params, "scale": torch.ones(2)}, 1.0)
    with pytest.raises(ValueError, match="do not know the layers"):
        BlockTridiagonal().contract(TableRows.random(params, 1, 3))
    with pytest.raises(ValueError, match=r"'0\.weight'.* 3 wide.*widest=3\)"):
        BlockTridiagonal(widest=2).identity(params, 1.0)
    lost = rows_of(Lost().double(), randn(4, 2))
    with pytest.raises(ValueError, match=r"'one\.weight' is not the weight of one call"):
        BlockTridiagonal().contract(lost)
