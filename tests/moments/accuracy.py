"""How far moment rules are from draws, over the regimes that users meet: the table of docs/tagi.md.

`python -m moments.accuracy`, from the folder `tests`, writes it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from bayesrule.moments import GaussianTensor, MomentMatched, Tape, over_inputs

PAGE = Path(__file__).parents[2] / "docs" / "tagi.md"
BEGIN, END = "<!-- accuracy:begin -->", "<!-- accuracy:end -->"

Given = tuple[Callable[..., Any], list[Any]]
"""A function and its inputs, of which those that are Gaussian are drawn."""


@dataclass(frozen=True)
class Case:
    """A rule over a regime; `bounds` are what its errors in mean and variance may be.

    `num` draws tell them.
    """

    rule: str
    regime: str
    given: Callable[[], Iterator[Given]]
    bounds: tuple[float, float] = (0.1, 0.1)
    num: int = 20_000


def gaussian(mean: Tensor, std: float, spread: float = 0.5) -> GaussianTensor:
    """Standard deviations around one."""
    return GaussianTensor(mean, (std * (1.0 + spread * (torch.rand_like(mean) - 0.5))).square())


def drawn(inputs: Sequence[Any], num: int) -> list[Any]:
    """Draws of the inputs that are Gaussian, (num, ...)."""
    return [
        x.centre + x.variance.sqrt() * torch.randn(num, *x.shape)
        if isinstance(x, GaussianTensor)
        else x
        for x in inputs
    ]


def errors(function: Callable[..., Any], inputs: Sequence[Any], num: int) -> tuple[Tensor, Tensor]:
    """The error of means over the standard deviation, and the ratio of variances, by draws.

    Of outputs with at least a tenth of the largest variance: draws say little of rarer ones.
    """
    axes = tuple(0 if isinstance(x, GaussianTensor) else None for x in inputs)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        rounds = [vmap(function, axes)(*drawn(inputs, 1000)) for _ in range(num // 1000)]
        found = function(*inputs)
    truth = torch.cat(rounds)
    variance = truth.var(0)
    seen = variance > 0.1 * variance.max()
    bias = (found.centre - truth.mean(0)) / variance.sqrt()
    return bias[seen], (found.variance / variance)[seen]


def measured(case: Case) -> tuple[float, float, float]:
    """The largest error of a mean, and the 5 % and 95 % points of the ratio of variances."""
    torch.manual_seed(0)
    found = [errors(*given, case.num) for given in case.given()]
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


def in_turn(parts: Iterable[Callable[[], Iterator[Given]]]) -> Callable[[], Iterator[Given]]:
    several = list(parts)
    return lambda: itertools.chain.from_iterable(part() for part in several)


def classes(function: Callable[[Any], Any]) -> Callable[[], Iterator[Given]]:
    def given() -> Iterator[Given]:
        for num in (2, 10, 100):
            for std in (0.1, 1.0, 5.0):
                yield function, [gaussian(2.0 * torch.randn(num), std)]

    return given


def attention(
    stds: Sequence[float], keys: Sequence[int] = (10,), *, expected: bool = False
) -> Callable[[], Iterator[Given]]:
    tape = Tape(MomentMatched(expected_weights=expected), record=False)

    def given() -> Iterator[Given]:
        for num, std in itertools.product(keys, stds):
            inputs = [gaussian(torch.randn(s), std) for s in ((6, 8), (num, 8), (num, 4))]
            inputs = [GaussianTensor(x.centre, x.variance, tape) for x in inputs]
            yield F.scaled_dot_product_attention, inputs

    return given


def weighted(
    build: Callable[[], nn.Module],
    shape: tuple[int, ...],
    gains: Sequence[float] = (0.1, 0.3, 1.0),
    std: float = 0.0,
) -> Callable[[], Iterator[Given]]:
    """A network with uncertain weights; its inputs are known if `std` is zero."""

    def given() -> Iterator[Given]:
        for gain in gains:
            module, x = build(), torch.randn(shape)
            names = [name for name, _ in module.named_parameters()]

            def run(x: Any, *weights: Any, module: Any = module, names: Any = names) -> Any:
                return functional_call(module, dict(zip(names, weights, strict=True)), (x,))

            means = [weight.detach() for weight in module.parameters()]
            weights = [gaussian(w, gain * w.shape[-1] ** -0.5) if gain else w for w in means]
            yield run, [gaussian(x, std) if std else x, *weights]

    return given


FEW = (4, 8, 1), (4, 16, 2), (4, 32, 8)
MANY = (16, 8, 1), (16, 32, 8), (64, 16, 2)


def over_sizes(
    layer: Callable[[int, int], nn.Module],
    sizes: Sequence[tuple[int, int, int]],
    gains: Sequence[float],
    std: float = 0.0,
) -> Callable[[], Iterator[Given]]:
    """A layer of attention over numbers of tokens, features and heads."""
    return in_turn(
        weighted(partial(layer, features, heads), (tokens, features), gains, std)
        for tokens, features, heads in sizes
    )


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

    def __init__(self, features: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(features, heads)

    def forward(self, x: Tensor) -> Any:
        return self.layer(x, x, x, need_weights=False)[0]


class OwnAttention(nn.Module):
    """The same as people write it themselves, with one head."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(features, features) for _ in range(3))

    def forward(self, x: Tensor) -> Any:
        return F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


def encoder(features: int, heads: int) -> nn.Module:
    """In training, since evaluation takes a fast path that draws cannot follow."""
    return nn.TransformerEncoderLayer(features, heads, 2 * features, dropout=0.0)


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
WIDE = attention([1.0], (4, 16, 64))
EXPECTED = attention([1.0], (4, 16, 64), expected=True)
OWN = over_sizes(OwnAttention, MANY, [0.05, 0.5])
FEW_HEADS, MANY_HEADS = (partial(over_sizes, Attention, sizes) for sizes in (FEW, MANY))
FEW_LAYERS, MANY_LAYERS = (partial(over_sizes, encoder, sizes) for sizes in (FEW, MANY))
BATCH_NORM = nn.BatchNorm1d(8, affine=False, track_running_stats=False)
BATCHES = in_turn(shaped(BATCH_NORM, (num, 8), STDS) for num in (16, 32, 128))
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
    Case("layer norm", "of 8", shaped(nn.LayerNorm(8), (16, 8), STDS), (0.1, 0.12)),
    Case("layer norm", "of 4", shaped(nn.LayerNorm(4), (9, 4), STDS), (0.2, 0.4)),
    Case("RMS norm", "of 16", shaped(nn.RMSNorm(16), (8, 16), STDS)),
    Case("RMS norm", "of 4", shaped(nn.RMSNorm(4), (9, 4), STDS), (0.15, 0.3)),
    Case("group norm", "of 16 in a group", shaped(nn.GroupNorm(2, 4), (2, 4, 8), STDS)),
    Case("batch norm", "in training, of 8", shaped(BATCH_NORM, (8, 8), STDS), (0.1, 0.12)),
    Case("batch norm", "in training, of 16 to 128", BATCHES),
    Case("attention", "queries, keys, values ± 0.1", attention([0.1])),
    Case("attention", "queries, keys, values ± 0.5", attention([0.5])),
    Case("attention", "4 to 64 keys, all ± 0.05 to 0.3", attention([0.05, 0.3], (4, 16, 64))),
    Case("attention", "4 to 64 keys, all ± 1", WIDE, (0.5, 0.25)),
    Case("attention", "the same, with expected weights", EXPECTED, (0.1, 0.25)),
    Case("MLP", "uncertain weights", weighted(mlp, (6, 4))),
    Case("MLP", "with layer norm", weighted(lambda: mlp(nn.LayerNorm(32)), (6, 4))),
    Case("CNN", "with average pooling", AVERAGES, (0.3, 0.6)),
    Case("CNN", "with max pooling", MAXIMA, (0.5, 0.6)),
    Case("self-attention", "uncertain weights", weighted(Attention, (5, 8)), (0.2, 0.2)),
    *(
        Case("self-attention", regime, given, bounds, 5000)
        for regime, given, bounds in (
            ("4 tokens, weights ± 0.05 to 0.5", FEW_HEADS([0.05, 0.5]), (0.1, 0.15)),
            ("4 tokens, weights ± 1", FEW_HEADS([1.0]), (0.3, 0.2)),
            ("16 and 64 tokens, weights ± 0.05 to 0.5", MANY_HEADS([0.05, 0.5]), (0.1, 0.15)),
            ("16 and 64 tokens, weights ± 1", MANY_HEADS([1.0]), (0.15, 0.25)),
            ("16 and 64 tokens, both ± 0.3", MANY_HEADS([0.3], 0.3), (0.1, 0.2)),
            ("16 and 64 tokens, tokens ± 0.3", MANY_HEADS([0.0], 0.3), (0.35, 0.7)),
            ("16 and 64 tokens, own module, weights ± 0.05 to 0.5", OWN, (0.1, 0.8)),
        )
    ),
    *(
        Case("encoder layer", regime, given, bounds, 5000)
        for regime, given, bounds in (
            ("4 tokens, weights ± 0.05 to 1", FEW_LAYERS([0.05, 0.3, 1.0]), (0.1, 0.15)),
            ("16 and 64 tokens, weights ± 0.05 to 1", MANY_LAYERS([0.05, 1.0]), (0.1, 0.12)),
            ("16 and 64 tokens, both ± 0.3", MANY_LAYERS([0.3], 0.3), (0.1, 0.2)),
        )
    ),
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
