"""A transformer that knows which positions it has never seen.

    python examples/transformer.py [FILE.svg]

A line of 24 places holds one a and one b among blanks: which comes first? In training both are
among the first 14 places (the frame), so the embeddings of the positions behind them stay at their
initial values. Colours show how sure the net is on average, over lines it was not trained on, with
a at one place and b at another. The best single network is sure of what it cannot know; a posterior
over the weights of PyTorch's unmodified layers is less so. Needs matplotlib; takes about twenty
seconds.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import bayesrule as br

plt.style.use(Path(__file__).with_name("gallery.mplstyle"))
LENGTH, SEEN, SYMBOLS, WIDTH = 24, 14, 6, 16


class Transformer(nn.Module):
    """One attention layer over symbols and positions, averaged over its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.body = nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, line: Tensor) -> Tensor:
        place = torch.arange(LENGTH, device=line.device)
        return self.head(self.body(self.symbols(line) + self.positions(place)).mean(1))


def lines(places: Tensor, seed: int) -> br.types.Batch:
    """Lines with a (0) and b (1) at the given places (n, 2), and whether b comes first."""
    generator = torch.Generator().manual_seed(seed)
    line = torch.randint(2, SYMBOLS, (len(places), LENGTH), generator=generator)
    line.scatter_(1, places, torch.tensor([[0, 1]]).expand(len(places), 2))
    return line, (places[:, 1] < places[:, 0]).long()


def pairs(length: int) -> Tensor:
    """All places of a and b (n, 2) within a length."""
    places = torch.cartesian_prod(torch.arange(length), torch.arange(length))
    return places[places[:, 0] != places[:, 1]]


def learners() -> dict[str, br.Learner]:
    """Two methods on the same net."""
    made = {}
    num = 4 * len(pairs(SEEN))
    for name, options in (("map", {}), ("ivon", {"temperature": 1.0})):
        torch.manual_seed(0)
        method = getattr(br, name)
        made[name] = method(Transformer(), br.CategoricalLikelihood(), num_data=num, **options)
    return made


def picture(epochs: int = 60) -> Figure:
    """How sure each net is, by the places of a and b."""
    train = lines(pairs(SEEN).repeat(4, 1), seed=0)
    places = pairs(LENGTH)
    known = (places < SEEN).all(1)
    x, y = lines(places, seed=1)
    figure, axes = plt.subplots(1, 2, figsize=(9, 4.2))
    for axis, (name, learner) in zip(axes, learners().items(), strict=True):
        probs = (
            br.fit(learner, train, epochs=epochs, batch_size=64, progress=False).predict(x).probs
        )
        right, sure = probs.argmax(1) == y, torch.full((LENGTH, LENGTH), torch.nan)
        sure[places[:, 0], places[:, 1]] = probs.amax(1)
        drawn = axis.imshow(sure.numpy(), vmin=0.5, vmax=1.0, origin="lower", cmap="viridis")
        axis.plot([-0.5, SEEN - 0.5, SEEN - 0.5], [SEEN - 0.5, SEEN - 0.5, -0.5], color="red")
        words = [
            f"{kind}: right {float(right[of].float().mean()):.0%}, "
            f"sure {float(probs.amax(1)[of].mean()):.0%}"
            for kind, of in (("seen", known), ("unseen", ~known))
        ]
        axis.set_title(f"{name}\n" + "\n".join(words), fontsize=9)
        axis.set(xlabel="place of b", ylabel="place of a")
    figure.colorbar(drawn, ax=axes, shrink=0.8)
    return figure


if __name__ == "__main__":
    from _script import draw

    draw(picture, __doc__)
