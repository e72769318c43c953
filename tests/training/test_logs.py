"""Logs hold what `Info` said of each step, each line once, however often training was resumed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.training.logs import COLUMNS, CsvLog, TensorBoardLog
from bayesrule.training.loop import TrainingWarning
from bayesrule.types import Info, State

pandas = pytest.importorskip("pandas")

N = 20


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, generator=generator)
    return x, x.sum(1, keepdim=True)


def learner(**options: Any) -> br.Learner:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
    return br.vogn(model, br.GaussianLikelihood(), num_data=N, **options)


def train(log: Any = None, epochs: int = 3, **more: Any) -> br.training.train.Run:
    return br.fit(learner(), data(), epochs=epochs, batch_size=5, log=log, **more)


def read(file: Path) -> Any:
    return pandas.read_csv(file)


def test_a_csv_has_what_info_said(tmp_path: Path) -> None:
    file, seen = tmp_path / "metrics.csv", []

    def note(state: State, info: Info) -> None:
        seen.append((state.step, float(info.loss), float(info.kl), float(info.elbo)))

    run = train(CsvLog(file, every=1), validation=data(), on_step=note)
    table = read(file)
    assert tuple(table.columns) == COLUMNS
    for name, wanted in zip(("step", "loss", "kl", "elbo"), zip(*seen, strict=True), strict=True):
        assert table[name].tolist() == pytest.approx(wanted, rel=1e-12)
    assert table["epoch"].tolist() == [1] * 4 + [2] * 4 + [3] * 4
    ends = table[table["epoch_loss"].notna()]
    assert ends["step"].tolist() == [4, 8, 12]
    for mine, name in (("epoch_loss", "loss"), ("validation", "validation")):
        wanted = [figures[name] for figures in run.history]
        assert ends[mine].tolist() == pytest.approx(wanted, rel=1e-12)
    assert table["epoch_loss"].notna().sum() == 3


def test_a_path_logs_epochs_and_training_is_as_without_it(tmp_path: Path) -> None:
    with_log = train(str(tmp_path / "metrics.csv"))
    assert read(tmp_path / "metrics.csv")["step"].tolist() == [4, 8, 12]
    for one, two in zip(
        with_log.state.posterior.mean.values(), train().state.posterior.mean.values(), strict=True
    ):
        assert torch.equal(one, two)


def test_a_training_that_is_resumed_adds_its_lines_once(tmp_path: Path) -> None:
    whole = tmp_path / "whole.csv"
    train(CsvLog(whole, every=2), epochs=4, out=tmp_path / "a")
    parts, out = tmp_path / "parts.csv", tmp_path / "b"

    def killed(state: State, info: Info) -> None:
        if state.step == 11:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        train(CsvLog(parts, every=2), epochs=4, out=out, checkpoint_seconds=0, on_step=killed)
    assert read(parts)["step"].max() == 10
    with open(parts, "a", encoding="utf-8") as file:
        file.write("12,3,0.5")  # half a line
    train(CsvLog(parts, every=2), epochs=4, out=out)
    names = [name for name in COLUMNS if name != "seconds"]
    assert read(parts)[names].equals(read(whole)[names])
    train(CsvLog(parts, every=2), epochs=4, out=out)  # which has nothing left to do
    assert read(parts)[names].equals(read(whole)[names])


def test_a_training_that_begins_anew_begins_the_file_anew(tmp_path: Path) -> None:
    file = tmp_path / "metrics.csv"
    run = train(file, epochs=3)
    train(file, epochs=2)
    assert read(file)["step"].tolist() == [4, 8]
    br.fit(learner(), data(), epochs=1, batch_size=5, state=run.state, log=file)
    assert read(file)["step"].tolist() == [4, 8, 16]


def test_steps_that_are_taken_again_after_a_divergence_are_there_once(tmp_path: Path) -> None:
    x, y = data()
    wild = br.sgd(
        nn.Linear(2, 1), br.GaussianLikelihood(noise=0.01), num_data=N, learning_rate=3e-4
    )
    log = CsvLog(tmp_path / "metrics.csv", every=1)
    with pytest.warns(TrainingWarning):
        br.fit(wild, (x, y), epochs=3, batch_size=5, log=log)
    assert read(tmp_path / "metrics.csv")["step"].tolist() == list(range(1, 13))


def test_files_that_are_no_logs_are_refused_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "house.csv"
    file.write_text("area,price\n1,2\n")
    with pytest.raises(ValueError, match=r"house\.csv is there and no log of a training"):
        train(file)
    assert file.read_text() == "area,price\n1,2\n"
    (tmp_path / "empty.csv").touch()
    train(tmp_path / "empty.csv", epochs=1)
    assert read(tmp_path / "empty.csv")["step"].tolist() == [4]
    with pytest.raises(TypeError, match="log is a csv file, a folder for TensorBoard"):
        train(3)


@pytest.mark.parametrize("method", [br.adam, br.laplace, br.tagi, br.mean_field, br.noisy_kfac])
def test_every_kind_of_method_has_its_lines(method: Any, tmp_path: Path) -> None:
    made = method(nn.Linear(2, 1), br.GaussianLikelihood(), num_data=N)
    br.fit(made, data(), epochs=2, batch_size=5, log=tmp_path / "metrics.csv")
    table = read(tmp_path / "metrics.csv")
    assert table["step"].tolist() == [4, 8]
    assert table["loss"].notna().all()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_tensorboard_has_the_same_figures(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, file = tmp_path / "events", tmp_path / "metrics.csv"
    train([TensorBoardLog(folder, every=1), CsvLog(file, every=1)], epochs=2)
    train([folder, file], epochs=3)  # begins anew
    events, table = EventAccumulator(str(folder)).Reload(), read(file)
    for name in ("loss", "kl", "elbo", "epoch_loss"):
        found = events.Scalars(name)
        assert [event.step for event in found] == table["step"].tolist() == [4, 8, 12]
        wanted = torch.tensor(table[name].tolist())
        torch.testing.assert_close(torch.tensor([event.value for event in found]), wanted)


def test_a_missing_tensorboard_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"pip install 'bayesrule\[tensorboard\]'"):
        train(tmp_path / "events")
