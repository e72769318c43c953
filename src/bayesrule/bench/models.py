"""Plain torch modules that benchmarks share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bayesrule.models import mlp


def benchmark_mlp() -> nn.Module:
    """784-400-400-10 with ReLU: 478,410 weights."""
    return mlp(784, 10, hidden=(400, 400))


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
    """Two 3×3 convolutions with batch norm, and a way around them."""

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


def resnet18(width: int = 64, classes: int = 10, channels: int = 3) -> nn.Sequential:
    """The layout of ResNet-18 for 32×32 images: four stages of two blocks, widths 1, 2, 4, 8."""
    stem = [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    blocks, before = [], width
    for stage, factor in enumerate((1, 2, 4, 8)):
        after = width * factor
        blocks += [_Block(before, after, 1 if stage == 0 else 2), _Block(after, after, 1)]
        before = after
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes)]
    return nn.Sequential(*stem, *blocks, *head)
