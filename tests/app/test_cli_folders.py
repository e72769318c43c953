"""What a call leaves on the disk: nothing of an earlier run is lost, and a killed run goes on."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from calling import FAST, call, contents, frame, only_line, table

import bayesrule

pandas = pytest.importorskip("pandas")

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(Path(bayesrule.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
}


# Folders and files


def test_a_folder_with_another_run_is_refused_and_kept(tmp_path: Path) -> None:
    run, words = tmp_path / "run", ["fit", table(tmp_path), "--target", "price", *FAST]
    assert call(*words, "--out", run).code == 0
    before = contents(run)
    for more, expected in (
        (["--method", "ivon"], "a run with method vogn, this one has method ivon"),
        (["--epochs", "2"], "epochs 1, this one has epochs 2"),
        (["--seed", "1"], "seed 0, this one has seed 1"),
        (["--features", "x"], "other data, or on another target or other columns"),
    ):
        line = only_line(call(*words, "--out", run, *more))
        assert expected in line
        assert "--start-over" in line
        assert contents(run) == before
    changed = table(tmp_path, "u.csv", price={3: 0.5})
    assert "other data" in only_line(call("fit", changed, *words[2:], "--out", run))
    assert contents(run) == before
    assert call(*words, "--out", run, "--method", "ivon", "--start-over").code == 0
    assert json.loads((run / "model.json").read_text())["recipe"]["method"] == "ivon"
    assert call("predict", run, table(tmp_path)).code == 0


def test_the_same_call_again_changes_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("fit", table(tmp_path), "--target", "price", "--out", run, *FAST)
    call(*words)
    first = call("predict", run, table(tmp_path)).out
    said = call(*words)
    assert said.code == 0
    assert "holds 1 of them already" in said.out
    assert call("predict", run, table(tmp_path)).out == first


def test_a_file_where_the_folder_should_be(tmp_path: Path) -> None:
    file = table(tmp_path)
    before = file.read_bytes()
    for command in ("fit", "compare"):
        line = only_line(call(command, file, "--target", "price", "--out", file))
        assert "is a file; --out takes a folder" in line
        line = only_line(call(command, file, "--target", "price", "--out", file / "run"))
        assert "Cannot write into the folder" in line
    assert file.read_bytes() == before


def test_a_read_only_folder_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(**_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("tempfile.TemporaryFile", deny)
    for command in ("fit", "compare"):
        said = call(command, table(tmp_path), "--target", "price", "--out", tmp_path / "run")
        assert "Permission denied" in only_line(said)
        assert said.out == ""


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    run, words = tmp_path / "run", ["fit", table(tmp_path), "--target", "price", *FAST]
    call(*words, "--out", run)
    before = contents(run)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        for more in ([], ["--start-over", "--method", "ivon"]):
            said = call(*words, "--out", run, *more)
            assert "No space left on device" in only_line(said)
            assert contents(run) == before
        said = call("predict", run, table(tmp_path), "--out", tmp_path / "p.csv")
        assert "No space left on device" in said.err
        assert said.code == 2
    assert not (tmp_path / "p.csv").exists()


# In processes of their own


def start(*words: str | Path, prelude: str = "") -> subprocess.Popen[str]:
    code = (
        f"{prelude}\nimport sys\nfrom bayesrule.app.cli import main\nsys.exit(main(sys.argv[1:]))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


# A checkpoint after every epoch, so that a test need not wait for the next one, and time after it,
# so that the run is still there when the test comes to it.
OFTEN = """
import time
import bayesrule.training.train as t
t.fit.__kwdefaults__['checkpoint_seconds'] = 0.0
write = t.Folder.write
t.Folder.write = lambda *given, **options: (write(*given, **options), time.sleep(0.2))[0]
"""


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not file.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_run_goes_on_bit_for_bit(how: signal.Signals, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    words = ("fit", table(tmp_path), "--target", "price", "--epochs", "100", "--hidden", "3")
    process = start(*words, "--out", tmp_path / "killed", prelude=OFTEN)
    wait_for(tmp_path / "killed" / "checkpoint.safetensors", process)
    process.send_signal(how)
    _, err = process.communicate(timeout=60)
    if how is signal.SIGINT:
        assert process.returncode == 130
        assert err.startswith("bayesrule: Interrupted. ")
        assert len(err.splitlines()) == 1
    else:
        assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "final.safetensors").exists()
    line = only_line(call("predict", tmp_path / "killed", table(tmp_path)))
    assert "holds no finished run" in line
    said = call(*words, "--out", tmp_path / "killed")
    assert "training continues there" in said.out
    assert call(*words, "--out", tmp_path / "whole").code == 0
    ends = [load_file(tmp_path / name / "final.safetensors") for name in ("killed", "whole")]
    assert ends[0].keys() == ends[1].keys()
    for name, tensor in ends[0].items():
        assert torch.equal(tensor, ends[1][name]), name


def test_a_second_run_in_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    run, words = tmp_path / "run", ("fit", table(tmp_path), "--target", "price", "--hidden", "3")
    process = start(*words, "--epochs", "100", "--out", run, prelude=OFTEN)
    wait_for(run / "checkpoint.safetensors", process)
    model = (run / "model.json").read_bytes()
    for more in ([], ["--start-over"], ["--method", "ivon", "--start-over"]):
        line = only_line(call(*words, "--epochs", "3", "--out", run, *more))
        assert f"in use: process {process.pid} on" in line
    process.kill()
    process.communicate()
    assert (run / "model.json").read_bytes() == model
    assert call(*words, "--epochs", "3", "--out", run, "--start-over").code == 0


def test_a_reader_that_leaves_early_is_no_fault(tmp_path: Path) -> None:
    run = tmp_path / "run"
    call("fit", table(tmp_path), "--target", "price", "--out", run, *FAST)
    # More than a pipe holds, so that writing meets the closed end.
    new = tmp_path / "new.csv"
    pandas.concat([frame().drop(columns=["price", "kind"])] * 200).to_csv(new, index=False)
    process = start("predict", run, new)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("mean,std")
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


def test_help_loads_nothing_heavy_and_plain_terminals_do() -> None:
    code = (
        "import sys\nfrom bayesrule.app.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'pandas', 'sklearn', 'joblib', 'pyarrow', 'dask'} & set(sys.modules)\n"
        "print('heavy:', sorted(heavy)); main(['methods'])"
    )
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "heavy: []" in done.stdout
    assert "bayesrule fit house.csv" in done.stdout
    assert time.perf_counter() - begun < 30  # torch's own import, on a busy machine


def test_figures_of_each_epoch_go_to_a_csv_that_grows_with_the_run(tmp_path: Path) -> None:
    data, log = table(tmp_path), tmp_path / "metrics.csv"
    words = ("fit", data, "--target", "price", "--out", tmp_path / "run", "--epochs", "3")
    assert call(*words, "--log", log).code == 0
    assert pandas.read_csv(log)["epoch"].tolist() == [1, 2, 3]
    before = log.read_bytes()
    assert call(*words, "--log", log).code == 0
    assert log.read_bytes() == before
    line = only_line(call(*words, "--start-over", "--log", data))
    assert "is there and no log of a training" in line
