"""The progress bar: what it shows on a terminal, and that it is silent elsewhere."""

from __future__ import annotations

import io
import re
import sys
import time

import pytest
import torch
from torch import nn

from bayesrule import GaussianLikelihood, fit, map
from bayesrule.training.progress import Progress


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def watched(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A wide terminal in place of stderr; no fixture, since pytest sets stderr after those."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "200")
    return screen


def slow_steps(bar: Progress, steps: int) -> None:
    """Steps slow enough for the bar to be drawn at each."""
    for _ in range(steps):
        time.sleep(0.11)
        bar.advance()


def test_a_bar_shows_rate_time_left_loss_and_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    with Progress(40, 0, "Diagonal × GGN", None) as bar:
        bar.note(loss=0.123456, validation=-1.5)
        slow_steps(bar, 2)
    shown = terminal.getvalue()
    assert "Diagonal × GGN:   5%" in shown
    # 2 of 40 steps, elapsed < left, steps a second, the figures.
    assert re.search(r"2/40 \[00:00<00:0\d, +\d+\.\d+step/s, loss=0.1235, validation=-1.5\]", shown)


def test_a_resumed_run_starts_where_it_was_and_absent_figures_are_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = watched(monkeypatch)
    with Progress(40, 30, "map", None) as bar:
        bar.note(loss=2.0, validation=None)
        slow_steps(bar, 1)
    assert "31/40" in terminal.getvalue()
    assert "loss=2]" in terminal.getvalue()


def test_the_bar_is_wiped_off_even_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)

    def interrupted() -> None:
        with Progress(4, 0, "map", None) as bar:
            bar.advance()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert re.search(r"\r *\r$", terminal.getvalue())


def test_fit_draws_its_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    x = torch.linspace(-1.0, 1.0, 8).unsqueeze(1)
    learner = map(nn.Linear(1, 1), GaussianLikelihood(noise=1.0), num_data=8)
    wait = lambda *_: time.sleep(0.11)  # noqa: E731
    fit(learner, (x, x), epochs=2, batch_size=4, validation=(x, x), callback=wait)
    shown = terminal.getvalue()
    assert "Isotropic × NoCurvature" in shown
    assert re.search(r"3/4 .*step/s, loss=\d.*, validation=-\d", shown)


@pytest.mark.parametrize(("is_terminal", "show"), [(True, False), (False, None), (False, False)])
def test_nothing_is_printed_where_nobody_looks(
    is_terminal: bool, show: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress(2, 0, "map", show) as bar:
        slow_steps(bar, 1)
        bar.note(loss=1.0)
    assert stream.getvalue() == ""


def test_a_bar_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress(2, 0, "map", True) as bar:
        bar.advance()
        assert "map" in stream.getvalue()


def test_a_program_without_stderr_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with Progress(2, 0, "map", None) as bar:
        bar.advance()
        bar.note(loss=1.0)


def test_without_tqdm_the_run_goes_on_and_the_way_out_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = watched(monkeypatch)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with Progress(2, 0, "map", None) as bar:
        bar.advance()
        bar.note(loss=1.0)
    assert terminal.getvalue() == "A progress bar needs tqdm: pip install 'bayesrule[front]'.\n"
