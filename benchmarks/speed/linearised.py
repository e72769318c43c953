"""The cost of linearised predictions with Kronecker factors, and their exactness.

128 inputs of the MLP 784-400-400-10 (478,410 weights): the mean and the covariance (n, 10, 10) of
the outputs, `J Λ⁻¹ Jᵀ`, from the factors, inputs and output gradients of each layer. The first
call also computes the roots of the factors, which are kept. The covariance of two inputs is
compared with rows of the Jacobian from `torch.func.jacrev` and solves with Λ, all in float64.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

import bayesrule as br
from bayesrule.app.provenance import machine, versions
from bayesrule.posteriors import Normal
from bayesrule.predicting.predict import linearised_outputs
from bayesrule.tensors import tree
from bayesrule.tensors.network import forked_randomness
from benchmarks.models import benchmark_mlp

NUM, INPUTS, CLASSES, BATCH = 512, 784, 10, 128
BAR = 60.0  # milliseconds
CHECKED = 2
Made = tuple[br.Learner, br.types.State]


def data() -> br.types.Batch:
    """Inputs (n, 784) and classes (n,)."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM, INPUTS, generator=generator)
    return x, torch.randint(CLASSES, (NUM,), generator=generator)


def batches() -> list[br.types.Batch]:
    """The data in parts."""
    x, y = data()
    return list(zip(x.split(BATCH), y.split(BATCH), strict=True))


def network() -> nn.Module:
    """The MLP, the same each time."""
    with forked_randomness(torch.device("cpu"), 0):
        return benchmark_mlp()


def laplace(structure: br.matrices.Structure) -> Made:
    """A Laplace approximation at the first weights, over all data."""
    learner = br.laplace(network(), br.CategoricalLikelihood(), num_data=NUM, structure=structure)
    return learner, learner.finish(learner.init(), batches())


def noisy(method: Callable[..., br.Learner]) -> Made:
    """A noisy method after one step for each part of the data."""
    learner = method(
        network(), br.CategoricalLikelihood(), num_data=NUM, stats_every=1, inverse_every=2
    )
    state = learner.init()
    for batch in batches():
        state, _ = learner.step(state, batch)
    return learner, state


BELIEFS: dict[str, Callable[[], Made]] = {
    "laplace, Kronecker()": lambda: laplace(br.Kronecker()),
    "laplace, Kronecker(exact=True)": lambda: laplace(br.Kronecker(exact=True)),
    "laplace, Kronecker(corrected=True)": lambda: laplace(br.Kronecker(corrected=True)),
    "noisy_kfac": lambda: noisy(br.noisy_kfac),
    "noisy_ekfac": lambda: noisy(br.noisy_ekfac),
}


def milliseconds(learner: br.Learner, state: br.types.State, x: Tensor) -> float:
    """One call."""
    begun = time.perf_counter()
    linearised_outputs(learner, state, x)
    return 1e3 * (time.perf_counter() - begun)


def error(learner: br.Learner, state: br.types.State, x: Tensor) -> float:
    """The largest error of the covariance relative to its largest entry."""
    _, found = linearised_outputs(learner, state, x)
    exact = tree.map_tensors(state.posterior, Tensor.double)
    assert isinstance(exact, Normal)

    def outputs(params: br.types.Params, one: Tensor) -> Tensor:
        return functional_call(learner.model, params, one.unsqueeze(0))[0]

    rows = vmap(jacrev(outputs), in_dims=(None, 0))(exact.mean, x.double())
    worst = 0.0
    for i, covariance in enumerate(found):
        each = [{k: v[i, c] for k, v in rows.items()} for c in range(CLASSES)]
        solved = [exact.precision.solve(row) for row in each]
        wanted = torch.stack([torch.stack([_dot(a, b) for b in solved]) for a in each])
        worst = max(worst, float((covariance - wanted).abs().max() / wanted.abs().max()))
    return worst


def _dot(a: br.types.Params, b: br.types.Params) -> Tensor:
    return torch.stack([(value * b[name]).sum() for name, value in a.items()]).sum()


def results(rounds: int) -> list[dict[str, Any]]:
    """All posteriors in turn, round after round; the first two rounds only warm up."""
    x = data()[0][:BATCH]
    made = {name: make() for name, make in BELIEFS.items()}
    # Drop the roots that training may have cached.
    fresh = {k: tree.map_tensors(state, torch.clone) for k, (_, state) in made.items()}
    first = {k: milliseconds(learner, fresh[k], x) for k, (learner, _) in made.items()}
    times: dict[str, list[float]] = {name: [] for name in made}
    for number in range(rounds + 2):
        for name, (learner, _) in made.items():
            took = milliseconds(learner, fresh[name], x)
            if number >= 2:
                times[name].append(took)
    return [
        {
            "belief": name,
            "milliseconds": statistics.median(times[name]),
            "fastest": min(times[name]),
            "first_call": first[name],
            "covariance_error": error(learner, fresh[name], x[:CHECKED]),
        }
        for name, (learner, _) in made.items()
    ]


def run(rounds: int) -> dict[str, Any]:
    """Times the predictions of all posteriors."""
    return {
        "benchmark": "linearised",
        "net": "MLP 784-400-400-10",
        "inputs": BATCH,
        "rounds": rounds,
        "bar_milliseconds": BAR,
        "results": results(rounds),
        "versions": versions(),
        "machine": machine(),
    }
