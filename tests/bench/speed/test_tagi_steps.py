"""What a TAGI step costs."""

import functools
import sys
from pathlib import Path

import pytest

from bayesrule.execution.compiled import Compiled
from bayesrule.training.models import mlp
from benchmarks.__main__ import main
from benchmarks.speed import tagi_steps


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    case = tagi_steps.Case("3-2-1", lambda: mlp(3, 1, (2,)), (4, 3), None, 1, stacked=True)
    monkeypatch.setitem(tagi_steps.CASES, "tiny", case)
    monkeypatch.setattr(tagi_steps, "Compiled", functools.partial(Compiled, backend="eager"))


def test_ratios_and_rates_come_from_the_same_times() -> None:
    found = tagi_steps.run(["tiny"], rounds=3)
    (result,) = found["results"]
    assert result["multiple_of_sgd"]["sgd"] == 1.0
    assert set(result["multiple_of_sgd"]) == {"sgd", "tagi", "tagi, compiled"}
    for name, rate in result["samples_per_second"].items():
        nets = 20 if "at once" in name else 1
        assert rate == pytest.approx(4 * nets / (1e-3 * result["milliseconds"][name]))


def test_another_interpreter_is_timed_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tagi_steps.PYTAGI.is_file()
    script = tmp_path / "speed.py"
    monkeypatch.setattr(tagi_steps, "PYTAGI", script)
    script.write_text('print(\'{"results": [{"case": "tiny", "samples_per_second": 10.0}]}\')')
    (result,) = tagi_steps.run(["tiny"], rounds=1, pytagi=sys.executable)["results"]
    assert result["times_pytagi"]["tagi"] == result["samples_per_second"]["tagi"] / 10.0
    script.write_text("raise SystemExit('no such library')")
    with pytest.raises(ValueError, match="no such library"):
        tagi_steps.run(["tiny"], rounds=1, pytagi=sys.executable)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tagi", "--cases", "tiny", "--rounds", "1"]) == 0
    assert "× SGD" in capsys.readouterr().out
    assert main(["tagi", "--cases", "tinny"]) == 2
    assert "Unknown case 'tinny'. Did you mean 'tiny'?" in capsys.readouterr().err
