"""Plain modules for tables: their shape, their first weights, and the random state left alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bayesrule.training.models import mlp


def test_layers_are_as_asked() -> None:
    net = mlp(3, 2, hidden=(5, 4), activation=nn.Tanh)
    assert [type(layer) for layer in net] == [nn.Linear, nn.Tanh, nn.Linear, nn.Tanh, nn.Linear]
    assert [tuple(p.shape) for p in net.parameters() if p.ndim == 2] == [(5, 3), (4, 5), (2, 4)]


def test_without_hidden_layers_it_is_linear() -> None:
    assert [type(layer) for layer in mlp(3, 2, hidden=())] == [nn.Linear]


def _weights(net: nn.Module) -> Tensor:
    return torch.cat([value.reshape(-1) for value in net.parameters()])


def test_the_seed_alone_decides_the_first_weights() -> None:
    first = mlp(3, 2, seed=1)
    torch.rand(7)
    again, other = mlp(3, 2, seed=1), mlp(3, 2, seed=2)
    assert torch.equal(_weights(first), _weights(again))
    assert not torch.equal(_weights(first), _weights(other))


def test_the_global_random_state_is_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    mlp(3, 2, seed=1)
    assert torch.equal(torch.rand(4), expected)


def test_seeding_reaches_no_other_device(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch.manual_seed would seed every GPU as well, and nothing would put them back.
    def refuse(seed: int) -> None:
        raise AssertionError(f"global seed {seed}")

    monkeypatch.setattr(torch, "manual_seed", refuse)
    monkeypatch.setattr(torch.random, "manual_seed", refuse)
    mlp(3, 2, seed=1)


@pytest.mark.parametrize("sizes", [(0, 1, (5,)), (3, 0, ()), (3, 1, (5, 0))])
def test_empty_layers_are_refused(sizes: tuple[int, int, tuple[int, ...]]) -> None:
    inputs, outputs, hidden = sizes
    with pytest.raises(ValueError, match="at least one unit, got"):
        mlp(inputs, outputs, hidden)
