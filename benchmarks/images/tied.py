"""The k-tied Normal beside mean-field: the tables of Swiatkowski et al. (2020)."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bayesrule import schedules
from bayesrule.app.provenance import machine, versions
from bayesrule.execution.replayed import Replayed
from bayesrule.expectations import Draws
from bayesrule.learner import Learner
from bayesrule.methods import k_tied, mean_field
from bayesrule.predicting.at_weights import outputs_at
from bayesrule.predicting.scales import SignalToNoise, compress, spectrum
from bayesrule.types import State
from benchmarks.images.tied_tasks import TASKS, Data, Task
from benchmarks.pictures.thumbnails import thumbnail
from benchmarks.precision import fast_math
from benchmarks.trials import each, enough, loaded, usable

DRAWS, MARKS = 100, (1000, 5000, 9000)
Figures = dict[str, float]


def he(model: nn.Module, seed: int = 0) -> nn.Module:
    """The module with weights drawn from N(0, 2 / fan_in) and biases of zero (He et al., 2015)."""
    generator = Generator().manual_seed(seed)
    for layer in model.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer.bias is not None:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
            nn.init.zeros_(layer.bias)
    return model


def learner(task: Task, rank: int, num_data: int, steps: int, device: str, seed: int) -> Learner:
    """Mean-field for rank 0, else k-tied; the KL's weight rises from zero to one."""
    options: dict[str, Any] = {
        "num_data": num_data,
        "prior_precision": task.prior_precision,
        "learning_rate": schedules.cosine(
            task.learning_rate, steps, warmup=round(task.warmup * steps)
        ),
        "scale_multiplier": task.scale_multiplier,
        "spread": task.spread,
        "kl_weight": schedules.linear(0.0, 1.0, max(1, round(task.annealing * steps))),
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
    marks: Sequence[int] = MARKS,
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
    """The median and the mean of the signal-to-noise ratios.

    The paper reports the mean. Units that are inactive for whole batches have gradients without
    noise, and a few of them dominate it; the median ignores them.
    """
    each = torch.cat([ratio.reshape(-1) for ratio in measure.ratios().values()])
    return {"median": float(each.nanmedian()), "mean": float(each.nanmean())}


def _negative_elbo(made: Learner, state: State, x: Tensor, y: Tensor) -> float:
    """−ELBO per datum with the data term from held-back data and the KL at full weight."""
    loss = scores(made, state, x, y, draws=5)["nll_of_draws"]
    return loss + float(made.divergence(state)) / made.num_data


@torch.no_grad()
def scores(
    made: Learner, state: State, x: Tensor, y: Tensor, draws: int = DRAWS, seed: int = 0
) -> Figures:
    """NLL and accuracy of the prediction averaged over weight draws.

    Also the mean NLL of single draws (the ELBO's data term) and its standard error over the test
    data, as the paper's ± are.
    """
    parts = []
    for rows in torch.arange(len(y), device=x.device).split(2000):
        outputs = torch.stack(list(outputs_at(made, state, x[rows], Draws(draws), seed=seed)))
        each = torch.stack(
            [made.likelihood.log_prob(f, y[rows], state.likelihood) for f in outputs]
        )
        means = torch.stack(
            [made.likelihood.moments(f, state.likelihood)[0] for f in outputs]
        ).mean(0)
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


def facts(
    name: str,
    *,
    device: str = "cpu",
    epochs: int | None = None,
    num: int | None = None,
    marks: Sequence[int] = MARKS,
) -> dict[str, Any]:
    """What all trials of a run share."""
    task = TASKS[name]
    return {
        "task": name,
        "epochs": epochs or task.epochs,
        "num": num,
        "batch_size": task.batch_size,
        "learning_rate": task.learning_rate,
        "warmup": task.warmup,
        "annealing": task.annealing,
        "scale_multiplier": task.scale_multiplier,
        "spread": task.spread,
        "prior_precision": task.prior_precision,
        "marks": list(marks),
        "draws": DRAWS,
        "device": device,
    }


def run(
    name: str,
    *,
    ranks: Sequence[int] = (0, 2, 3),
    seeds: Sequence[int] = (0, 1, 2),
    device: str = "cpu",
    epochs: int | None = None,
    num: int | None = None,
    marks: Sequence[int] = MARKS,
    jobs: int = 1,
    previous: dict[str, Any] | None = None,
    show: Callable[[str], None] = lambda line: None,
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Every rank (0 is mean-field) for every seed: scores, ratios, curves and truncations.

    Trials in `previous`, an earlier result, are not repeated; if none is missing, it is returned
    unchanged. `jobs` of them run at a time, each in its own process.
    """
    results = list(previous["results"]) if previous else []
    wanted = [(seed, rank) for seed in seeds for rank in ranks]
    done = {_trial_of(one) for one in results}
    missing = [trial for trial in wanted if trial not in done]
    if previous and not missing:
        return previous
    usable(device)
    task, common = TASKS[name], facts(name, device=device, epochs=epochs, num=num, marks=marks)
    loaded.cache_clear()
    num_data = len(loaded(task.data, device, num)[1])
    enough(num_data, task.batch_size)
    with fast_math(device) as precision:
        result = {**document(common, num_data, results), "precision": precision}

    def work(trial: tuple[int, int]) -> dict[str, Any]:
        seed, rank = trial
        with fast_math(device):
            return _one(task, rank, seed, loaded(task.data, device, num), epochs, marks)

    for count, found in enumerate(each(work, missing, jobs), len(wanted) - len(missing) + 1):
        show(f"[{count}/{len(wanted)}] {_line(found)}")
        results.append(found)
        results.sort(key=_trial_of)
        keep(result)
    return result


def _trial_of(one: dict[str, Any]) -> tuple[int, int]:
    """The seed and the rank of a result."""
    return one["seed"], one["rank"]


def document(
    common: dict[str, Any], num_data: int, results: list[dict[str, Any]]
) -> dict[str, Any]:
    """The result as json; `common` are its `facts`."""
    task = TASKS[common["task"]]
    return {
        **common,
        "title": task.title,
        "num_data": num_data,
        "published": {k: list(v) for k, v in task.published.items()},
        "results": results,
        "versions": versions(),
        "machine": machine(),
    }


def _line(one: dict[str, Any]) -> str:
    test, ratios = one["test"], [(step, each["median"]) for step, each in one["snr"].items()]
    measured = "".join(f", SNR {ratio:.1f} at step {step}" for step, ratio in ratios)
    return (
        f"{one['method']}, seed {one['seed']}: NLL {test['nll']:.4f}, {test['accuracy']:.2f} %"
        f"{measured}, {one['seconds']:.0f} s"
    )


def _one(
    task: Task, rank: int, seed: int, data: Data, epochs: int | None, marks: Sequence[int]
) -> dict[str, Any]:
    made, state, found = train(task, rank, data, epochs=epochs, seed=seed, marks=marks)
    _, y, x_test, y_test = data
    test = scores(made, state, x_test, y_test)
    kl = float(made.divergence(state)) / len(y)
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
        spectra = {k: v for k, v in spectrum(state.posterior).items() if k in task.tied}
        result["explained"] = {k: v.explained[:5].tolist() for k, v in spectra.items()}
        pictured = task.measured.rstrip("*")
        result["deviations"] = {"name": pictured, **thumbnail(spectra[pictured].std)}
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


def ratio_summary(result: dict[str, Any]) -> list[tuple[str, int, float, float, float]]:
    """Method, step, median and mean signal-to-noise ratio and −ELBO there, means over seeds."""
    rows: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    for one in result["results"]:
        bounds = {int(step): value for step, value in one["negative_elbo"].items()}
        for step, ratio in one["snr"].items():
            figures = ratio["median"], ratio["mean"], bounds[int(step)]
            rows.setdefault((one["method"], int(step)), []).append(figures)
    return [
        (method, step, *(statistics.mean(column) for column in zip(*figures, strict=True)))
        for (method, step), figures in rows.items()
    ]


def truncated_summary(result: dict[str, Any]) -> dict[str, Figures]:
    """Scores of mean-field as it is ("all") and cut to ranks after training, means over seeds."""
    whole = [one for one in result["results"] if "truncated" in one]
    found: dict[str, list[Figures]] = {"all": [one["test"] for one in whole]} if whole else {}
    for one in whole:
        for rank, figures in one["truncated"].items():
            found.setdefault(rank, []).append(figures)
    return {
        rank: {name: statistics.mean(row[name] for row in rows) for name in ("nll", "accuracy")}
        for rank, rows in found.items()
    }
