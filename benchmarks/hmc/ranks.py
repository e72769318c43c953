"""Is the truth ranked evenly among the draws of NUTS? Nets with weights from the prior make data.

Draws from the exact posterior and the true weights are then exchangeable, so that the rank of the
true function's value among those of the draws is uniform (Talts et al., 2018).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

import bayesrule as br
from benchmarks.defaults.coverage import figures, net, simulated
from benchmarks.defaults.rows import Row, Rows

PARTS = ("inside", "outside")
_LEVEL = 0.9


@dataclass(frozen=True)
class Plan:
    """What all rows share: how many data sets, their noise and the seed of the first."""

    sets: int = 50
    noise: float = 0.2
    seed: int = 0


def ranks(plan: Plan) -> Rows:
    """A row for each data set, and a summary of all."""
    items = [{"set": number} for number in range(plan.sets)]
    return Rows("ranks", asdict(plan), items, partial(row, plan=plan), summary)


def row(set: int, plan: Plan) -> Row:
    """The rank, from 0 to 1, of the truth at one point of each part, and shares in intervals.

    Only one point, because those of the same function depend on each other.
    """
    torch.set_num_threads(1)
    one, begun = simulated(plan.seed + set, plan.noise), time.perf_counter()
    x, y = (part.double() for part in one.data)
    likelihood = br.GaussianLikelihood(noise=plan.noise)
    samples = br.hmc(net().double(), likelihood, (x, y), seed=plan.seed + set, progress=False)
    found: Row = {"divergences": samples.divergences}
    for part, (at, targets, truth) in one.parts.items():
        drawn = samples.predict(at[:1].double()).conditional_means
        shares = figures(samples.predict(at.double()), targets, truth)
        rank = float((drawn < truth[:1]).double().mean())
        found[part] = {"rank": rank, "f90": shares["f90"], "90": shares["90"]}
    return {**found, "seconds": time.perf_counter() - begun}


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """By part: whether ranks are even, and mean shares with a standard error over sets."""
    good = [one for one in rows if "failed" not in one]
    if not good:
        return {"summary": {}}
    parts = {part: _of_part([one[part] for one in good]) for part in PARTS}
    divergences = sum(one["divergences"] for one in good)
    return {"summary": {"sets": len(good), "divergences": divergences, **parts}}


def _of_part(rows: Sequence[Row]) -> dict[str, float]:
    shares = torch.tensor([one["f90"] for one in rows]).double()
    error = float(shares.std()) / math.sqrt(len(rows)) if len(rows) > 1 else math.nan
    return {
        "p_value": evenness([one["rank"] for one in rows]),
        "f90": float(shares.mean()),
        "f90_error": error,
        "90": sum(one["90"] for one in rows) / len(rows),
    }


def good(found: dict[str, Any]) -> bool:
    """Whether ranks may be even in both parts, and no set failed."""
    means = found["summary"]
    complete = means.get("sets") == found["plan"]["sets"]
    return complete and all(means[part]["p_value"] > 0.01 for part in PARTS)


def evenness(ranks: Sequence[float]) -> float:
    """The p-value of ranks in [0, 1] if they are uniform, by Kolmogorov and Smirnov.

    >>> evenness([(i + 0.5) / 50 for i in range(50)]) > 0.99, evenness([0.9] * 50) < 1e-6
    (True, True)
    """
    ordered, num = torch.tensor(sorted(ranks)).double(), len(ranks)
    steps = torch.arange(num + 1) / num
    farthest = float(torch.maximum(steps[1:] - ordered, ordered - steps[:-1]).max())
    # Stephens (1970): the limiting distribution, corrected for few ranks.
    scaled = (math.sqrt(num) + 0.12 + 0.11 / math.sqrt(num)) * farthest
    terms = [(-1) ** (k - 1) * math.exp(-2.0 * (k * scaled) ** 2) for k in range(1, 101)]
    return min(1.0, 2.0 * sum(terms)) if scaled > 0.2 else 1.0
