"""Correlated weights: three variational posteriors and a sampler on one curve, as a picture.

    python examples/natural_gradient.py [FILE.svg]

All panels have the same 20 points, net and prior. Each shows the predictive mean and two bands of
two standard deviations: the inner one is epistemic (more data would reduce it), the outer one adds
the noise of the data. NUTS draws from the posterior itself (`pip install 'bayesrule[hmc]'`; without
it there are three panels), and dashes show the edge of its outer band. Below each panel are the
ELBO, which is the log evidence (the same for all) less the KL divergence from the posterior, and r,
the correlation of the epistemic variances along the curve with those of NUTS. Takes a minute on one
core.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.app.report.axes import Axis
from bayesrule.app.report.svg import Plot
from bayesrule.training.models import mlp

STYLE = """
svg { font: 13px system-ui, sans-serif; } text { fill: #444; }
.title { font-weight: 600; fill: #111; } .grid { stroke: #e6e6e6; fill: none; }
.notch, .base { stroke: #999; fill: none; } .tick.y { text-anchor: end; }
.tick.x { text-anchor: middle; } .axis-label.x { text-anchor: end; }
.outer { fill: #2a78b5; opacity: .16; } .inner { fill: #2a78b5; opacity: .34; }
.mean { fill: none; stroke: #14507d; stroke-width: 2; } .data { fill: #222; stroke: none; }
.edge { fill: none; stroke: #c2410c; stroke-width: 1.2; }
"""
WIDTH, HEIGHT, HEAD = 430.0, 280.0, 26.0
CLUSTERS = ((-1.6, -0.6), (0.4, 1.4))
NUM, EPOCHS = 20, 1500
NOISE = br.GaussianLikelihood(noise=0.1)
LOW, HIGH = -2.3, 2.1
SAMPLING: dict[str, Any] = {"draws": 200, "warmup": 100, "chains": 2}


class Belief(NamedTuple):
    """What a panel shows."""

    title: str
    prediction: br.predicting.Prediction
    note: str


def data() -> br.types.Batch:
    """Two clusters of inputs with a gap between them, and noise of 0.1."""
    generator = torch.Generator().manual_seed(0)
    x = torch.cat([torch.empty(10, 1).uniform_(a, b, generator=generator) for a, b in CLUSTERS])
    return x, torch.sin(3 * x) + 0.1 * torch.randn(NUM, 1, generator=generator)


def model() -> nn.Module:
    """61 weights, each with the prior N(0, 1)."""
    return mlp(1, 1, hidden=(20,), activation=nn.Tanh)


def learners(epochs: int) -> dict[str, tuple[br.Learner, int]]:
    """Three learners on the same module, each with the steps its ELBO needs to settle."""
    noisy: dict[str, Any] = {
        "num_data": NUM,
        "learning_rate": br.schedules.cosine(0.2, epochs),
        # Each step sees all the data, so that an average over twenty steps is smooth enough.
        "rate": 0.05,
        "draws": 4,
        "kl_clip": math.inf,
        "stats_every": 1,
        "inverse_every": 1,
    }
    mean_field = br.mean_field(
        model(),
        NOISE,
        num_data=NUM,
        expectation=br.LocalDraws(4),
        learning_rate=br.schedules.cosine(0.03, 3 * epochs),
        scale_multiplier=3.0,
    )
    return {
        "mean_field: no correlations": (mean_field, 3 * epochs),
        "noisy_kfac: a matrix Gaussian for each layer": (
            br.noisy_kfac(model(), NOISE, **noisy),
            epochs,
        ),
        "noisy_full: all correlations": (br.noisy_full(model(), NOISE, **noisy), epochs),
    }


def learned(grid: Tensor, epochs: int) -> list[Belief]:
    """The posteriors' predictions, averaged over 500 draws."""
    beliefs, draws = [], br.Draws(500)
    for title, (learner, steps) in learners(epochs).items():
        run = br.fit(learner, data(), epochs=steps, batch_size=NUM)
        bound = float(br.predicting.elbo(learner, run.state, data(), draws))
        note = f"ELBO {bound:.0f} nats".replace("-", "−")
        beliefs.append(Belief(title, run.predict(grid, how=draws), note))
    return beliefs


def sampled(grid: Tensor, **options: Any) -> Belief | None:
    """The prediction by NUTS; None if the sampler is not installed."""
    if importlib.util.find_spec("nutpie") is None:
        return None
    samples = br.hmc(model(), NOISE, data(), **options)
    print(samples.summary())
    worst = float(samples.rhat["outputs"].max())
    note = f"{len(samples)} draws, R-hat of outputs {worst:.2f}"
    return Belief("NUTS: the posterior itself", samples.predict(grid), note)


def edges(p: br.predicting.Prediction, variance: Tensor) -> tuple[Tensor, Tensor]:
    """The mean minus and plus two standard deviations."""
    reach = 2.0 * variance[:, 0].sqrt()
    return p.mean[:, 0] - reach, p.mean[:, 0] + reach


def beside(belief: Belief, judge: br.predicting.Prediction) -> str:
    """The note below a panel that is compared with NUTS."""
    pair = [p.epistemic.double().flatten() for p in (belief.prediction, judge)]
    return f"{belief.note}, r = {float(torch.corrcoef(torch.stack(pair))[0, 1]):.2f} (dashes: NUTS)"


def panel(belief: Belief, grid: Tensor, judge: br.predicting.Prediction | None) -> str:
    """One posterior, and the edges of the band of NUTS."""
    p, at = belief.prediction, grid[:, 0]
    x_axis, y_axis = Axis("x", LOW, HIGH), Axis("", -2.9, 2.9)
    plot = Plot(x_axis, y_axis, belief.title, width=WIDTH, height=HEIGHT - HEAD)
    for kind, variance in (("outer", p.variance), ("inner", p.epistemic)):
        low, high = edges(p, variance)
        plot.band(at.numpy(), low.numpy(), high.numpy(), kind=kind)
    for edge in () if judge is None else edges(judge, judge.variance):
        plot.line(at.numpy(), edge.numpy(), kind="edge", dash="4 3")
    plot.line(at.numpy(), p.mean[:, 0].numpy(), kind="mean")
    x, y = (part[:, 0] for part in data())
    points = [f"{a:.2f}, {b:.2f}" for a, b in zip(x, y, strict=True)]
    plot.points(x.numpy(), y.numpy(), points, kind="data", radius=2.4)
    plot.text(LOW + 0.1, -2.6, belief.note if judge is None else beside(belief, judge))
    drawn = f'<svg y="{HEAD}" width="{WIDTH}" height="{HEIGHT - HEAD}">{plot.render()}</svg>'
    return f'<text class="title" x="{plot.left}" y="20">{belief.title}</text>{drawn}'


def picture(epochs: int = EPOCHS, **sampling: Any) -> str:
    """All panels, two in a row; `sampling` are options of `br.hmc`."""
    grid = torch.linspace(LOW, HIGH, 240).unsqueeze(1)
    beliefs = learned(grid, epochs)
    judge = sampled(grid, **SAMPLING | sampling)
    panels = [panel(belief, grid, judge.prediction if judge else None) for belief in beliefs]
    panels += [panel(judge, grid, None)] if judge else []
    body = "".join(
        f'<svg x="{k % 2 * WIDTH}" y="{k // 2 * HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
        f"{drawn}</svg>"
        for k, drawn in enumerate(panels)
    )
    wide, tall = 2 * WIDTH, math.ceil(len(panels) / 2) * HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{tall}" '
        f'viewBox="0 0 {wide} {tall}"><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="white"/>{body}</svg>\n'
    )


if __name__ == "__main__":
    from _script import draw

    draw(picture, __doc__)
