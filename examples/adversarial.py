"""Digits that a network takes for other digits, found by inference, as a picture.

    PYTHONPATH=. python examples/adversarial.py [FILE.svg]

A small convolutional network learns MNIST by TAGI, in one pass. Then TAGI infers the inputs for
which it would have named another digit: no gradients and no optimiser, only the closed-form
posterior of the pixels, a few times in a row. The rows show the images, what was added, and what
the network now sees.
"""

from __future__ import annotations

import base64
import struct
import zlib

import torch
from torch import Tensor, nn

import bayesrule as br
from benchmarks.data import Images, mnist
from benchmarks.models import fan_in_normal

STYLE = "svg { font: 13px system-ui, sans-serif; } text { fill: #222; text-anchor: middle; }"
SIDE, GAP, LEFT = 84, 26, 90


def network() -> nn.Module:
    """16 kernels of 5×5, average pooling, and 64 units, for 28×28 images."""
    layers = nn.Conv2d(1, 16, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()
    return fan_in_normal(
        nn.Sequential(*layers, nn.Linear(16 * 12 * 12, 64), nn.ReLU(), nn.Linear(64, 10))
    )


def trained(data: Images, num: int) -> tuple[br.Learner, br.types.State]:
    """One pass through the first `num` images."""
    learner = br.tagi(network(), br.likelihoods.OneHotLikelihood(), num_data=num)
    run = br.fit(learner, (data.x_train[:num], data.y_train[:num]), epochs=1, batch_size=32)
    return learner, run.state


def chosen(
    learner: br.Learner, state: br.types.State, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """For each digit, the first image that the network classifies correctly, and its label."""
    right = br.predict(learner, state, x).labels == y
    rows = [int((right & (y == digit)).nonzero()[0]) for digit in range(10)]
    return x[rows], y[rows]


def png(pixels: Tensor) -> str:
    """Grey levels (h, w) between 0 and 1 as the data URL of a PNG picture."""
    height, width = pixels.shape
    grey = (255.0 * pixels.clamp(0.0, 1.0)).round().to(torch.uint8).numpy()
    raw = b"".join(b"\0" + row.tobytes() for row in grey)
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b"")
    chunks = (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in parts
    )
    packed = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode()
    return f"data:image/png;base64,{packed}"


def _tile(pixels: Tensor, text: str, column: int, row: int) -> str:
    x, y = LEFT + column * (SIDE + 8), 8 + row * (SIDE + GAP)
    return (
        f'<image x="{x}" y="{y}" width="{SIDE}" height="{SIDE}" href="{png(pixels)}" '
        f'style="image-rendering: pixelated"/>'
        f'<text x="{x + SIDE / 2}" y="{y + SIDE + 16}">{text}</text>'
    )


def picture(data: Images, num: int = 20_000) -> str:
    """Ten digits, what was added to them, and what the network sees now."""
    data = data.standardised()
    learner, state = trained(data, num)
    x, y = chosen(learner, state, data.x_test, data.y_test)
    low, high = float(data.x_test.min()), float(data.x_test.max())
    attack = br.explore.attack(learner, state, x, (y + 3) % 10, bounds=(low, high), steps=30)
    before, after = (br.predict(learner, state, images).probs for images in (x, attack.images))
    scale = 0.5 / float(attack.change.abs().max())
    tiles = []
    for i in range(len(y)):
        old, new = int(y[i]), int(attack.labels[i])
        tiles += [
            _tile((x[i, 0] - low) / (high - low), f"{old} ({before[i, old]:.0%})", i, 0),
            _tile(0.5 + scale * attack.change[i, 0], f"{int(attack.iterations[i])} steps", i, 1),
            _tile((attack.images[i, 0] - low) / (high - low), f"{new} ({after[i, new]:.0%})", i, 2),
        ]
    names = "".join(
        f'<text x="{LEFT / 2}" y="{8 + row * (SIDE + GAP) + SIDE / 2}">{name}</text>'
        for row, name in enumerate(("image", "change", "deceives"))
    )
    size = LEFT + len(y) * (SIDE + 8), 3 * (SIDE + GAP) + 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]}" height="{size[1]}" '
        f'viewBox="0 0 {size[0]} {size[1]}"><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="white"/>{names}{"".join(tiles)}</svg>\n'
    )


if __name__ == "__main__":
    from _script import draw

    draw(lambda: picture(mnist()), __doc__)
