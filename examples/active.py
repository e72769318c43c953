"""Which labels a network asks for, and what they are worth, as a picture.

    python examples/active.py [FILE.svg]

The pool has 200 unlabelled inputs (grey ticks). Most lie close together, so random labels mostly
come from there. Left and middle: the predictive mean and two epistemic standard deviations after
five random labels (black) and ten more (red), which were drawn at random or asked for because the
prediction varied most there. Right: the test error after each label, averaged over trials, with its
standard error. EPIG asks for the label that tells most about the test inputs. BALD would ask for
the same rows as the largest variance, because the noise is the same everywhere. Takes half a
minute.
"""

from __future__ import annotations

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
.belief { fill: #2a78b5; opacity: .3; } .mean { fill: none; stroke: #14507d; stroke-width: 2; }
.truth { fill: none; stroke: #999; } .pool { fill: #999; } .first { fill: #111; }
.asked { fill: #d1301f; } .variance, .epig, .random { fill: none; stroke-width: 2; }
.variance { stroke: #d1301f; } .epig { stroke: #2a78b5; } .random { stroke: #777; }
.of-variance { fill: #d1301f; } .of-epig { fill: #2a78b5; } .of-random { fill: #777; }
.of-variance, .of-epig, .of-random { opacity: .15; stroke: none; }
"""
WIDTH, HEIGHT, HEAD = 360.0, 300.0, 26.0
FIRST, EPOCHS = 5, 200
TEST = torch.linspace(-2.0, 2.0, 100).unsqueeze(1)
CRITERIA: dict[str, br.explore.Criterion] = {
    "random": br.explore.Random(),
    "variance": br.explore.LargestVariance(),
    "epig": br.explore.EPIG(TEST),
}
TITLES = {"random": "at random", "variance": "largest variance", "epig": "EPIG"}


def curve(x: Tensor) -> Tensor:
    """The function to learn."""
    return torch.sin(3.0 * x)


def data(seed: int) -> tuple[br.types.Batch, br.types.Batch]:
    """A pool that is dense on the left, and a test set that is not; noise of 0.1."""
    generator = torch.Generator().manual_seed(seed)
    dense = torch.empty(170, 1).uniform_(-1.8, -1.2, generator=generator)
    sparse = torch.empty(30, 1).uniform_(-2.0, 2.0, generator=generator)
    x = torch.cat([dense, sparse])
    y = curve(x) + 0.1 * torch.randn(x.shape, generator=generator)
    return (x, y), (TEST, curve(TEST))


def run(name: str, seed: int, steps: int, epochs: int) -> br.explore.ActiveRun:
    """One trial, with a full Laplace approximation on 20 tanh units."""
    pool, test = data(seed)

    def build(num_data: int) -> br.Learner:
        return br.laplace(
            mlp(1, 1, hidden=(20,), activation=nn.Tanh),
            br.GaussianLikelihood(noise=0.1),
            num_data=num_data,
            structure=br.Dense(),
            learning_rate=br.schedules.cosine(0.1, epochs),
        )

    return br.explore.active_learning(
        build,
        pool=pool,
        test=test,
        start=FIRST,
        criterion=CRITERIA[name],
        steps=steps,
        # Too few labels to learn the noise from: it is given in the units of y.
        standardise=False,
        seed=seed,
        epochs=epochs,
        batch_size=64,
    )


def framed(title: str, plot: Plot) -> str:
    """A plot below its title."""
    drawn = f'<svg y="{HEAD}" width="{WIDTH}" height="{HEIGHT - HEAD}">{plot.render()}</svg>'
    return f'<text class="title" x="{plot.left}" y="20">{title}</text>{drawn}'


def belief(title: str, run: br.explore.ActiveRun, pool: br.types.Batch) -> str:
    """The labelled points, and the posterior in the end."""
    plot = Plot(Axis("x", -2.1, 2.1), Axis("", -2.3, 2.3), title, width=WIDTH, height=HEIGHT - HEAD)
    grid = torch.linspace(-2.1, 2.1, 200).unsqueeze(1)
    p = run.predict(grid)
    at, mean, reach = grid[:, 0], p.mean[:, 0], 2.0 * p.epistemic[:, 0].sqrt()
    plot.band(at.numpy(), (mean - reach).numpy(), (mean + reach).numpy(), kind="belief")
    plot.line(at.numpy(), curve(at).numpy(), kind="truth", dash="4 3")
    plot.line(at.numpy(), mean.numpy(), kind="mean")
    x, y = (part[:, 0] for part in pool)
    floor = torch.full_like(x, -2.2)
    plot.points(x.numpy(), floor.numpy(), kind="pool", radius=1.2)
    for kind, rows, radius in (("first", run.start, 3.0), ("asked", run.chosen, 3.4)):
        tips = [f"{kind} {i + 1}" for i in range(len(rows))]
        plot.points(x[rows].numpy(), y[rows].numpy(), tips, kind=kind, radius=radius)
    return framed(title, plot)


def errors(runs: dict[str, list[br.explore.ActiveRun]]) -> str:
    """The mean test error after each label, and its standard error."""
    at = next(iter(runs.values()))[0].num_labelled.numpy()
    curves = {name: torch.stack([run.rmse for run in trials]) for name, trials in runs.items()}
    top = 1.5 * max(float(values.mean(0).max()) for values in curves.values())
    x, y = Axis("labels", float(at[0]), float(at[-1])), Axis("", 0.0, top)
    plot = Plot(x, y, "error", width=WIDTH, height=HEIGHT - HEAD)
    for i, (name, values) in enumerate(curves.items()):
        mean, error = values.mean(0), values.std(0, correction=0) / max(len(values) - 1, 1) ** 0.5
        plot.band(at, (mean - error).numpy(), (mean + error).numpy(), kind=f"of-{name}")
        plot.line(at, mean.numpy(), kind=name, title=name)
        plot.line([at[-1] - 4.8, at[-1] - 4.0], [top * (0.95 - 0.08 * i)] * 2, kind=name)
        plot.text(float(at[-1]) - 3.7, top * (0.93 - 0.08 * i), TITLES[name])
    return framed(f"test RMSE, {len(curves['random'])} trials", plot)


def picture(trials: int = 5, steps: int = 10, epochs: int = EPOCHS) -> str:
    """All three panels."""
    runs = {name: [run(name, seed, steps, epochs) for seed in range(trials)] for name in CRITERIA}
    pool, _ = data(0)
    panels = (
        belief("labels at random", runs["random"][0], pool),
        belief("labels of the largest variance", runs["variance"][0], pool),
        errors(runs),
    )
    body = "".join(
        f'<svg x="{WIDTH * i}" y="0" width="{WIDTH}" height="{HEIGHT}">{panel}</svg>'
        for i, panel in enumerate(panels)
    )
    size = f'width="{3 * WIDTH}" height="{HEIGHT}" viewBox="0 0 {3 * WIDTH} {HEIGHT}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="white"/>{body}</svg>\n'
    )


if __name__ == "__main__":
    from _script import draw

    draw(picture, __doc__)
