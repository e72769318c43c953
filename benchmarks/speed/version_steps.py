"""Times steps of the version of bayesrule that is first on the path; prints json.

`python -m benchmarks versions` runs this file by itself, once with each of two source trees. It
therefore imports nothing but torch and calls of bayesrule that stay the same between versions:
`METHODS`, `init`, `step`, `fit_many` and the likelihoods.
"""

from __future__ import annotations

import gc
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bayesrule as br

Step = Callable[[], object]
NUM_DATA, NETS, ROWS = 60_000, 20, 200
CNN_WIDTH = 16
MANY, TORCH = "many", "torch"
# Methods that estimate the curvature only in some steps: a round is a whole cycle.
CADENCE = {"stats_every": 10, "inverse_every": 100}
IN_CYCLES = ("noisy_kfac", "noisy_ekfac", "noisy_tridiagonal", "noisy_full")
STEPS = {"mlp": 20, "cnn": 3, "small": 100}


class Block(nn.Module):
    """Two 3×3 convolutions with norms, and their input added."""

    def __init__(self, inputs: int, outputs: int, stride: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.path = nn.Sequential(
            *(nn.Conv2d(inputs, outputs, 3, stride, padding=1), nn.BatchNorm2d(outputs)),
            activation(),
            *(nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride)
        self.last = activation()

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, H, W) to (n, C', H/stride, W/stride)."""
        return self.last(self.path(x) + self.shortcut(x))


def mlp(sizes: list[int], activation: type[nn.Module]) -> nn.Module:
    """Linear layers of these sizes with activations between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def cnn(activation: type[nn.Module]) -> nn.Module:
    """Four residual blocks for 32×32 images of three colours, width doubled in each."""
    widths = [CNN_WIDTH * factor for factor in (1, 2, 4, 8)]
    blocks = [
        Block(inputs, outputs, 2, activation)
        for inputs, outputs in zip([CNN_WIDTH, *widths], widths, strict=False)
    ]
    stem = nn.Conv2d(3, CNN_WIDTH, 3, padding=1)
    return nn.Sequential(
        stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10)
    )


def network(case: str, method: str) -> nn.Module:
    """The net of a case, adapted to the method's needs."""
    torch.manual_seed(0)
    # Variational Laplace differentiates twice; ridge regression and Newton's steps need convexity.
    activation = nn.Softplus if method == "variational_laplace" else nn.ReLU
    if case == "cnn":
        return cnn(activation)
    if case == "mlp":
        return mlp([784, 400, 400, 10], activation)
    return nn.Linear(13, 1) if method in ("ridge", "newton") else mlp([13, 50, 1], activation)


def batch(case: str) -> tuple[Tensor, Tensor]:
    """Random inputs and targets of a case."""
    torch.manual_seed(1)
    if case == "small":
        return torch.randn(32, 13), torch.randn(32, 1)
    shape = (128, 784) if case == "mlp" else (32, 3, 32, 32)
    return torch.randn(shape), torch.randint(0, 10, shape[:1])


def learner(case: str, method: str, num_data: int = NUM_DATA) -> Any:
    """A learner of the method on the net of the case."""
    options = CADENCE if method in IN_CYCLES else {}
    return br.methods.METHODS[method](
        network(case, method), _likelihood(case, method), num_data=num_data, **options
    )


def _likelihood(case: str, method: str) -> Any:
    if case == "small":
        return br.GaussianLikelihood(noise=0.5)
    return br.likelihoods.OneHotLikelihood() if method == "tagi" else br.CategoricalLikelihood()


def stepper(case: str, method: str) -> tuple[Step, int]:
    """A training step to call repeatedly, and how many make a round."""
    made, pair = learner(case, method), batch(case)
    state = made.init()

    def step() -> None:
        nonlocal state
        state, _ = made.step(state, pair, donate=True)

    step()  # a method that does not fit the net refuses here at the latest
    in_cycle = CADENCE["inverse_every"] if method in IN_CYCLES else 1
    return step, max(STEPS[case], in_cycle)


def torch_adam(case: str) -> tuple[Step, int]:
    """A step of torch.optim.Adam, the same in both trees: differences are noise."""
    model, (x, y) = network(case, TORCH), batch(case)
    optimizer = torch.optim.Adam(model.parameters())
    loss = nn.MSELoss() if case == "small" else nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

    return step, STEPS[case]


def many(method: str) -> tuple[Step, int]:
    """An epoch of twenty small nets, all trained together; one of them is a round."""
    torch.manual_seed(2)
    sets = [(torch.randn(ROWS, 13), torch.randn(ROWS, 1)) for _ in range(NETS)]

    def train() -> None:
        br.fit_many(
            lambda x, _: learner("small", method, len(x)),
            sets,
            epochs=1,
            batch_size=10,
            progress=False,
        )

    train()  # a method that cannot train together refuses here
    return train, 1


def contenders(plan: Mapping[str, Any]) -> tuple[dict[str, tuple[Step, int]], dict[str, str]]:
    """What is timed, by 'case method', and why some cannot be."""
    steps: dict[str, tuple[Step, int]] = {}
    missing: dict[str, str] = {}
    for case, methods in plan["cases"].items():
        for method in methods:
            try:
                made = _maker(case, method)
            except Exception as problem:  # one method must not stop the others
                missing[f"{case} {method}"] = f"{type(problem).__name__}: {problem}"
            else:
                steps[f"{case} {method}"] = made
    return steps, missing


def _maker(case: str, method: str) -> tuple[Step, int]:
    if method == TORCH:
        return torch_adam(case)
    return many(method) if case == MANY else stepper(case, method)


def timed(steps: Mapping[str, tuple[Step, int]], rounds: int) -> dict[str, float]:
    """Median milliseconds of a step over rounds, all in turn; a round before them warms up."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    # As in timeit: a pass of the collector over everything that the other steps keep alive takes
    # longer than many of the steps, and would count for whichever step it happens to fall into.
    gc.disable()
    for _ in range(rounds + 1):
        for name, (step, num) in steps.items():
            begun = time.perf_counter()
            for _ in range(num):
                step()
            times[name].append(1e3 * (time.perf_counter() - begun) / num)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def main() -> None:
    """Reads a plan from the first argument and prints what was timed."""
    plan = json.loads(sys.argv[1])
    torch.set_num_threads(plan["threads"])
    steps, missing = contenders(plan)
    source = str(Path(br.__file__).resolve().parents[1])
    found = {"source": source, "milliseconds": timed(steps, plan["rounds"]), "missing": missing}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
