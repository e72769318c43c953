"""Prints, as json, how many samples a second pytagi 0.2.1 trains on the CPU.

Run it in an environment of its own (see `reference.py` for what the wheel needs):

    python -m venv pytagi && pytagi/bin/pip install pytagi==0.2.1 numpy
    pytagi/bin/python benchmarks/pytagi/speed.py --threads 1

A step is a forward pass, the innovations of the outputs, a backward pass and the update of the
parameters, always on the same random batch. The figure is the median over the repeats. The nets,
as torch modules (biases everywhere, stride 1 in convolutions):

    mlp    Linear(784, 256), ReLU, Linear(256, 256), ReLU, Linear(256, 10); batch 256
    cnn    on 1x28x28 images, batch 64:
           Conv2d(1, 32, 5, padding=1), ReLU, AvgPool2d(2, 2),       # 26x26, then 13x13
           Conv2d(32, 64, 5), ReLU, AvgPool2d(3, 2),                 # 9x9, then 4x4
           Flatten, Linear(1024, 256), ReLU, Linear(256, 10)
    tiny   Linear(13, 50), ReLU, Linear(50, 1); batch 10
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

import numpy as np
from pytagi import nn  # type: ignore[import-not-found]

# A repeat must be long against the clock and the machine's noise; the CNN's one step is.
REPEAT_SECONDS = 0.25


@dataclass(frozen=True)
class Case:
    """A net, the sizes of its inputs and outputs, and the batch it is trained on."""

    name: str
    make: Callable[[], nn.Sequential]
    inputs: int
    outputs: int
    batch: int


def mlp() -> nn.Sequential:
    """784-256-256-10."""
    hidden = [nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(256, 10))


def cnn() -> nn.Sequential:
    """32c5 and 64c5 with average pooling, 256 units, 10 outputs."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=1, in_width=28, in_height=28),
        nn.ReLU(),
        nn.AvgPool2d(2, 2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.AvgPool2d(3, 2),
        nn.Linear(1024, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


def tiny() -> nn.Sequential:
    """13-50-1."""
    return nn.Sequential(nn.Linear(13, 50), nn.ReLU(), nn.Linear(50, 1))


CASES = [
    Case("mlp", mlp, 784, 10, 256),
    Case("cnn", cnn, 784, 10, 64),
    Case("tiny", tiny, 13, 1, 10),
]


def stepper(case: Case, threads: int) -> Callable[[], None]:
    """One training step of the case, ready to be called."""
    rng, net = np.random.default_rng(0), case.make()
    net.set_threads(threads)
    updater = nn.OutputUpdater(net.device)
    x = rng.normal(size=case.batch * case.inputs).astype(np.float32)
    y = rng.normal(size=case.batch * case.outputs).astype(np.float32)
    noise = np.ones_like(y)

    def step() -> None:
        net(x)
        updater.update(net.output_z_buffer, y, noise, net.input_delta_z_buffer)
        net.backward()
        net.step()

    return step


def timed(step: Callable[[], None], steps: int) -> float:
    """Seconds for a number of steps."""
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return time.perf_counter() - start


def measure(case: Case, threads: int, seconds: float) -> dict[str, object]:
    """Median samples a second over as many repeats, at least three, as fit into the time."""
    step = stepper(case, threads)
    timed(step, 1)  # allocates
    once = timed(step, 1)
    steps = max(1, round(REPEAT_SECONDS / once))
    repeats = max(3, min(25, int(seconds / (steps * once))))
    speeds = [case.batch * steps / timed(step, steps) for _ in range(repeats)]
    return {
        "case": case.name,
        "batch": case.batch,
        "samples_per_second": round(statistics.median(speeds), 1),
        "slowest": round(min(speeds), 1),
        "fastest": round(max(speeds), 1),
        "repeats": repeats,
        "steps_per_repeat": steps,
    }


def main() -> None:
    """Measure every case and print the figures."""
    parser = argparse.ArgumentParser(description="Training speed of pytagi on the CPU, as json.")
    parser.add_argument("--threads", type=int, default=1, help="threads pytagi may use (1)")
    parser.add_argument("--seconds", type=float, default=20.0, help="time for each case (20)")
    given = parser.parse_args()
    result = {
        "library": "pytagi",
        "version": version("pytagi"),
        "machine": f"{platform.machine()}, {platform.system()}",
        "threads": given.threads,
        "results": [measure(case, given.threads, given.seconds) for case in CASES],
    }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
