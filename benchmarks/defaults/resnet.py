"""A user's own residual net on Fashion-MNIST: methods at their defaults beside a plain loop.

The net has batch norm and dropout and is not part of the library. All methods train for the same
number of epochs in batches of the same size, without augmentation. None has seen MNIST: a good
posterior is less sure there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

import bayesrule as br
from bayesrule.execution.replayed import replay_obstacle
from bayesrule.likelihoods import CategoricalLikelihood
from bayesrule.predicting.prediction import Prediction
from bayesrule.tensors.network import forked_randomness
from bayesrule.training.train import Run
from benchmarks.data.images import fashion_mnist, mnist
from benchmarks.defaults.rows import Row, Rows
from benchmarks.defaults.variants import VARIANTS
from benchmarks.precision import fast_math
from benchmarks.trials import loaded

PLAIN = "plain adam"
METHODS = (
    *(PLAIN, "map", "ivon", "noisy_kfac", "laplace", "laplace-kronecker"),
    *("variational_laplace", "tagi", "mean_field"),
)
SIZES = (2_000, 60_000)
_PREDICTED = 1_000  # images at a time
_APART = 1_000_003  # between the seeds of an ensemble's members
Predict = Callable[[Tensor], Prediction]


@dataclass(frozen=True)
class Plan:
    """What all rows of a result share; `test` is how many images are tested on.

    Methods of the library predict with `members` nets together, which differ in their first
    weights and the order of their images.
    """

    epochs: int = 8
    batch_size: int = 50
    test: int = 10_000
    device: str = "cpu"
    members: int = 1


class Block(nn.Module):
    """Two 3×3 convolutions with batch norm and dropout, and a skip connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.drop = nn.Dropout(0.1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.relu2 = nn.ReLU()
        self.way = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, H, W) to (n, C', H/stride, W/stride)."""
        inner = self.drop(self.relu1(self.norm1(self.conv1(x))))
        return self.relu2(self.norm2(self.conv2(inner)) + self.way(x))


class ResNet(nn.Module):
    """Three blocks of 16, 32 and 64 channels, about 80,000 weights, for images of any size."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.relu = nn.ReLU()
        self.blocks = nn.Sequential(Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, 1, H, W) to logits (n, classes)."""
        features = self.blocks(self.relu(self.norm(self.stem(x))))
        return self.head(self.drop(self.flatten(self.pool(features))))


@dataclass(frozen=True)
class Pictures:
    """Training, test and out-of-distribution images, all on the same scale."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    strange: Tensor


def pictures() -> Pictures:
    """Fashion-MNIST, and MNIST as out-of-distribution images."""
    own, other = fashion_mnist(), mnist()
    both = replace(own, x_test=torch.cat([own.x_test, other.x_test])).standardised()
    test, strange = both.x_test.split([len(own.x_test), len(other.x_test)])
    return Pictures(both.x_train, both.y_train, test, both.y_test, strange)


def comparison(methods: Sequence[str], sizes: Sequence[int], plan: Plan, *, seeds: int = 1) -> Rows:
    """A row for each number of images, method and seed."""
    items = [
        {"size": size, "method": method, "seed": seed}
        for seed in range(seeds)
        for size in sizes
        for method in methods
    ]
    return Rows("resnet", asdict(plan), items, partial(row, plan=plan))


def row(size: int, method: str, seed: int, plan: Plan) -> Row:
    """Trains one net on the first `size` images, and scores it."""
    images, device = loaded(pictures), plan.device
    x, y = images.x[:size].to(device), images.y[:size].to(device)
    with fast_math(device) as precision:
        begun = time.perf_counter()
        train = _plain if method == PLAIN else partial(_learned, method)
        predict = train(x, y, plan, seed)
        _wait(device)
        seconds = time.perf_counter() - begun
        found = scores(predict, images, plan)
        _wait(device)
        testing = time.perf_counter() - begun - seconds
    return {**found, "seconds": seconds, "test_seconds": testing, "precision": precision}


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _net(plan: Plan, seed: int) -> nn.Module:
    with forked_randomness(torch.device("cpu"), seed):
        return ResNet().to(plan.device)


def _plain(x: Tensor, y: Tensor, plan: Plan, seed: int) -> Predict:
    """The plain loop: cross-entropy and Adam at its defaults."""
    model = _net(plan, seed)
    optimiser = torch.optim.Adam(model.parameters())
    with forked_randomness(x.device, seed):
        for _ in range(plan.epochs):
            for rows in torch.randperm(len(y)).to(x.device).split(plan.batch_size):
                optimiser.zero_grad()
                functional.cross_entropy(model(x[rows]), y[rows]).backward()
                optimiser.step()
    model.eval()

    @torch.no_grad()
    def predict(images: Tensor) -> Prediction:
        logits = model(images)
        return Prediction.mixture(CategoricalLikelihood().distribution(logits, {})[None])

    return predict


def _learned(method: str, x: Tensor, y: Tensor, plan: Plan, seed: int) -> Predict:
    """`fit` at its defaults, with replayed steps where possible."""
    likelihood, runs = br.CategoricalLikelihood(), []
    for own in range(seed, seed + plan.members * _APART, _APART):
        learner = VARIANTS[method].learner(_net(plan, own), likelihood, len(y))
        fused = plan.device.startswith("cuda") and replay_obstacle(learner) is None
        train = partial(br.fit, epochs=plan.epochs, batch_size=plan.batch_size, progress=False)
        runs.append(train(learner, (x, y), seed=own, fused=fused))
    return Run.together(runs).predict


def scores(predict: Predict, images: Pictures, plan: Plan) -> dict[str, float]:
    """NLL, calibration error and accuracy on test images; AUROC of out-of-distribution detection.

    One AUROC is by the entropy of the probabilities and, if weights are uncertain, another by the
    mutual information between weights and class.
    """
    test = images.x_test[: plan.test], images.y_test[: plan.test].to(plan.device)
    known, strange = (_predicted(predict, x[: plan.test], plan) for x in (test[0], images.strange))
    probs = torch.cat([one.probs for one in known])
    labels = test[1].split(_PREDICTED)
    log_prob = [one.log_prob(y) for one, y in zip(known, labels, strict=True)]
    found = {
        "nll": -float(torch.cat(log_prob).mean()),
        "ece": float(br.metrics.ece(probs, test[1])),
        "accuracy": float(br.metrics.accuracy(probs, test[1])),
    }
    for name, score in (("entropy", "entropy"), ("information", "mutual_information")):
        inside, outside = (
            torch.cat([getattr(one, score) for one in part]) for part in (known, strange)
        )
        if float(outside.max()) > 0.0:
            found[f"auroc_{name}"] = float(br.metrics.auroc(inside, outside))
    return found


def _predicted(predict: Predict, x: Tensor, plan: Plan) -> list[Prediction]:
    return [predict(part.to(plan.device)) for part in x.split(_PREDICTED)]
