"""Damaged and killed runs: flipped bits are noticed, killed runs end as if nothing had happened.

A flip is *detected* if the reader of the file refuses it, *harmless* if the loaded run is the same
bit for bit, and *missed* if it differs. A run is killed with SIGKILL at random moments until it
ends, and its end is compared bit for bit with that of a run that was never killed.
"""

from __future__ import annotations

import math
import multiprocessing
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import bayesrule as br
from bayesrule.app.provenance import machine, versions
from bayesrule.training import Run, checkpoint
from bayesrule.training.checkpoint import CheckpointError

_X = torch.linspace(-2.0, 2.0, 40).unsqueeze(1)
_DATA = _X, _X.sin()
_EPOCHS = 12
# Load what a child would load: the command, the first gradient, the first checkpoint.
_PRELOAD = "benchmarks.__main__", "torch.fx.experimental.symbolic_shapes", "safetensors.torch"


def learner() -> br.Learner:
    """A net that draws (dropout) and keeps statistics (batch norm), with learned noise."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Linear(1, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Tanh(), nn.Linear(6, 1)
    return br.vogn(nn.Sequential(*layers), br.GaussianLikelihood(), num_data=40)


def train(out: Path, callback: Callable[..., None] | None = None) -> Run:
    """A run with a checkpoint after every epoch, and a best state."""
    return br.fit(
        learner(), _DATA, epochs=_EPOCHS, batch_size=10, validation=_DATA, patience=_EPOCHS,
        out=out, checkpoint_seconds=0.0, progress=False, callback=callback,
    )  # fmt: skip


def flips(num: int, seed: int = 0) -> dict[str, dict[str, int]]:
    """The outcomes of single flipped bits, by file; all places in all files are equally likely."""
    chance, found = random.Random(seed), {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        whole = train(folder)
        contents = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
        found = {name: Counter(detected=0, harmless=0, missed=0) for name in contents}
        sizes = [len(content) for content in contents.values()]
        for name in chance.choices(list(contents), sizes, k=num):
            found[name][_flipped(folder, name, contents, chance, whole)] += 1
    return {name: dict(counts) for name, counts in found.items()}


def _flipped(
    folder: Path, name: str, contents: dict[str, bytes], chance: random.Random, whole: Run
) -> str:
    """The outcome of one flipped bit of a file; the folder is restored afterwards."""
    damaged = bytearray(contents[name])
    damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    (folder / name).write_bytes(damaged)
    try:
        ends = [br.load_run(learner(), folder), train(folder)]
        same = all(checkpoint.same(end.state, whole.state) for end in ends)
        return "harmless" if same and all(e.history == whole.history for e in ends) else "missed"
    except CheckpointError:
        return "detected"
    finally:
        shutil.rmtree(folder)
        folder.mkdir()
        for other, content in contents.items():
            (folder / other).write_bytes(content)


def kills(num: int, seed: int = 0, progress: Callable[[str], None] = print) -> dict[str, int]:
    """How many runs killed at random moments end bit for bit like one that was not killed.

    The moments are uniform over the life of a run, from the start of its process.
    """
    chance = random.Random(seed)
    found = Counter(kills=0, runs=0, bit_equal=0, unequal=0, refused=0)
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(list(_PRELOAD))
    with tempfile.TemporaryDirectory() as place:
        whole, life = train(Path(place) / "whole"), _life(server, Path(place) / "timed")
        while found["kills"] < num:
            folder = Path(place) / f"run{found['runs']}"
            left = num - found["kills"]
            found["kills"] += _killed(server, folder, chance, life, left)
            found[_end(folder, whole)] += 1
            found["runs"] += 1
            shutil.rmtree(folder, ignore_errors=True)
            if found["runs"] % 20 == 0:
                progress(f"{found['kills']} kills")
    return dict(found)


def _slow_training(folder: Path) -> None:
    """Runs in a child process: training slow enough to be killed at any moment."""
    torch.set_num_threads(1)
    train(folder, lambda *_: time.sleep(0.01))


def _life(server: Any, folder: Path) -> float:
    """The seconds from the start of a process to the end of its training."""
    seconds = []
    # The first child waits for the process server to start.
    for number in range(3):
        begun = time.perf_counter()
        child = server.Process(target=_slow_training, args=(folder / str(number),))
        child.start()
        child.join()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def _killed(server: Any, folder: Path, chance: random.Random, life: float, most: int) -> int:
    """How often a training was killed before it ended; at most five times."""
    for count in range(min(most, 5)):
        child = server.Process(target=_slow_training, args=(folder,))
        child.start()
        child.join(chance.uniform(0.0, life))
        child.kill()
        child.join()
        if child.exitcode != -signal.SIGKILL:
            return count
    return min(most, 5)


def _end(folder: Path, whole: Run) -> str:
    """The end of a resumed run."""
    try:
        found = train(folder)
    except CheckpointError:
        return "refused"
    losses = [[figures["loss"] for figures in run.history] for run in (found, whole)]
    same = checkpoint.same(found.state, whole.state) and losses[0] == losses[1]
    return "bit_equal" if same else "unequal"


def run(
    num_flips: int, num_kills: int, seed: int = 0, progress: Callable[[str], None] = print
) -> dict[str, Any]:
    """Both tests, with the machine."""
    begun = time.perf_counter()
    by_file = flips(num_flips, seed)
    progress(f"{num_flips} flips")
    totals = {
        what: sum(one[what] for one in by_file.values()) for what in next(iter(by_file.values()))
    }
    return {
        "task": "folders",
        "seed": seed,
        "flips": {"number": num_flips, **totals, "by_file": by_file},
        "kills": kills(num_kills, seed, progress),
        "seconds": math.ceil(time.perf_counter() - begun),
        "versions": versions(),
        "machine": machine(),
    }
