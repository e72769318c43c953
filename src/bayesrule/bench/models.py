"""Plain torch modules that benchmarks share."""

from __future__ import annotations

from torch import Tensor, nn

from bayesrule.models import mlp


def benchmark_mlp() -> nn.Module:
    """784-400-400-10 with ReLU: 478,410 weights."""
    return mlp(784, 10, hidden=(400, 400))


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
