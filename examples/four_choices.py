"""The four choices of the learning rule, on a net small enough to see its whole posterior.

    python examples/four_choices.py [FILE.svg]

The net is `y = a tanh(b x)`, with two weights, and twelve noisy points. Shades are its posterior,
computed on a grid. First: the shape of the Gaussian approximation. Second: where the loss is
evaluated, at the mean or at many draws. Third: three curvatures at the same place, drawn as the
Gaussian that one evaluation would give. Fourth: the rule, twenty steps of three rules from the same
start. Needs matplotlib; takes a few seconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

import bayesrule as br

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
NUM, NOISE, START, BEST = 12, 0.4, (0.4, 2.4), (1.0, 1.0)
CIRCLE = torch.linspace(0.0, 6.2832, 40, dtype=torch.float64)


class Curve(nn.Module):
    """`a tanh(b x)`."""

    def __init__(self, a: float, b: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([a, b], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight[0] * torch.tanh(self.weight[1] * x)


def data() -> br.types.Batch:
    """Points of the curve with a = b = 1."""
    x = torch.linspace(-1.5, 1.5, NUM, dtype=torch.float64).unsqueeze(1)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x, torch.tanh(x) + NOISE * noise


def learner(start: tuple[float, float] = BEST, **parts: Any) -> br.Learner:
    """A learner put together from its parts."""
    likelihood = br.GaussianLikelihood(noise=NOISE)
    parts = {"temperature": 1.0, "prior": br.GaussianPrior(1.0), **parts}
    return br.Learner(Curve(*start), likelihood, num_data=NUM, **parts)


def states(learner: br.Learner, steps: int) -> list[br.types.State]:
    """The states after each step."""
    history = [learner.init(seed=0)]
    for _ in range(steps):
        history.append(learner.step(history[-1], data())[0])
    return history


def posterior(a: Tensor, b: Tensor) -> Tensor:
    """The density at (a, b), up to a factor; `a` and `b` are grids."""
    x, y = data()
    misfit = (y[:, 0] - a[..., None] * torch.tanh(b[..., None] * x[:, 0])).square().sum(-1)
    return torch.exp(-0.5 * (misfit / NOISE**2 + a.square() + b.square()))


def ellipse(belief: br.posteriors.Posterior) -> tuple[Tensor, Tensor]:
    """The contour of a Gaussian at two standard deviations."""
    draws = torch.stack(
        [belief.sample(torch.Generator().manual_seed(k))["weight"] for k in range(1000)]
    )
    root = torch.linalg.cholesky(draws.T.cov())
    around = 2.0 * root @ torch.stack([CIRCLE.cos(), CIRCLE.sin()])
    a, b = around + belief.mean["weight"][:, None]
    return a, b


def natural(structure: Any, draws: br.expectations.Expectation, **options: Any) -> br.Learner:
    """A Gaussian of the given structure, learned by natural gradients."""
    family, rule = br.GaussianFamily(structure), br.Natural(learning_rate=0.1, rate=0.05)
    return learner(
        posterior=family, expectation=draws, curvature=br.curvature.GGN(), rule=rule, **options
    )


def shapes(axis: Axes, steps: int) -> None:
    """The shape of the Gaussian."""
    for structure in (br.matrices.Isotropic(), br.Diagonal(), br.Dense()):
        belief = states(natural(structure, br.Draws(8)), steps)[-1].posterior
        axis.plot(*ellipse(belief), label=type(structure).__name__)


def places(axis: Axes, steps: int) -> None:
    """Where the loss is evaluated."""
    belief = states(natural(br.Dense(), br.Draws(8)), steps)[-1].posterior
    draws = [belief.sample(torch.Generator().manual_seed(k))["weight"] for k in range(40)]
    axis.plot(*torch.stack(draws).T, ".", markersize=4, label="Draws(40)")
    axis.plot(*belief.mean["weight"], "o", label="AtMean()")


def curvatures(axis: Axes) -> None:
    """Which curvature is used."""
    once = br.Natural(learning_rate=0.0, rate=1.0)
    for curvature in (br.curvature.GGN(), br.PerExample(), br.Fisher()):
        look = learner(
            posterior=br.GaussianFamily(br.Dense()),
            expectation=br.AtMean(),
            curvature=curvature,
            rule=once,
        )
        axis.plot(*ellipse(states(look, 1)[-1].posterior), label=type(curvature).__name__)


def moves(axis: Axes) -> None:
    """The rule that moves the Gaussian."""
    likelihood = br.GaussianLikelihood(noise=NOISE)
    options: dict[str, Any] = {"num_data": NUM}
    for label, method in (
        ("sgd", br.sgd(Curve(*START), likelihood, learning_rate=0.02, momentum=0.0, **options)),
        ("adam", br.adam(Curve(*START), likelihood, learning_rate=0.1, **options)),
        ("newton's steps", natural(br.Dense(), br.AtMean(), start=START)),
    ):
        path = torch.stack([state.posterior.mean["weight"] for state in states(method, 20)])
        axis.plot(*path.T, marker=".", label=label)


def picture(steps: int = 200) -> Figure:
    """A panel for each choice."""
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.6), sharey=True)
    a, b = torch.meshgrid(
        torch.linspace(0, 2.2, 36, dtype=torch.float64),
        torch.linspace(0, 3, 36, dtype=torch.float64),
        indexing="ij",
    )
    density = posterior(a, b).numpy()
    for axis, title in zip(axes, ("shape", "looks", "curvature", "moves"), strict=True):
        axis.contourf(a.numpy(), b.numpy(), density, 5, cmap="Greys", alpha=0.5)
        axis.set(title=title, xlabel="a", xlim=(0, 2.2), ylim=(0, 3))
    shapes(axes[0], steps)
    places(axes[1], steps)
    curvatures(axes[2])
    moves(axes[3])
    for axis in axes:
        axis.legend(fontsize=8, loc="upper right")
    axes[0].set_ylabel("b")
    return figure


if __name__ == "__main__":
    from _script import draw

    draw(picture, __doc__)
