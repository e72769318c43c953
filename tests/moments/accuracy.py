"""How far moment rules are from draws, over the regimes that users meet: the table of docs/tagi.md.

`python -m moments.accuracy`, from the folder `tests`, writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from bayesrule.moments import GaussianTensor, over_inputs

PAGE = Path(__file__).parents[2] / "docs" / "tagi.md"
BEGIN, END = "<!-- accuracy:begin -->", "<!-- accuracy:end -->"

Given = tuple[Callable[..., Any], list[Any]]
"""A function and its inputs, of which those that are Gaussian are drawn."""


@dataclass(frozen=True)
class Case:
    """A rule over a regime; `bounds` are what its errors in mean and variance may be."""

    rule: str
    regime: str
    given: Callable[[], Iterator[Given]]
    bounds: tuple[float, float] = (0.1, 0.1)


def gaussian(mean: Tensor, std: float, spread: float = 0.5) -> GaussianTensor:
    """Standard deviations around one."""
    return GaussianTensor(mean, (std * (1.0 + spread * (torch.rand_like(mean) - 0.5))).square())


def errors(function: Callable[..., Any], inputs: Sequence[Any], num: int) -> tuple[Tensor, Tensor]:
    """The error of means over the standard deviation, and the ratio of variances, by draws.

    Of outputs with at least a tenth of the largest variance: draws say little of rarer ones.
    """
    axes = tuple(0 if isinstance(x, GaussianTensor) else None for x in inputs)
    drawn = [
        x.centre + x.variance.sqrt() * torch.randn(num, *x.shape)
        if isinstance(x, GaussianTensor)
        else x
        for x in inputs
    ]
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        truth = vmap(function, axes)(*drawn)
        found = function(*inputs)
    variance = truth.var(0)
    seen = variance > 0.1 * variance.max()
    bias = (found.centre - truth.mean(0)) / variance.sqrt()
    return bias[seen], (found.variance / variance)[seen]


def measured(case: Case, num: int = 20_000) -> tuple[float, float, float]:
    """The largest error of a mean, and the 5 % and 95 % points of the ratio of variances."""
    torch.manual_seed(0)
    found = [errors(*given, num) for given in case.given()]
    bias, ratio = (
        torch.cat([part.flatten() for part in parts]) for parts in zip(*found, strict=True)
    )
    low, high = ratio.quantile(torch.tensor([0.05, 0.95], dtype=ratio.dtype)).tolist()
    return bias.abs().quantile(0.95).item(), low, high


def scalar(function: Callable[[Any], Any]) -> Callable[[], Iterator[Given]]:
    def given() -> Iterator[Given]:
        for std in (0.01, 0.1, 1.0, 3.0):
            yield function, [gaussian(2.0 * std * torch.randn(30), std)]

    return given


def shaped(
    function: nn.Module, shape: tuple[int, ...], stds: Sequence[float]
) -> Callable[[], Iterator[Given]]:
    def given() -> Iterator[Given]:
        for std in stds:
            yield function.double(), [gaussian(torch.randn(shape), std)]

    return given


def classes(function: Callable[[Any], Any]) -> Callable[[], Iterator[Given]]:
    def given() -> Iterator[Given]:
        for num in (2, 10, 100):
            for std in (0.1, 1.0, 5.0):
                yield function, [gaussian(2.0 * torch.randn(num), std)]

    return given


def attention(stds: Sequence[float]) -> Callable[[], Iterator[Given]]:
    def given() -> Iterator[Given]:
        for std in stds:
            shapes = (6, 8), (10, 8), (10, 4)
            yield F.scaled_dot_product_attention, [gaussian(torch.randn(s), std) for s in shapes]

    return given


def weighted(
    build: Callable[[], nn.Module], shape: tuple[int, ...], gains: Sequence[float] = (0.1, 0.3, 1.0)
) -> Callable[[], Iterator[Given]]:
    """A network with uncertain weights, known inputs."""

    def given() -> Iterator[Given]:
        for gain in gains:
            module, x = build(), torch.randn(shape)
            names = [name for name, _ in module.named_parameters()]

            def run(*weights: Any, module: Any = module, x: Any = x, names: Any = names) -> Any:
                return functional_call(module, dict(zip(names, weights, strict=True)), (x,))

            means = [weight.detach() for weight in module.parameters()]
            yield run, [gaussian(w, gain * w.shape[-1] ** -0.5) for w in means]

    return given


def known_weights(act: Callable[[], nn.Module]) -> Callable[[], Iterator[Given]]:
    """A wide network all of whose units respond alike; its inputs alone are uncertain."""

    def given() -> Iterator[Given]:
        for width in (5, 50, 500):
            net = nn.Sequential(nn.Linear(3, width), act(), nn.Linear(width, 1))
            net.requires_grad_(False)
            net[2].weight.uniform_(0.0, 1.0 / width)
            yield AtPoints(net), [gaussian(torch.randn(4, 3), 0.7)]

    return given


class AtPoints:
    """A network with known weights; of uncertain inputs it predicts as `br.predict` does."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def __call__(self, x: Tensor) -> Any:
        if not isinstance(x, GaussianTensor):
            return self.net(x)
        return GaussianTensor(*over_inputs(self._sure, x))

    def _sure(self, x: Tensor) -> GaussianTensor:
        outputs = self.net(x)
        return GaussianTensor(outputs, torch.zeros_like(outputs))


class Attention(nn.Module):
    """Self-attention of one sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(8, 2)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x, x, x, need_weights=False)[0]


def mlp(*between: nn.Module) -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(4, 32), *between, nn.ReLU()),
        *(nn.Linear(32, 32), *between, nn.ReLU(), nn.Linear(32, 2)),
    )


def cnn(pool: nn.Module) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 3), nn.ReLU(), pool, nn.Conv2d(6, 6, 3), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(24, 2)),
    )


STDS = 0.1, 0.3, 1.0
SOFTMAX, LOG_SOFTMAX = classes(nn.Softmax(-1)), classes(nn.LogSoftmax(-1))
AVERAGES = weighted(lambda: cnn(nn.AvgPool2d(2)), (4, 1, 10, 10))
MAXIMA = weighted(lambda: cnn(nn.MaxPool2d(2)), (4, 1, 10, 10))
CASES = [
    Case("ReLU", "deviations 0.01 to 3", scalar(F.relu)),
    Case("ELU", "deviations 0.01 to 3", scalar(F.elu)),
    Case("tanh", "deviations 0.01 to 3", scalar(torch.tanh)),
    Case("sigmoid", "deviations 0.01 to 3", scalar(torch.sigmoid)),
    Case("GELU", "deviations 0.01 to 3", scalar(F.gelu)),
    Case("softmax", "2 to 100 classes, deviations 0.1 to 5", SOFTMAX, (0.1, 0.15)),
    Case("log_softmax", "2 to 100 classes, deviations 0.1 to 5", LOG_SOFTMAX, (0.3, 0.3)),
    Case("max pooling", "2 × 2", shaped(nn.MaxPool2d(2), (1, 2, 6, 6), STDS)),
    Case("max pooling", "3 × 3, overlap", shaped(nn.MaxPool2d(3, 2), (1, 2, 7, 7), STDS)),
    Case("layer norm", "of 64", shaped(nn.LayerNorm(64), (4, 64), STDS)),
    Case("layer norm", "of 16", shaped(nn.LayerNorm(16), (8, 16), STDS)),
    Case("layer norm", "of 4", shaped(nn.LayerNorm(4), (9, 4), STDS), (0.3, 0.6)),
    Case("RMS norm", "of 16", shaped(nn.RMSNorm(16), (8, 16), STDS)),
    Case("group norm", "of 16 in a group", shaped(nn.GroupNorm(2, 4), (2, 4, 8), STDS)),
    Case("attention", "queries, keys, values ± 0.1", attention([0.1]), (0.1, 0.6)),
    Case("attention", "queries, keys, values ± 0.5", attention([0.5]), (0.2, 0.6)),
    Case("MLP", "uncertain weights", weighted(mlp, (6, 4))),
    Case("MLP", "with layer norm", weighted(lambda: mlp(nn.LayerNorm(32)), (6, 4)), (0.3, 0.3)),
    Case("CNN", "with average pooling", AVERAGES, (0.3, 0.6)),
    Case("CNN", "with max pooling", MAXIMA, (0.5, 0.6)),
    Case("self-attention", "uncertain weights", weighted(Attention, (5, 8)), (0.3, 0.8)),
    Case("uncertain inputs", "ReLU net, width 5 to 500", known_weights(nn.ReLU)),
    Case("uncertain inputs", "tanh net, width 5 to 500", known_weights(nn.Tanh)),
]  # fmt: skip


def table() -> str:
    """The table as it stands in the docs."""
    head = (
        "| rule | over | mean off by (deviations) | variance over the true one |\n|---|---|---|---|"
    )
    rows = []
    for case in CASES:
        bias, low, high = measured(case)
        rows.append(f"| {case.rule} | {case.regime} | {bias:.2f} | {low:.2f} to {high:.2f} |")
    return "\n".join([head, *rows])


def write() -> None:
    """Writes the table into the page."""
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    print(table())
    write()
