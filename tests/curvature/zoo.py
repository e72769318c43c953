"""Unmodified modules of many kinds, each with inputs of five examples."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

Case = tuple[nn.Module, Tensor | tuple[Tensor, ...]]


class Chain(nn.Module):
    """Modules one after another, then a mean over all positions."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        y = self.parts(x)
        return y if y.ndim == 2 else y.flatten(start_dim=2).mean(2)


class Positions(nn.Module):
    """Modules shared by all positions of a sequence, (n, T, d), then a mean over positions."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x).mean(1)


class Residual(nn.Module):
    """`x + relu(A x)`, then a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(x + functional.relu(self.inner(x)))


class Twice(nn.Module):
    """The same linear layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class TiedEmbedding(nn.Module):
    """An embedding whose matrix is also the output layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.decoder = nn.Linear(4, 6)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.decoder(torch.tanh(self.embedding(tokens).mean(1)))


class Arithmetic(nn.Module):
    """Parameters used outside of any layer, one of them inside a layer too."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(3))
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.scale.exp()) * (1.0 + self.layer.bias)


class Unused(nn.Module):
    """One layer is never called and another's result is thrown away."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.idle, self.lost = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.lost(x)
        return self.layer(x)


class TimeFirst(nn.Module):
    """Works on (T, n, d), as recurrent code does; T equals n, so only the axis order tells."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.out = nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        steps = x.permute(1, 0, 2)
        hidden = torch.tanh(self.norm(self.layer(steps)))
        return self.out(hidden.mean(0))


class FlatPositions(nn.Module):
    """Examples and positions folded into one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.layer(x.reshape(-1, 3)))
        return self.out(hidden.reshape(len(x), -1, 4).sum(1))


class TwoInputs(nn.Module):
    """Two inputs, given as a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 2), nn.Linear(4, 2, bias=False)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(self.left(a)) * self.right(b)


class Attention(nn.Module):
    """Multi-head self-attention with a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Recurrent(nn.Module):
    """A recurrent layer with a linear head."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.recurrent = kind(3, 4, batch_first=True)
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.recurrent(x)[0][:, -1])


class SliceWrite(nn.Module):
    """Changes a part of a layer's output in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x)
        hidden[:, 0].mul_(2.0)
        return self.out(hidden)


def _times(x: Tensor, w: Tensor) -> Tensor:
    return x * w


class Scripted(nn.Module):
    """A parameter inside a scripted function, which no hook or mode sees."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.out = nn.Parameter(torch.randn(3)), nn.Linear(3, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.product = torch.jit.script(_times)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.product(x, self.scale))


class PartlyScripted(Scripted):
    """The same parameter in a layer, where it is seen, and in a scripted function, where not."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(self.out(x), self.out.bias)


def _with_statistics(norm: nn.Module) -> nn.Module:
    norm.running_mean.normal_()  # type: ignore[operator]
    norm.running_var.uniform_(0.5, 2.0)  # type: ignore[operator]
    return norm


def _frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].weight.requires_grad_(False)
    return model


def _flat_inputs(width: int = 3) -> Tensor:
    return torch.randn(5, width)


def _series() -> Tensor:
    return torch.randn(5, 4, 3)


def _tokens() -> Tensor:
    return torch.tensor([[0, 1, 1, 5], [2, 2, 2, 2], [0, 0, 3, 4], [5, 4, 3, 2], [1, 0, 1, 0]])


def _image() -> Tensor:
    return torch.randn(5, 4, 6, 5)


def _conv1d(**options: object) -> Case:
    return Chain(nn.Conv1d(4, 6, 3, **options), nn.Tanh()), torch.randn(5, 4, 9)  # type: ignore[arg-type]


def _conv2d(kernel: int | tuple[int, int] = 3, **options: object) -> Case:
    return Chain(nn.Conv2d(4, 6, kernel, **options), nn.Tanh()), _image()  # type: ignore[arg-type]


def _mlp(*activations: nn.Module) -> nn.Module:
    first, second = activations
    return nn.Sequential(nn.Linear(3, 5), first, nn.Linear(5, 4), second, nn.Linear(4, 2))


ZOO: dict[str, Callable[[], Case]] = {
    "mlp": lambda: (_mlp(nn.Tanh(), nn.Tanh()), _flat_inputs()),
    "in-place relu": lambda: (_mlp(nn.ReLU(True), nn.ReLU(True)), _flat_inputs()),
    "positions": lambda: (Positions(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), _series()),
    "positions, two axes": lambda: (
        Chain(nn.Linear(3, 4), nn.Tanh(), nn.Flatten(), nn.Linear(40, 2)),
        torch.randn(5, 2, 5, 3),
    ),
    "positions, in-place relu": lambda: (
        Positions(nn.Linear(3, 4), nn.ReLU(True), nn.Linear(4, 2)),
        _series(),
    ),
    "positions, no bias, in-place relu": lambda: (
        Positions(nn.Linear(3, 4, bias=False), nn.ReLU(True), nn.Linear(4, 2)),
        _series(),
    ),
    "conv1d": _conv1d,
    "conv1d, all options": lambda: _conv1d(stride=2, padding=2, dilation=2, groups=2),
    "conv1d, same": lambda: _conv1d(padding="same", bias=False),
    "conv2d": _conv2d,
    "conv2d, stride and padding": lambda: _conv2d(stride=(2, 1), padding=(1, 2)),
    "conv2d, dilation": lambda: _conv2d(dilation=(1, 2), padding=1),
    "conv2d, groups": lambda: _conv2d(groups=2),
    "conv2d, depthwise": lambda: (Chain(nn.Conv2d(4, 8, 3, groups=4), nn.Tanh()), _image()),
    "conv2d, same": lambda: _conv2d((3, 5), padding="same", dilation=(2, 1)),
    "conv2d, same, uneven": lambda: _conv2d((2, 4), padding="same"),
    "conv2d, valid": lambda: _conv2d(padding="valid"),
    "conv2d, circular": lambda: _conv2d(padding=1, padding_mode="circular"),
    "conv2d, no bias": lambda: _conv2d(bias=False),
    "conv2d, in-place relu": lambda: (
        Chain(nn.Conv2d(4, 6, 3), nn.ReLU(True), nn.Conv2d(6, 2, 2)),
        _image(),
    ),
    "conv3d": lambda: (Chain(nn.Conv3d(2, 3, 2), nn.Tanh()), torch.randn(5, 2, 3, 3, 3)),
    "transposed conv": lambda: (Chain(nn.ConvTranspose2d(4, 2, 2), nn.Tanh()), _image()),
    "batch norm": lambda: (
        Chain(nn.Linear(3, 4), _with_statistics(nn.BatchNorm1d(4)), nn.Tanh(), nn.Linear(4, 2)),
        _flat_inputs(),
    ),
    "batch norm of images": lambda: (
        Chain(nn.Conv2d(4, 3, 2), _with_statistics(nn.BatchNorm2d(3)), nn.ReLU(True)),
        _image(),
    ),
    "layer norm": lambda: (
        Positions(nn.Linear(3, 4), nn.LayerNorm(4), nn.Tanh(), nn.Linear(4, 2)),
        _series(),
    ),
    "layer norm over two axes": lambda: (
        Positions(nn.LayerNorm([4, 3]), nn.Tanh(), nn.Linear(3, 2)),
        _series(),
    ),
    "layer norm of vectors": lambda: (
        nn.Sequential(nn.LayerNorm(3), nn.Tanh(), nn.Linear(3, 2)),
        _flat_inputs(),
    ),
    "group norm": lambda: (Chain(nn.Conv2d(4, 6, 2), nn.GroupNorm(3, 6), nn.Tanh()), _image()),
    "rms norm": lambda: (Positions(nn.RMSNorm(3), nn.Linear(3, 2)), _series()),
    "embedding": lambda: (Positions(nn.Embedding(6, 3), nn.Tanh(), nn.Linear(3, 2)), _tokens()),
    "embedding with padding": lambda: (
        Positions(nn.Embedding(6, 3, padding_idx=0), nn.Tanh(), nn.Linear(3, 2)),
        _tokens(),
    ),
    "embedding, padding from the end": lambda: (
        Positions(nn.Embedding(6, 3, padding_idx=-1), nn.Tanh(), nn.Linear(3, 2)),
        _tokens(),
    ),
    "tied linear": lambda: (Twice(), _flat_inputs()),
    "tied embedding": lambda: (TiedEmbedding(), _tokens()),
    "weight norm": lambda: (
        nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2)),
        _flat_inputs(),
    ),
    "arithmetic": lambda: (Arithmetic(), _flat_inputs()),
    "prelu": lambda: (nn.Sequential(nn.Linear(3, 4), nn.PReLU(4), nn.Linear(4, 2)), _flat_inputs()),
    "residual": lambda: (Residual(), _flat_inputs()),
    "slice written in place": lambda: (SliceWrite(), _flat_inputs()),
    "attention": lambda: (Attention(), torch.randn(5, 4, 4)),
    "transformer": lambda: (
        Positions(nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), nn.Linear(4, 2)),
        torch.randn(5, 3, 4),
    ),
    "time first, as many steps as examples": lambda: (TimeFirst(), torch.randn(5, 5, 3)),
    "positions in the batch axis": lambda: (FlatPositions(), _series()),
    "one position in the batch axis": lambda: (FlatPositions(), torch.randn(5, 1, 3)),
    "frozen": lambda: (_frozen(), _flat_inputs()),
    "unused": lambda: (Unused(), _flat_inputs()),
    "two inputs": lambda: (TwoInputs(), (torch.randn(5, 3), torch.randn(5, 4))),
    "scripted": lambda: (Scripted(), _flat_inputs()),
    "partly scripted": lambda: (PartlyScripted(), _flat_inputs()),
}


_ATTENTION = {"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"}

LOOSE: dict[str, set[str]] = {
    "conv2d, same, uneven": {"parts.0.weight", "parts.0.bias"},
    "conv3d": {"parts.0.weight", "parts.0.bias"},
    "transposed conv": {"parts.0.weight", "parts.0.bias"},
    "rms norm": {"parts.0.weight"},
    "weight norm": {f"0.parametrizations.weight.original{i}" for i in (0, 1)},
    "arithmetic": {"scale", "layer.bias"},
    "prelu": {"1.weight"},
    "attention": {f"attention.{name}" for name in _ATTENTION},
    "transformer": {f"parts.0.self_attn.{name}" for name in _ATTENTION},
    "time first, as many steps as examples": {
        "layer.weight",
        "layer.bias",
        "norm.weight",
        "norm.bias",
    },
    "positions in the batch axis": {"layer.weight", "layer.bias"},
    "scripted": {"scale"},
    "partly scripted": {"out.bias"},
}
"""Parameters that are not understood from their layers; of all others, the rows come for free."""
