"""Plain PyTorch modules that benchmarks share."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from bayesrule.tensors.network import forked_randomness
from bayesrule.training.models import mlp


def benchmark_mlp() -> nn.Module:
    """784-400-400-10 with ReLU: 478,410 weights."""
    return mlp(784, 10, hidden=(400, 400))


def tied_mlp(*, seed: int = 0) -> nn.Sequential:
    """784-400-400-10 with ReLU for images or rows (n, 784): Swiatkowski et al. (2020), MNIST."""
    return nn.Sequential(nn.Flatten(), *mlp(784, 10, hidden=(400, 400), seed=seed))


def tied_cnn(classes: int = 100, channels: int = 3, *, seed: int = 0) -> nn.Sequential:
    """32 and 64 kernels of 5×5 with max pooling, then 512 units, for 32×32 images.

    The LeNet of Swiatkowski et al. (2020), its widths inferred from their parameter counts.
    """
    with forked_randomness(torch.get_default_device(), seed):
        return nn.Sequential(
            *(nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(4096, 512), nn.ReLU(), nn.Linear(512, classes)),
        )


def lenet(classes: int = 10, channels: int = 1, size: int = 28) -> nn.Sequential:
    """32 and 64 kernels of 5×5 with average pooling, then 256 units, for square images."""
    positions = (size // 4) ** 2
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * positions, 256), nn.ReLU(), nn.Linear(256, classes)),
    )


def lenet_valid(classes: int = 10) -> nn.Sequential:
    """The same widths with less padding: 26×26, 13×13, 9×9 and 4×4 positions."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.AvgPool2d(3, 2)),
        *(nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, classes)),
    )


def fan_in_normal(model: nn.Module, seed: int = 0) -> nn.Module:
    """The module with its matrices, kernels and their biases drawn from N(0, 1 / fan_in)."""
    generator = torch.Generator().manual_seed(seed)
    for layer in model.modules():
        weight = getattr(layer, "weight", None)
        if isinstance(weight, nn.Parameter) and weight.ndim > 1:
            scale = weight[0].numel() ** -0.5
            for parameter in layer.parameters(recurse=False):
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.data.copy_(scale * drawn)
    return model


class _Block(nn.Module):
    """Two 3×3 convolutions with batch norm, and a skip connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        same = stride == 1 and inputs == outputs
        self.way = nn.Identity() if same else self._projection(inputs, outputs, stride)

    @staticmethod
    def _projection(inputs: int, outputs: int, stride: int) -> nn.Module:
        conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, H, W) to (n, C', H/stride, W/stride)."""
        y = self.relu(self.norm1(self.conv1(x)))
        return self.relu(self.norm2(self.conv2(y)) + self.way(x))


def _stages(block: Callable[[int, int, int], nn.Module], width: int) -> list[nn.Module]:
    """Four stages of two blocks, each stage after the first twice as wide on half the side."""
    blocks, before = [], width
    for stage, factor in enumerate((1, 2, 4, 8)):
        after = width * factor
        blocks += [block(before, after, 1 if stage == 0 else 2), block(after, after, 1)]
        before = after
    return blocks


def resnet18(width: int = 64, classes: int = 10, channels: int = 3) -> nn.Sequential:
    """The layout of ResNet-18 for 32×32 images: four stages of two blocks, widths 1, 2, 4, 8."""
    stem = [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    blocks = _stages(_Block, width)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes)]
    return nn.Sequential(*stem, *blocks, *head)


class _Softplus(nn.Softplus):
    """Softplus in the precision of its input, which `torch.autocast` would make float32."""

    def forward(self, input: Tensor) -> Tensor:
        """Elementwise."""
        with torch.autocast(input.device.type, enabled=False):
            return super().forward(input)


class _PreactBlock(nn.Module):
    """Norm, activation and 3×3 convolution, twice, and a skip connection."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, activation: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.activation1 = activation()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.activation2 = activation()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        same = stride == 1 and inputs == outputs
        self.way = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, H, W) to (n, C', H/stride, W/stride)."""
        y = self.activation1(self.norm1(x))
        around = x if self.way is None else self.way(y)
        return self.conv2(self.activation2(self.norm2(self.conv1(y)))) + around


def preact_resnet18(
    activation: Callable[[], nn.Module] = _Softplus,
    width: int = 64,
    classes: int = 10,
    channels: int = 3,
    *,
    seed: int = 0,
) -> nn.Sequential:
    """ResNet-18 with norms and activations before the convolutions, for 28×28 and 32×32 images.

    As in He et al. (2016), Identity mappings, a last norm and activation follow the last sum.
    Softplus, because Variational Laplace differentiates twice (Unlu & Aitchison 2021, sec. 4.3).
    """

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        return _PreactBlock(inputs, outputs, stride, activation)

    with forked_randomness(torch.get_default_device(), seed):
        stem = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        blocks = _stages(block, width)
        last = [nn.BatchNorm2d(8 * width), activation()]
        head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, classes)]
        return nn.Sequential(stem, *blocks, *last, *head)


class _LSTM(nn.LSTM):
    """One layer with one bias, whose weights never move in memory.

    Whenever its parameters are replaced, torch's own layer moves the new tensors into one piece of
    a GPU's memory. A CUDA graph, which knows them by their addresses, would then read stale
    memory. This layer makes a copy in one piece instead.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width, width, batch_first=True)
        bias, spare = (self.get_parameter(name) for name in ("bias_ih_l0", "bias_hh_l0"))
        nn.init.zeros_(bias)
        nn.init.ones_(bias.data[width : 2 * width])  # the gates that forget start open
        # torch's LSTM adds two biases; one is enough.
        nn.init.zeros_(spare).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Inputs (n, length, width) to the last state (n, width)."""
        weights = [getattr(self, name) for name in self._flat_weights_names]
        pieces = torch.cat([w.flatten() for w in weights]).split([w.numel() for w in weights])
        weights = [piece.view_as(w) for piece, w in zip(pieces, weights, strict=True)]
        start = x.new_zeros(1, len(x), self.hidden_size)
        options = (True, 1, 0.0, self.training, False, True)
        _, last, _ = torch.lstm(x, (start, start), weights, *options)
        return last[0]


def review_lstm(words: int = 20_000, width: int = 128, *, seed: int = 0) -> nn.Sequential:
    """Tokens (n, length) to the logit of a positive review (n, 1): Swiatkowski et al. (2020), IMDB.

    The state after the last token is read, so reviews are padded at the front (`data.reviews`).
    """
    with forked_randomness(torch.get_default_device(), seed):
        embedding = nn.Embedding(words, width)
        nn.init.uniform_(embedding.weight, -0.05, 0.05)
        return nn.Sequential(embedding, _LSTM(width), nn.Linear(width, 1))


def posterior_size(
    model: nn.Module, *, k: int = 0, tied: Collection[str] = (), points: Collection[str] = ()
) -> int:
    """The number of parameters of a posterior over a module's trainable weights.

    Two for each weight of a factorised Gaussian, one for those in `points`, and `m n + k (m + n)`
    for an m × n matrix (kernels: m = inputs × positions) in `tied`: Swiatkowski et al. (2020),
    table 1.

    >>> net = nn.Linear(20, 10)
    >>> posterior_size(net), posterior_size(net, k=2, tied=["weight"])
    (420, 280)
    """
    named = {name: value for name, value in model.named_parameters() if value.requires_grad}
    _check_names(named, k, tied, points)
    sizes = {name: 2 * value.numel() for name, value in named.items()}
    sizes |= {name: named[name].numel() for name in points}
    for name in tied:
        outputs, inputs = named[name].flatten(1).shape
        sizes[name] = inputs * outputs + k * (inputs + outputs)
    return sum(sizes.values())


def _check_names(
    named: dict[str, nn.Parameter], k: int, tied: Collection[str], points: Collection[str]
) -> None:
    for name in (*tied, *points):
        if name not in named:
            raise ValueError(f"No trainable parameter {name!r}; there are {', '.join(named)}.")
    for name in tied:
        if named[name].ndim < 2:
            shape = tuple(named[name].shape)
            raise ValueError(f"Only matrices and kernels can be tied; {name!r} is {shape}.")
    if both := set(tied) & set(points):
        raise ValueError(f"A parameter is tied or a point, not both; got {sorted(both)} in both.")
    if tied and k < 1:
        raise ValueError(f"Tied parameters have k of at least 1, got k={k}.")
