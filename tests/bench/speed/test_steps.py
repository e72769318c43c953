"""Timing steps: ratios within one run, and a document that says how it came about."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from bayesrule.execution.replayed import Replayed
from bayesrule.likelihoods import CategoricalLikelihood
from bayesrule.methods import find
from bayesrule.rules import Elbo, Natural
from benchmarks import models
from benchmarks.__main__ import main
from benchmarks.speed import steps


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nets that take no time, and no reference libraries."""
    net = steps.Case("net", "A tiny net", lambda: nn.Sequential(nn.Linear(4, 10)), (6, 4), 2)
    deep = steps.Case("deep", "A deeper net", lambda: models.resnet18(1), (2, 3, 8, 8), 1)
    monkeypatch.setattr(steps, "CASES", {"net": net, "deep": deep})

    def absent(*_: object) -> steps.Step:
        raise ImportError("not here")

    monkeypatch.setattr(steps, "_ivon_opt", absent)
    monkeypatch.setattr(steps, "_backpack", absent)


def test_one_round_gives_ratios_and_provenance() -> None:
    lines: list[str] = []
    found = steps.run(["net", "deep"], ["map", "vogn"], rounds=1, progress=lines.append)
    assert lines[0] == "A tiny net: adam (torch), map, vogn"
    assert [result["case"] for result in found["results"]] == ["net", "deep"]
    for result in found["results"]:
        times, ratios = result["milliseconds"], result["multiple_of_adam"]
        assert list(times) == list(ratios) == ["adam (torch)", "map", "vogn"]
        assert ratios["adam (torch)"] == 1.0
        # With one round a ratio is that of the two times.
        assert ratios["map"] == pytest.approx(times["map"] / times["adam (torch)"])
        assert result["replayed"] == [], "there is no GPU"
        assert result["missing"] == {
            "ivon-opt": "ImportError: not here",
            "backpack": "ImportError: not here",
        }
    assert found["versions"]["torch"] == torch.__version__


def test_rounds_of_all_processes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = iter([{"adam (torch)": [1.0], "map": [2.0]}, {"adam (torch)": [1.0], "map": [4.0]}])
    monkeypatch.setattr(steps, "_apart", lambda *_: steps.Timed(next(kinds), {}, "single", []))
    lines: list[str] = []
    found = steps.run(["net"], ["map"], rounds=1, processes=2, progress=lines.append)
    assert found["results"][0]["multiple_of_adam"]["map"] == 3.0
    assert found["processes"] == 2
    assert lines[-1] == "A tiny net: adam (torch), map (2 of 2 processes)"


def test_ratios_are_medians_of_ratios_within_a_round() -> None:
    times = {"adam (torch)": [1.0, 2.0, 4.0], "vogn": [3.0, 4.0, 20.0]}
    summary = steps._summary(times)
    assert summary["multiple_of_adam"]["vogn"] == 3.0
    assert summary["milliseconds"]["vogn"] == 4000.0


def test_ratios_to_map_where_it_is_timed() -> None:
    times = {"adam (torch)": [1.0, 1.0], "map": [2.0, 4.0], "variational_laplace": [5.0, 10.0]}
    summary = steps._summary(times)
    assert summary["multiple_of_map"] == {
        "adam (torch)": pytest.approx(0.375),
        "map": 1.0,
        "variational_laplace": 2.5,
    }
    assert "multiple_of_map" not in steps._summary({"adam (torch)": [1.0]})


def test_a_case_has_methods_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    smooth = nn.Sequential(nn.Linear(4, 5), nn.Softplus(), nn.Linear(5, 10))
    case = steps.Case(
        "smooth", "Smooth", lambda: smooth, (6, 4), 1, methods=("map", "variational_laplace")
    )
    monkeypatch.setitem(steps.CASES, "smooth", case)
    (result,) = steps.run(["smooth"], rounds=1)["results"]
    assert list(result["multiple_of_map"]) == ["adam (torch)", "map", "variational_laplace"]
    (result,) = steps.run(["smooth"], ["mean_field"], rounds=1)["results"]
    assert list(result["multiple_of_adam"]) == ["adam (torch)", "mean_field"]


def test_large_nets_are_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    large = replace(steps.CASES["net"], large=True)
    monkeypatch.setitem(steps.CASES, "large", large)
    assert steps.default_cases("cpu") == ["net", "deep"]
    assert steps.default_cases("cuda:0") == ["net", "deep", "large"]


def test_every_contender_has_its_turn_in_each_round() -> None:
    turns: list[str] = []
    contenders: dict[str, steps.Step] = {
        name: (lambda name=name: turns.append(name)) for name in ("a", "b", "c")
    }
    times = steps._interleaved(contenders, 1, 2, torch.device("cpu"))
    # Two rounds warm up, and each round begins with another one.
    assert "".join(turns) == "abcbcacababc"
    assert all(len(values) == 2 for values in times.values())


def test_the_command_prints_a_table_and_keeps_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "results" / "speed.json"
    words = ["speed", "--cases", "net", "--methods", "vogn", "--rounds", "1"]
    assert main([*words, "--out", str(file)]) == 0
    said = capsys.readouterr()
    assert "step of" in said.out
    assert "× Adam" in said.out
    assert "(ivon-opt did not run: ImportError: not here)" in said.out
    kept = json.loads(file.read_text())
    assert kept["command"] == f"python -m benchmarks {' '.join(words)} --out {file}"
    assert kept["rounds"] == 1
    assert "multiple_of_map" not in kept["results"][0]
    assert main(["speed", "--methods", "map", "--rounds", "1"]) == 0
    said = capsys.readouterr()
    assert "A deeper net" in said.out, "all nets that are not large"
    assert "× map" in said.out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["case"] == "net"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--cases", "nett"], "Unknown case 'nett'. Did you mean 'net'? Cases: net, deep."),
        (["--cases", "net", "--methods", "vagn"], "Did you mean 'vogn'?"),
        (["--cases", "net", "--device", "abacus"], "The device 'abacus' cannot be used here"),
    ],
)
def test_what_there_is_not_is_refused_before_any_timing(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["speed", *words]) == 2
    said = capsys.readouterr()
    assert expected in said.err
    assert len(said.err.splitlines()) == 1
    assert said.out == ""


def test_rounds_are_at_least_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["speed", "--cases", "net", "--rounds", "0"])
    assert "--rounds: takes a whole number of at least 1" in capsys.readouterr().err


def test_a_method_that_does_not_fit_a_net_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wide = steps.Case("wide", "Wide", lambda: nn.Sequential(nn.Linear(4000, 10)), (2, 4000), 1)
    monkeypatch.setitem(steps.CASES, "wide", wide)
    (result,) = steps.run(["wide"], ["newton", "map"], rounds=1)["results"]
    assert "A full matrix over 40,010 parameters" in result["missing"]["newton"]
    assert "map" in result["multiple_of_adam"]


def test_the_nets_have_the_sizes_they_say() -> None:
    mlp, smooth = models.benchmark_mlp(), steps._softplus_mlp()
    assert sum(p.numel() for p in mlp.parameters()) == 478_410
    assert sum(p.numel() for p in smooth.parameters()) == 478_410
    assert sum(isinstance(module, nn.Softplus) for module in smooth.modules()) == 2
    net = models.resnet18(4, classes=7, channels=1)
    assert net(torch.zeros(2, 1, 32, 32)).shape == (2, 7)
    assert sum(isinstance(module, nn.Conv2d) for module in net.modules()) == 20


@pytest.mark.parametrize("name", ["map", "ogn", "ivon", "vogn", "mean_field", "noisy_adam"])
def test_steps_that_can_be_replayed_are_replayed_on_a_gpu(name: str) -> None:
    learner = find(name)(nn.Linear(4, 3), CategoricalLikelihood(), num_data=10)
    assert isinstance(steps.stepper(learner, on_gpu=True), Replayed)
    assert steps.stepper(learner, on_gpu=False) is learner


def test_steps_that_cannot_be_replayed_are_taken_one_by_one() -> None:
    learner = find("noisy_ekfac")(nn.Linear(4, 3), CategoricalLikelihood(), num_data=10)
    assert steps.stepper(learner, on_gpu=True) is learner


def test_a_round_has_a_whole_cycle_of_steps_that_differ() -> None:
    assert steps.cycle(Natural(stats_every=4, inverse_every=6)) == 12
    assert steps.cycle(Elbo()) == 1
