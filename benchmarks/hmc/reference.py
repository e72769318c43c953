"""Predictive variances against those of NUTS: Table 3 of the noisy natural gradient paper."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesrule.app.provenance import machine, versions
from bayesrule.app.recipe import refuse_unknown
from bayesrule.expectations import Draws
from bayesrule.hmc import hmc
from bayesrule.likelihoods import GaussianLikelihood
from bayesrule.methods import find
from bayesrule.schedules import cosine
from bayesrule.tensors import seeds
from bayesrule.training.checkpoint import CheckpointError
from bayesrule.training.many import fit_many
from bayesrule.training.models import mlp
from benchmarks.data.uci import uci_arrays, uci_set

HIDDEN = (10,)
TRAIN, POOL, DRAWS = 20, 100, 5000

COLUMNS = ("BBB", "PBP", "NNG-MVG", "NNG-BlkTri")
PUBLISHED = {
    "boston": (0.733, 0.761, 0.891, 0.889),
    "concrete": (0.809, 0.817, 0.913, 0.922),
    "energy": (0.414, 0.471, 0.617, 0.646),
    "kin8nm": (0.681, 0.587, 0.731, 0.759),
    "naval": (0.316, 0.270, 0.596, 0.598),
    "power": (0.633, 0.509, 0.829, 0.853),
    "wine_red": (0.915, 0.883, 0.957, 0.964),
    "yacht": (0.617, 0.620, 0.717, 0.727),
}
"""Zhang et al. (2018), Table 3: Pearson correlations of predictive variances with HMC's."""


@dataclass(frozen=True)
class Plan:
    """What all trials have in common."""

    seed: int = 0
    chains: int = 4
    draws: int = 500
    warmup: int = 500

    def facts(self) -> dict[str, Any]:
        """The plan as json."""
        return {**asdict(self), "hidden": list(HIDDEN), "train": TRAIN, "pool": POOL}


def trial_data(name: str, trial: int, plan: Plan) -> tuple[Tensor, Tensor, Tensor]:
    """Twenty training rows and the inputs of a hundred others, standardised by the twenty.

    A column that does not vary among the twenty is only shifted.
    """
    x, y = (torch.from_numpy(part).double() for part in uci_arrays(name))
    order = torch.randperm(len(y), generator=seeds.generator("cpu", plan.seed, trial))
    first, rest = order[:TRAIN], order[TRAIN : TRAIN + POOL]
    centre, spread = x[first].mean(0), x[first].std(0)
    scaled = (x - centre) / torch.where(spread > 0, spread, 1.0)
    target = (y[first] - y[first].mean()) / y[first].std()
    return scaled[first], target.unsqueeze(1), scaled[rest]


def reference(name: str, trial: int, plan: Plan) -> dict[str, Any]:
    """The variances of NUTS, and how well its chains mixed."""
    x, y, pool = trial_data(name, trial, plan)
    found = hmc(
        mlp(x.shape[1], 1, HIDDEN, seed=trial),
        GaussianLikelihood(),
        (x, y),
        draws=plan.draws,
        warmup=plan.warmup,
        chains=plan.chains,
        seed=seeds.key(plan.seed, trial),
        progress=False,
    )
    return {
        "set": name,
        "trial": trial,
        "variance": found.predict(pool).epistemic.flatten().tolist(),
        "rhat": float(found.rhat["outputs"].max()),
        "ess": float(found.ess["outputs"].min()),
        "divergences": found.divergences,
        "seconds": found.seconds,
    }


def variances(
    method: str,
    name: str,
    trials: Sequence[int],
    plan: Plan,
    epochs: int,
    options: Mapping[str, Any],
) -> list[Tensor]:
    """The epistemic variances of a method by weight draws, (100,) for each trial on a set.

    All trials learn at once, and the learning rate falls as a cosine.
    """
    data = [trial_data(name, trial, plan) for trial in trials]
    make = find(method)
    refuse_unknown(make, options)
    falling = {k: cosine(v, epochs) for k, v in options.items() if k == "learning_rate"}
    learners = [
        make(
            mlp(x.shape[1], 1, HIDDEN, seed=trial).double(),
            GaussianLikelihood(),
            num_data=TRAIN,
            **{**options, **falling},
        )
        for trial, (x, _, _) in zip(trials, data, strict=True)
    ]
    runs = fit_many(
        learners,
        [(x, y) for x, y, _ in data],
        epochs=epochs,
        batch_size=TRAIN,
        seeds=list(trials),
        progress=False,
    )
    found = zip(runs, data, strict=True)
    return [run.predict(pool, Draws(DRAWS)).epistemic.flatten() for run, (_, _, pool) in found]


def correlation(a: Tensor, b: Tensor) -> float:
    """Pearson's correlation; NaN if one of them is constant."""
    centred = torch.stack([a - a.mean(), b - b.mean()])
    return float(torch.nn.functional.cosine_similarity(centred[0], centred[1], dim=0))


def references(
    sets: Sequence[str],
    num: int,
    plan: Plan,
    *,
    known: Sequence[dict[str, Any]] = (),
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """The variances of NUTS for every set and trial; `known` ones are not sampled again."""
    found = {(one["set"], one["trial"]): one for one in known}
    wanted = [(uci_set(name).name, trial) for trial in range(num) for name in sets]
    for done, (name, trial) in enumerate(wanted, 1):
        if (name, trial) in found:
            continue
        one = found[name, trial] = reference(name, trial, plan)
        progress(
            f"[{done}/{len(wanted)}] NUTS on {name}, trial {trial + 1}: R-hat {one['rhat']:.3f}, "
            f"{one['divergences']} divergences, {one['seconds']:.0f} s"
        )
        keep(document(plan, list(found.values())))
    return document(plan, list(found.values()))


def document(plan: Plan, found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The references as they are kept."""
    return {
        "benchmark": "hmc",
        "plan": plan.facts(),
        "references": list(found),
        "versions": versions(),
        "machine": machine(),
    }


def read(file: Path, plan: Plan) -> list[dict[str, Any]]:
    """The references in an earlier result; none if there is no file."""
    if not file.exists():
        return []
    try:
        found = json.loads(file.read_text())
        facts, known = found["plan"], list(found["references"])
    except (ValueError, KeyError, TypeError) as problem:
        raise CheckpointError(
            f"'{file}' holds no variances of NUTS, so it is left as it is. Choose another file."
        ) from problem
    if facts != plan.facts():
        raise CheckpointError(
            f"'{file}' was made with {facts}, not with {plan.facts()}. Choose another file."
        )
    return known
