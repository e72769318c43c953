"""What several processes do together, and one does alone, for `test_distributed.py`."""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bayesrule
from bayesrule import (
    GGN,
    CategoricalLikelihood,
    Dense,
    Diagonal,
    GaussianLikelihood,
    Learner,
    LowRank,
    fit,
)
from bayesrule.methods import Need, option_names, record
from bayesrule.tensors import distributed, tree
from bayesrule.training.batches import TensorBatches
from bayesrule.training.models import mlp
from bayesrule.training.progress import Progress
from bayesrule.types import State

Found = dict[str, Any]
"""Tensors and numbers by name."""

SERVER = multiprocessing.get_context("forkserver")
# The last two are what the first gradient and the first checkpoint would load.
PRELOAD = ["pytest", "bayesrule", "torch.fx.experimental.symbolic_shapes", "safetensors.torch"]
SERVER.set_forkserver_preload(PRELOAD)

X = torch.linspace(-2.0, 2.0, 28, dtype=torch.float64).unsqueeze(1)
Y = torch.cat([X.sin(), X.cos()], 1)
CLASSES = torch.arange(28) % 2


def net(*extra: nn.Module) -> nn.Module:
    """A small net in float64, the same in each process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 3), *extra, nn.Tanh(), nn.Linear(3, 2)).double()


def steps(learner: Learner, targets: Tensor = Y) -> State:
    """Four steps on batches of seven, which no number of ranks here divides, and the end."""
    state = learner.init(seed=3)
    for rows in torch.arange(28).split(7):
        mine = distributed.share(rows)
        state, _ = learner.step(state, (X[mine], targets[mine]))
    return learner.finish(state, TensorBatches(X, targets, 9).all())


def learner(name: str, num_data: int = 28, **options: Any) -> Learner:
    """A named method; every rank looks at the loss at the same weights."""
    # Newton's method is for convex problems.
    linear = Need.LINEAR_MODEL in record(name).needs
    module = mlp(1, 2, hidden=()).double() if linear else net()
    likelihood = GaussianLikelihood(noise=0.5)
    # Targets drawn from the model would be other ones on each rank, also those of the first look.
    if "initial_curvature" in option_names(bayesrule.methods.METHODS[name]):
        options = {"initial_curvature": 1.0, **options}
    if name == "variational_laplace":
        options["exact"] = True
    if name in ("noisy_kfac", "noisy_tridiagonal", "noisy_full"):
        options = {"curvature": GGN(), "inverse_every": 1, **options}
    return bayesrule.methods.METHODS[name](
        module, likelihood, num_data=num_data, shared_draws=True, **options
    )


def learned_noise() -> Learner:
    """Two precisions of the noise learn beside the weights."""
    given: dict[str, Any] = {"num_data": 28, "initial_curvature": 2.0}
    return bayesrule.vogn(net(), GaussianLikelihood(), shared_draws=True, draws=2, **given)


def classes() -> Learner:
    """A likelihood without noise of its own."""
    given: dict[str, Any] = {"num_data": 28, "initial_curvature": 2.0}
    return bayesrule.ivon(net(), CategoricalLikelihood(), shared_draws=True, **given)


def low_rank(rank: int) -> Learner:
    """The belief of SLANG, whose parts are not sums over the examples."""
    given: dict[str, Any] = {"curvature": bayesrule.PerExample(), "prior_precision": 1.0}
    return learner("laplace", structure=LowRank(rank), **given)


# Corrected factors have their own bases on every rank, which cannot be summed.
TOGETHER = [name for name in bayesrule.methods.METHODS if name != "noisy_ekfac"]
SAME_AS_ALONE: dict[str, Callable[[], State]] = {
    **{name: lambda name=name: steps(learner(name)) for name in TOGETHER},  # type: ignore[misc]
    "full laplace": lambda: steps(learner("laplace", structure=Dense())),
    "diagonal laplace": lambda: steps(learner("laplace", structure=Diagonal())),
    "learned noise": lambda: steps(learned_noise()),
    "classes": lambda: steps(classes(), CLASSES),
}
OTHER_BASES: dict[str, Callable[[], State]] = {
    "other bases": lambda: steps(learner("noisy_kfac", inverse_every=2)),
}
LOW_RANK: dict[str, Callable[[], State]] = {
    "all directions": lambda: steps(low_rank(14)),
    "few directions": lambda: steps(low_rank(3)),
}


def fitted(name: str, rows: int, out: Path | None = None, **options: Any) -> bayesrule.training.Run:
    """Training with a last batch of one example, which is fewer than there are ranks."""
    given: dict[str, Any] = {"epochs": 3, "batch_size": 4, "checkpoint_seconds": 0.0, **options}
    # A rate that falls would fall sooner in a run of fewer epochs, which is gone on with.
    steady = {"learning_rate": 0.2} if name == "vogn" else {}
    return fit(learner(name, rows, **steady), (X[:rows], Y[:rows]), out=out, **given)


FITS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "draws": ("vogn", 9, {}),
    # The first outputs as validation targets: every epoch leads further away from them.
    "early stopping": ("map", 9, {"validation": (X, net()(X).detach()), "patience": 1}),
    "laplace": ("laplace", 9, {}),
    "one example": ("laplace", 1, {}),
}


def buffers() -> list[Found]:
    """Batch norm and a frozen weight: before and after each of two steps, with shares of four."""
    module = net(nn.BatchNorm1d(3)).float()
    module.get_parameter("3.bias").requires_grad_(False)
    module.register_buffer("mask", torch.tensor([True, False, True]))
    module.register_buffer("phase", torch.tensor([1.0 + 2.0j]))
    one = bayesrule.map(module, GaussianLikelihood(noise=0.5), num_data=28)
    states = [one.init()]
    rows = distributed.share(torch.arange(4 * distributed.world_size()))
    for _ in range(2):
        states.append(one.step(states[-1], (X[rows].float(), Y[rows].float()))[0])
    return [state.buffers for state in states]


def means() -> Found:
    """What becomes of tensors of all types."""
    rank = distributed.rank()
    local = {
        "float": torch.tensor([1.0, 4.0]) * rank,
        "half": torch.tensor(0.1, dtype=torch.float16),
        "equal": torch.tensor([0.1, 1 / 3, 1e-30, 3e38]),
        "count": torch.tensor(5 + rank),
        "byte": torch.tensor([200], dtype=torch.uint8),
        "mask": torch.tensor([True, False]),
        "phase": torch.tensor([1.0 + 1.0j]) * (rank + 1),
        "none": torch.zeros(0),
    }
    return {"before": local, "after": distributed.mean_over_ranks({"x": local})["x"]}


def shown(rank_has_a_screen: bool = True) -> str:
    """What the progress bar prints on this rank."""
    before, sys.stderr = sys.stderr, io.StringIO()
    try:
        with Progress(2, 0, "a bar", rank_has_a_screen) as bar:
            bar.advance()
        return sys.stderr.getvalue()
    finally:
        sys.stderr = before


def everything(folder: Path) -> Found:
    """All that the tests look at, by name."""
    found: Found = {}
    for name, make in {**SAME_AS_ALONE, **OTHER_BASES, **LOW_RANK}.items():
        found[name] = dict(tree.leaves(make()))
    given: dict[str, Any] = {"num_data": 28, "initial_curvature": 1.0}
    own = bayesrule.vogn(net(), GaussianLikelihood(noise=0.5), **given)
    found["own draws"] = dict(tree.leaves(steps(own)))
    for name, (method, rows, options) in FITS.items():
        run = fitted(method, rows, folder / f"{name}-{distributed.rank()}", **options)
        found[f"fit {name}"] = dict(tree.leaves(run.state)) | {
            "losses": [figures["loss"] for figures in run.history],
            "best": run.best_epoch,
        }
    # All ranks in one folder: interrupted after two epochs, then resumed.
    fitted("vogn", 9, folder / "together", epochs=2)
    distributed.barrier()
    run = fitted("vogn", 9, folder / "together")
    found["fit resumed"] = dict(tree.leaves(run.state)) | {"epochs": len(run.history)}
    found["buffers"], found["means"], found["shown"] = buffers(), means(), shown()
    return found


def work(rank: int, world: int, folder: Path) -> None:
    """One of several processes."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    try:
        torch.save(everything(folder), folder / f"rank-{rank}.pt")
    except BaseException:
        (folder / f"rank-{rank}.error").write_text(traceback.format_exc())
        # Without this the others would wait for the next sum until their time is up.
        os._exit(1)
    torch.distributed.destroy_process_group()


class Ranks:
    """What each of several processes found, and where they wrote."""

    def __init__(self, world: int, folder: Path) -> None:
        self.world, self.folder = world, folder
        children = [SERVER.Process(target=work, args=(r, world, folder)) for r in range(world)]
        for child in children:
            child.start()
        for child in children:
            child.join(90.0)
            child.kill()
        problems = [path.read_text() for path in sorted(folder.glob("*.error"))]
        assert not problems, "\n".join(problems)
        self.found: list[Found] = [torch.load(folder / f"rank-{r}.pt") for r in range(world)]
