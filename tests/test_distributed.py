"""Several processes against one: the same global batch must give the same belief."""

from __future__ import annotations

import io
import multiprocessing
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule
from bayesrule import (
    CategoricalLikelihood,
    Dense,
    Diagonal,
    GaussianLikelihood,
    Learner,
    LowRank,
    checkpoint,
    distributed,
    fit,
    tree,
)
from bayesrule.batches import TensorBatches
from bayesrule.matrices import LowRankMatrix
from bayesrule.models import mlp
from bayesrule.progress import Progress
from bayesrule.recipe import LINEAR
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
PAIR = TensorBatches(X, Y, 9)


def net(*extra: nn.Module) -> nn.Module:
    """A small net in float64, the same in each process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 3), *extra, nn.Tanh(), nn.Linear(3, 2)).double()


# --- what the processes do; one process alone does the same ---------------------------------------


def steps(learner: Learner, targets: Tensor = Y) -> State:
    """Four steps on batches of seven, which no number of ranks here divides, and the end."""
    state = learner.init(seed=3)
    for rows in torch.arange(28).split(7):
        mine = distributed.share(rows)
        state, _ = learner.step(state, (X[mine], targets[mine]))
    return learner.finish(state, TensorBatches(X, targets, 9).all())


def learner(name: str, **options: Any) -> Learner:
    """A named method; every rank looks at the loss at the same weights."""
    # Newton's method is for convex problems.
    module = mlp(1, 2, hidden=()).double() if name in LINEAR else net()
    likelihood = GaussianLikelihood(noise=0.5)
    return bayesrule.METHODS[name](module, likelihood, num_data=28, shared_draws=True, **options)


def learned_noise() -> Learner:
    """Two precisions of the noise learn beside the weights."""
    return bayesrule.vogn(net(), GaussianLikelihood(), num_data=28, shared_draws=True, draws=2)


def classes() -> Learner:
    """A likelihood without noise of its own."""
    return bayesrule.ivon(net(), CategoricalLikelihood(), num_data=28, shared_draws=True)


def low_rank(rank: int) -> Learner:
    """The belief of SLANG, whose parts are not sums over the examples."""
    return learner("laplace", structure=LowRank(rank), curvature=bayesrule.PerExample())


SAME_AS_ALONE: dict[str, Callable[[], State]] = {
    **{name: lambda name=name: steps(learner(name)) for name in bayesrule.METHODS},  # type: ignore[misc]
    "full laplace": lambda: steps(learner("laplace", structure=Dense())),
    "diagonal laplace": lambda: steps(learner("laplace", structure=Diagonal())),
    "learned noise": lambda: steps(learned_noise()),
    "classes": lambda: steps(classes(), CLASSES),
}
LOW_RANK: dict[str, Callable[[], State]] = {
    "all directions": lambda: steps(low_rank(14)),
    "few directions": lambda: steps(low_rank(3)),
}


def fitted(name: str, rows: int, out: Path | None = None, **options: Any) -> bayesrule.Run:
    """Training with a last batch of one example, which is fewer than there are ranks."""
    given: dict[str, Any] = {"epochs": 3, "batch_size": 4, "checkpoint_seconds": 0.0, **options}
    return fit(learner(name), (X[:rows], Y[:rows]), out=out, **given)


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
    for name, make in {**SAME_AS_ALONE, **LOW_RANK}.items():
        found[name] = dict(tree.leaves(make()))
    own = bayesrule.vogn(net(), GaussianLikelihood(noise=0.5), num_data=28)
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


@pytest.fixture(scope="module", params=[2, 3], ids=["two ranks", "three ranks"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """The processes, started once for all tests."""
    return Ranks(request.param, tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The same in this process."""
    return everything(tmp_path_factory.mktemp("alone"))


def assert_close(found: Found, expected: Found) -> None:
    """Equal to rounding in float64."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close({name: found[name]}, {name: value}, rtol=1e-10, atol=1e-10)


def assert_identical(first: Found, second: Found) -> None:
    """Equal bit for bit."""
    assert first.keys() == second.keys()
    for name, value in first.items():
        other = second[name]
        assert torch.equal(value, other) if isinstance(value, Tensor) else value == other, name


# --- the same as one process ----------------------------------------------------------------------


@pytest.mark.parametrize("name", SAME_AS_ALONE)
def test_ranks_find_what_one_process_finds(name: str, ranks: Ranks, alone: Found) -> None:
    for found in ranks.found:
        assert_close(found[name], alone[name])


@pytest.mark.parametrize("name", [*SAME_AS_ALONE, *LOW_RANK, "own draws"])
def test_all_ranks_hold_the_identical_belief(name: str, ranks: Ranks) -> None:
    for found in ranks.found[1:]:
        assert_identical(found[name], ranks.found[0][name])


def precision(found: Found) -> LowRankMatrix:
    """The precision of a low-rank belief."""
    shapes = {k: tuple(v.shape) for k, v in found.items() if k.startswith("posterior/mean/")}
    return LowRankMatrix(found["posterior/precision/d"], found["posterior/precision/u"], shapes)


def test_low_rank_curvature_is_summed_as_a_matrix(ranks: Ranks, alone: Found) -> None:
    for found in ranks.found:
        all_of, few = precision(found["all directions"]), precision(found["few directions"])
        expected = precision(alone["all directions"])
        torch.testing.assert_close(_dense(all_of), _dense(expected), rtol=1e-9, atol=1e-9)
        # What a small rank cannot hold goes to the diagonal, so the diagonal is always exact.
        exact = _dense(expected).diagonal()
        torch.testing.assert_close(_dense(few).diagonal(), exact, rtol=1e-9, atol=1e-9)
        assert few.u.shape == (14, 3)


def _dense(matrix: LowRankMatrix) -> Tensor:
    return torch.diag(matrix.d) + matrix.u @ matrix.u.mT


def test_by_default_each_rank_has_draws_of_its_own(ranks: Ranks, alone: Found) -> None:
    name = "posterior/mean/0.weight"
    shared = alone["vogn"][name]
    assert torch.equal(alone["own draws"][name], shared)
    assert not torch.allclose(ranks.found[0]["own draws"][name], shared, rtol=1e-4)


# --- fit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FITS)
def test_fit_ends_as_in_one_process(name: str, ranks: Ranks, alone: Found) -> None:
    for found in ranks.found:
        assert_close(found[f"fit {name}"], alone[f"fit {name}"])
        assert_identical(found[f"fit {name}"], ranks.found[0][f"fit {name}"])


def test_early_stopping_stopped_early(alone: Found) -> None:
    assert len(alone["fit early stopping"]["losses"]) == 2
    assert alone["fit early stopping"]["best"] == 1


@pytest.mark.parametrize("name", FITS)
def test_only_the_first_rank_writes(name: str, ranks: Ranks) -> None:
    written = {path.name for path in (ranks.folder / f"{name}-0").iterdir()}
    assert written >= {"checkpoint.safetensors", "final.safetensors"}
    for rank in range(1, ranks.world):
        assert not (ranks.folder / f"{name}-{rank}").exists()


def test_ranks_resume_together(ranks: Ranks) -> None:
    for found in ranks.found:
        assert found["fit resumed"].pop("epochs", 3) == 3
        whole = {k: v for k, v in found["fit draws"].items() if k not in ("losses", "best")}
        assert_identical(found["fit resumed"], whole)


def test_only_the_first_rank_has_a_progress_bar(ranks: Ranks) -> None:
    assert "a bar" in ranks.found[0]["shown"]
    assert all(found["shown"] == "" for found in ranks.found[1:])


# --- buffers --------------------------------------------------------------------------------------


def test_batch_statistics_are_averaged_over_the_ranks(ranks: Ranks) -> None:
    _, after, _ = ranks.found[0]["buffers"]
    inputs = X[: 4 * ranks.world].float()
    hidden = net()[0].float()(inputs).detach()  # type: ignore[index]
    shares = [hidden[rank :: ranks.world] for rank in range(ranks.world)]
    # Of equal shares the mean of means is the mean of the global batch.
    torch.testing.assert_close(after["1.running_mean"], 0.1 * hidden.mean(0))
    variance = torch.stack([share.var(0) for share in shares]).mean(0)
    torch.testing.assert_close(after["1.running_var"], 0.9 + 0.1 * variance)


def test_all_other_buffers_are_kept_and_counters_count_steps(ranks: Ranks) -> None:
    before, _, after = ranks.found[0]["buffers"]
    for found in ranks.found[1:]:
        assert_identical(found["buffers"][-1], after)
    for name in ("mask", "phase", "3.bias"):
        assert after[name].dtype == before[name].dtype
        assert torch.equal(after[name], before[name]), name
    assert after["1.num_batches_tracked"] == 2


def test_means_over_ranks_by_type(ranks: Ranks) -> None:
    first = ranks.found[0]["means"]["before"]
    for found in ranks.found:
        after = found["means"]["after"]
        assert {k: v.dtype for k, v in after.items()} == {k: v.dtype for k, v in first.items()}
        middle = (ranks.world - 1) / 2
        assert torch.equal(after["float"], torch.tensor([1.0, 4.0]) * middle)
        # Equal numbers stay what they are to the last bit; counters and masks are the first rank's.
        for name in ("half", "equal", "count", "byte", "mask", "phase", "none"):
            assert torch.equal(after[name], first[name]), name


# --- torchrun -------------------------------------------------------------------------------------

SCRIPT = """
import sys
from pathlib import Path
import torch
from torch import nn
import bayesrule
from bayesrule import checkpoint, distributed

device = distributed.setup()
folder = Path(sys.argv[1])
torch.manual_seed(0)
model = nn.Linear(2, 1).double().to(device)
x = torch.linspace(-1, 1, 22, dtype=torch.float64).reshape(11, 2)
learner = bayesrule.vogn(
    model, bayesrule.GaussianLikelihood(), num_data=11, shared_draws=True
)
run = bayesrule.fit(learner, (x, x.sum(1)), epochs=2, batch_size=4, out=folder / "run")
name = f"{distributed.rank()}-of-{distributed.world_size()}.safetensors"
checkpoint.save(folder / name, run.state)
distributed.barrier()
"""


def test_a_script_runs_alone_and_under_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    one, two = tmp_path / "one", tmp_path / "two"
    monkeypatch.setattr(sys, "argv", [str(script), str(one)])
    space = runpy.run_path(str(script))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(script), str(two)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    template = space["learner"].init()
    alone, _ = checkpoint.load(one / "0-of-1.safetensors", template)
    first, _ = checkpoint.load(two / "0-of-2.safetensors", template)
    second, _ = checkpoint.load(two / "1-of-2.safetensors", template)
    assert checkpoint.same(first, second)
    assert_close(dict(tree.leaves(first)), dict(tree.leaves(alone)))


def test_without_a_group_there_is_one_process() -> None:
    assert (distributed.rank(), distributed.world_size()) == (0, 1)
    assert distributed.is_main()
    assert not distributed.is_active()
    distributed.barrier()
    local = {"a": torch.ones(2), "n": torch.tensor(3)}
    assert distributed.sum_over_ranks(local) is local
    assert distributed.mean_over_ranks(local) is local
    assert torch.equal(distributed.share(torch.arange(4)), torch.arange(4))
