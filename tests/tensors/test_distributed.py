"""Several processes against one: the same global batch must give the same belief."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rank_work import (
    FITS,
    LOW_RANK,
    OTHER_BASES,
    SAME_AS_ALONE,
    Found,
    Ranks,
    X,
    everything,
    net,
)
from torch import Tensor

from bayesrule.matrices import LowRankMatrix
from bayesrule.tensors import distributed, tree
from bayesrule.training import checkpoint


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


@pytest.mark.parametrize("name", [*SAME_AS_ALONE, *OTHER_BASES, *LOW_RANK, "own draws"])
def test_all_ranks_hold_the_identical_belief(name: str, ranks: Ranks) -> None:
    for found in ranks.found[1:]:
        assert_identical(found[name], ranks.found[0][name])


@pytest.mark.parametrize("name", OTHER_BASES)
def test_eigenvectors_round_to_others_but_close_ones(name: str, ranks: Ranks, alone: Found) -> None:
    for found in ranks.found:
        for key, value in alone[name].items():
            torch.testing.assert_close(found[name][key], value, rtol=1e-6, atol=1e-6)


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
from bayesrule.tensors import distributed
from bayesrule.training import checkpoint

device = distributed.setup()
folder = Path(sys.argv[1])
torch.manual_seed(0)
model = nn.Linear(2, 1).double().to(device)
x = torch.linspace(-1, 1, 22, dtype=torch.float64).reshape(11, 2)
learner = bayesrule.vogn(
    model, bayesrule.GaussianLikelihood(), num_data=11, shared_draws=True, initial_curvature=2.0
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
