"""The k-tied Normal beside mean-field: the tables of Swiatkowski et al. (2020)."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bayesrule import schedules
from bayesrule.bench.images import split
from bayesrule.bench.models import review_lstm, tied_cnn, tied_mlp
from bayesrule.bench.precision import fast_math
from bayesrule.bench.reviews import reviews
from bayesrule.data import cifar10, mnist
from bayesrule.expectations import Draws
from bayesrule.learner import Learner
from bayesrule.likelihoods import BernoulliLikelihood, CategoricalLikelihood, Likelihood
from bayesrule.methods import k_tied, mean_field
from bayesrule.predict import outputs_at
from bayesrule.provenance import machine, versions
from bayesrule.replayed import Replayed
from bayesrule.signal import SignalToNoise
from bayesrule.spectra import compress, spectrum
from bayesrule.types import State

DRAWS = 100
Figures = dict[str, float]
Data = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    """A net of the paper; `tied` names the weights that are tied, `known` the point estimates.

    `published` has −ELBO, NLL, accuracy and thousands of parameters by method.
    """

    title: str
    data: Callable[[str, int | None], Data]
    model: Callable[[], nn.Module]
    likelihood: Likelihood
    tied: tuple[str, ...]
    measured: str
    epochs: int
    prior_precision: float
    published: dict[str, tuple[float, float, float, float]]
    known: tuple[str, ...] = ()
    batch_size: int = 1024
    learning_rate: float = 1e-4
    scale_multiplier: float = 10.0
    spread: float = 0.03


def _mnist(device: str, num: int | None) -> Data:
    found = mnist().floats()
    parts = found.x_train[:num], found.y_train[:num], found.x_test, found.y_test
    x, y, x_test, y_test = (part.to(device) for part in parts)
    return x, y, x_test, y_test


def _cifar(device: str, num: int | None) -> Data:
    x, y, x_test, y_test = split(cifar10(), device, 0, num)
    return x, y, x_test, y_test


def he(model: nn.Module, seed: int = 0) -> nn.Module:
    """The module with weights drawn from N(0, 2 / fan_in) and biases of zero (He et al., 2015)."""
    generator = Generator().manual_seed(seed)
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer.bias is not None:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
            nn.init.zeros_(layer.bias)
    return model


def _reviews(device: str, num: int | None) -> Data:
    x, y, x_test, y_test = reviews(device=device)
    return x[:num], y[:num], x_test[:num], y_test[:num]


TASKS = {
    "mnist-tied": Task(
        "MNIST, 784-400-400-10",
        _mnist,
        tied_mlp,
        CategoricalLikelihood(),
        ("1.weight", "3.weight", "5.weight"),
        "3.weight*",
        300,
        100.0,
        {
            "mean_field": (0.501, 0.133, 96.8, 957),
            "1-tied": (0.539, 0.155, 96.1, 482),
            "2-tied": (0.520, 0.129, 96.8, 484),
            "3-tied": (0.497, 0.120, 96.9, 486),
        },
    ),
    "cifar10-tied": Task(
        "CIFAR-10, 5×5×32, 5×5×64, 512",
        _cifar,
        lambda: tied_cnn(classes=10),
        CategoricalLikelihood(),
        ("7.weight", "9.weight"),
        "7.weight*",
        100,
        100.0,
        {},
        batch_size=512,
    ),
    "imdb-tied": Task(
        "IMDB, LSTM 128",
        _reviews,
        review_lstm,
        BernoulliLikelihood(),
        ("1.weight_ih_l0", "1.weight_hh_l0"),
        "1.weight_hh_l0*",
        15,
        100.0,
        {
            "mean_field": (0.538, 0.478, 79.5, 2823),
            "1-tied": (0.592, 0.512, 77.6, 2693),
            "2-tied": (0.560, 0.484, 78.2, 2694),
            "3-tied": (0.550, 0.491, 78.8, 2695),
        },
        known=("0.weight", "1.bias_ih_l0", "2.weight", "2.bias"),
        batch_size=128,
        learning_rate=1e-3,
    ),
}


def learner(task: Task, rank: int, num_data: int, steps: int, device: str, seed: int) -> Learner:
    """Mean-field for rank 0, else k-tied; the KL's weight rises from zero over the training."""
    options: dict[str, Any] = {
        "num_data": num_data,
        "prior_precision": task.prior_precision,
        "learning_rate": schedules.cosine(task.learning_rate, steps),
        "scale_multiplier": task.scale_multiplier,
        "spread": task.spread,
        "kl_weight": schedules.linear(0.0, 1.0, steps),
        "known": task.known,
        "keep_gradients": True,
    }
    model = he(task.model(), seed).to(device)
    if rank == 0:
        return mean_field(model, task.likelihood, **options)
    ranks = {**dict.fromkeys(task.tied, rank), "*": None}
    return k_tied(model, task.likelihood, rank=ranks, **options)


def train(
    task: Task,
    rank: int,
    data: Data,
    *,
    epochs: int | None = None,
    seed: int = 0,
    marks: Sequence[int] = (1000, 5000, 9000),
) -> tuple[Learner, State, dict[str, Any]]:
    """Trains one posterior; signal-to-noise ratios and −ELBO at the marked steps, and the curve."""
    x, y, x_test, y_test = data
    size, num = task.batch_size, epochs or task.epochs
    per_epoch = len(y) // size
    made = learner(task, rank, len(y), num * per_epoch, str(x.device), seed)
    state, generator = made.init(seed), Generator(x.device).manual_seed(seed)
    step, measure = Replayed(made).step, SignalToNoise(names=task.measured)
    found: dict[str, Any] = {"snr": {}, "negative_elbo": {}, "curve": []}
    begun = time.perf_counter()
    for _ in range(num):
        order = torch.randperm(len(y), generator=generator, device=x.device)
        for rows in order.split(size)[:per_epoch]:
            state, info = step(state, (x[rows], y[rows]), donate=True)
            near = next((mark for mark in marks if mark - 10 < state.step <= mark), None)
            if near is not None:
                measure(state)
                if state.step == near:
                    found["snr"][near] = ratios(measure)
                    found["negative_elbo"][near] = _negative_elbo(made, state, x_test, y_test)
        found["curve"].append([state.step, float(info.loss) / len(y), float(info.kl) / len(y)])
    found["seconds"] = time.perf_counter() - begun
    return made, state, found


def ratios(measure: SignalToNoise) -> Figures:
    """The middle and the mean of the signal-to-noise ratios.

    The mean is what the paper reports; units that are inactive for whole batches have gradients
    without noise, and some of them suffice to drown it. The median does not see them.
    """
    each = torch.cat([ratio.reshape(-1) for ratio in measure.ratios().values()])
    return {"median": float(each.nanmedian()), "mean": float(each.nanmean())}


def _negative_elbo(made: Learner, state: State, x: Tensor, y: Tensor) -> float:
    """−ELBO per datum with the data term from held-back data and the KL at full weight."""
    loss = scores(made, state, x, y, draws=5)["nll_of_draws"]
    return loss + float(state.posterior.kl(made.prior_precision)) / made.num_data


@torch.no_grad()
def scores(
    made: Learner, state: State, x: Tensor, y: Tensor, draws: int = DRAWS, seed: int = 0
) -> Figures:
    """NLL and accuracy of the averaged prediction over so many weight draws.

    Also the mean NLL of single draws (the ELBO's data term) and its standard error over the test
    data, as the paper's ± are.
    """
    parts = []
    for rows in torch.arange(len(y), device=x.device).split(2000):
        outputs = torch.stack(list(outputs_at(made, state, x[rows], Draws(draws), seed=seed)))
        each = torch.stack([made.likelihood.log_prob(f, y[rows], state.noise) for f in outputs])
        means = torch.stack([made.likelihood.moments(f, state.noise)[0] for f in outputs]).mean(0)
        parts.append((each.logsumexp(0) - math.log(draws), each.mean(0), _right(means, y[rows])))
    mixed, single, right = (torch.cat(column).double() for column in zip(*parts, strict=True))
    return {
        "nll": -float(mixed.mean()),
        "nll_error": float(mixed.std()) / len(y) ** 0.5,
        "nll_of_draws": -float(single.mean()),
        "accuracy": 100.0 * float(right.mean()),
        "accuracy_error": 100.0 * float(right.std()) / len(y) ** 0.5,
    }


def _right(means: Tensor, y: Tensor) -> Tensor:
    if y.is_floating_point():
        return (means.reshape(y.shape) > 0.5) == (y > 0.5)
    return means.argmax(-1) == y


def run(
    name: str,
    *,
    ranks: Sequence[int] = (0, 2, 3),
    seeds: Sequence[int] = (0, 1, 2),
    device: str = "cpu",
    epochs: int | None = None,
    num: int | None = None,
    marks: Sequence[int] = (1000, 5000, 9000),
    show: Callable[[str], None] = lambda line: None,
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Every rank (0 is mean-field) for every seed: scores, ratios, curves and truncations."""
    task = TASKS[name]
    data = task.data(device, num)
    results: list[dict[str, Any]] = []
    result = {
        "task": name,
        "title": task.title,
        "epochs": epochs or task.epochs,
        "batch_size": task.batch_size,
        "learning_rate": task.learning_rate,
        "scale_multiplier": task.scale_multiplier,
        "spread": task.spread,
        "prior_precision": task.prior_precision,
        "draws": DRAWS,
        "device": device,
        "published": {k: list(v) for k, v in task.published.items()},
        "results": results,
        "versions": versions(),
        "machine": machine(),
    }
    with fast_math(device) as precision:
        result["precision"] = precision
        for seed in seeds:
            for rank in ranks:
                results.append(_one(task, rank, seed, data, epochs, marks))
                test = results[-1]["test"]
                show(
                    f"{results[-1]['method']}, seed {seed}: NLL {test['nll']:.4f}, "
                    f"{test['accuracy']:.2f} %, SNR {_medians(results[-1])}"
                )
                keep(result)
    return result


def _medians(one: dict[str, Any]) -> str:
    return ", ".join(f"{found['median']:.1f} at {step}" for step, found in one["snr"].items())


def _one(
    task: Task, rank: int, seed: int, data: Data, epochs: int | None, marks: Sequence[int]
) -> dict[str, Any]:
    made, state, found = train(task, rank, data, epochs=epochs, seed=seed, marks=marks)
    _, y, x_test, y_test = data
    test = scores(made, state, x_test, y_test)
    kl = float(state.posterior.kl(made.prior_precision)) / len(y)
    result = {
        "method": f"{rank}-tied" if rank else "mean_field",
        "rank": rank,
        "seed": seed,
        "parameters": state.posterior.num_parameters,
        "test": {**test, "negative_elbo": test["nll_of_draws"] + kl},
        **found,
    }
    if rank == 0:
        result["truncated"] = truncated(made, state, x_test, y_test)
        result["explained"] = {
            name: [float(share) for share in one.explained[:5]]
            for name, one in spectrum(state.posterior).items()
            if name in task.tied
        }
    return result


def truncated(made: Learner, state: State, x: Tensor, y: Tensor) -> dict[str, Figures]:
    """Scores after the standard deviations were cut down to a low rank."""
    return {str(k): scores(made, compress(state, rank=k), x, y) for k in (1, 2, 3)}


def summary(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Means over seeds by method."""
    found: dict[str, dict[str, float]] = {}
    for method in dict.fromkeys(one["method"] for one in result["results"]):
        rows = [one for one in result["results"] if one["method"] == method]
        names = rows[0]["test"]
        means = {name: statistics.mean(row["test"][name] for row in rows) for name in names}
        found[method] = {**means, "parameters": rows[0]["parameters"]}
    return found
