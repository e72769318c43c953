"""Noise that depends on the input, learned by TAGI: how close is it to the truth?

`y = −(x + ½) sin(3πx) + σ(x) ε` with `σ(x) = 0.45 (x + ½)²` for x in [−1, 1]: noise that goes from
nothing to 1.01, the example of Deka, Nguyen & Goulet (2024). For each seed new data are drawn and a
new network is trained; σ̂ is compared with σ on a grid, `√Σ(σ̂ − σ)² / √Σσ²`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

import bayesrule as br
from bayesrule.app.provenance import machine, versions
from bayesrule.app.report.axes import Axis
from bayesrule.app.report.svg import Plot
from bayesrule.training.models import mlp

NUM, HIDDEN, EPOCHS, BATCH = 3000, (64, 64), 100, 100
BAR = 0.1
GRID = torch.linspace(-0.95, 0.95, 381).unsqueeze(1)
# Uniform on [−1, 1] has this standard deviation; the network sees standardised inputs.
SCALE = 1.0 / math.sqrt(3.0)
STYLE = """
svg { font: 13px system-ui, sans-serif; } text { fill: #444; }
.grid { stroke: #e6e6e6; fill: none; } .notch, .base { stroke: #999; fill: none; }
.tick.y { text-anchor: end; } .tick.x { text-anchor: middle; } .axis-label.x { text-anchor: end; }
.band { fill: #2a78b5; opacity: .2; } .mean, .found { fill: none; stroke: #14507d; }
.mean { stroke-width: 2; } .found { stroke-width: 1.2; opacity: .8; }
.truth { fill: none; stroke: #c8501e; stroke-width: 2; } .data { fill: #222; opacity: .3; }
"""


def curve(x: Tensor) -> Tensor:
    """The mean of y."""
    return -(x + 0.5) * torch.sin(3.0 * math.pi * x)


def noise(x: Tensor) -> Tensor:
    """The standard deviation of y."""
    return 0.45 * (x + 0.5).square()


def data(seed: int, num: int = NUM) -> br.types.Batch:
    """Inputs (num, 1) and targets (num, 1)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.empty(num, 1).uniform_(-1.0, 1.0, generator=generator)
    return x, curve(x) + noise(x) * torch.randn(num, 1, generator=generator)


def train(seed: int, num: int = NUM, epochs: int = EPOCHS) -> br.predicting.Prediction:
    """The predictions on the grid."""
    x, y = data(seed, num)
    network = mlp(1, 2, HIDDEN, seed=seed)
    learner = br.tagi(network, br.HeteroscedasticLikelihood(), num_data=num)
    run = br.fit(learner, (x / SCALE, y), epochs=epochs, batch_size=BATCH, seed=seed)
    return run.predict(GRID / SCALE)


def distance(found: Tensor, truth: Tensor) -> float:
    """Root mean square error, relative to the truth's own root mean square."""
    return float((found - truth).square().mean().sqrt() / truth.square().mean().sqrt())


def figures(seed: int, p: br.predicting.Prediction) -> dict[str, Any]:
    """The scores of one seed."""
    return {
        "seed": seed,
        "noise_error": distance(p.aleatoric.sqrt(), noise(GRID)),
        "mean_rmse": float((p.mean - curve(GRID)).square().mean().sqrt()),
    }


def picture(predictions: list[br.predicting.Prediction]) -> str:
    """Left the data and one prediction, right the noise curves of all."""
    at, first = GRID[:, 0].numpy(), predictions[0]
    left = Plot(Axis("x", -1.0, 1.0), Axis("y", -3.5, 3.0), "data and prediction")
    reach = 2.0 * first.variance[:, 0].sqrt()
    low, high = (first.mean[:, 0] + sign * reach for sign in (-1, 1))
    x, y = data(0, 400)
    left.points(x[:, 0].numpy(), y[:, 0].numpy(), kind="data", radius=1.6)
    left.band(at, low.numpy(), high.numpy())
    left.line(at, first.mean[:, 0].numpy(), kind="mean")
    right = Plot(Axis("x", -1.0, 1.0), Axis("noise (standard deviation)", 0.0, 1.1), "noise curves")
    for p in predictions:
        right.line(at, p.aleatoric[:, 0].sqrt().numpy(), kind="found")
    right.line(at, noise(GRID)[:, 0].numpy(), kind="truth", dash="6 4")
    right.text(-0.95, 1.0, "dashed: the truth; lines: one for each seed")
    panels = "".join(
        f'<svg x="{480 * i}" y="0" width="480" height="340">{plot.render()}</svg>'
        for i, plot in enumerate((left, right))
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="960" height="340" viewBox="0 0 960 340">'
        f'<style>{STYLE}</style><rect width="100%" height="100%" fill="white"/>{panels}</svg>\n'
    )


def run(predictions: list[br.predicting.Prediction]) -> dict[str, Any]:
    """The scores of the predictions for seeds 0, 1, ...."""
    return {
        "benchmark": "heteroscedastic",
        "num_data": NUM,
        "hidden": HIDDEN,
        "epochs": EPOCHS,
        "batch_size": BATCH,
        "bar": BAR,
        "results": [figures(seed, p) for seed, p in enumerate(predictions)],
        "versions": versions(),
        "machine": machine(),
    }
