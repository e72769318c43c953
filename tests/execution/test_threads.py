"""Blocks on one core leave the number of threads as it was."""

from __future__ import annotations

import threading

import pytest
import torch

from bayesrule.app.recipe import Recipe
from bayesrule.execution.threads import one_core


def test_blocks_in_several_threads_leave_the_number_of_threads_alone() -> None:
    before = torch.get_num_threads()
    inside = threading.Barrier(3)
    seen = []

    def work() -> None:
        with one_core():
            inside.wait(timeout=30)
            seen.append(torch.get_num_threads())

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert seen == [1, 1, 1]
    assert torch.get_num_threads() == before


def test_small_nets_of_tables_are_trained_on_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    before = torch.get_num_threads()
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    x = torch.linspace(-1.0, 1.0, 12).reshape(12, 1)
    Recipe("map", hidden=(3,), epochs=1).fit(x, x, 1, progress=False)
    assert seen[0] == 1
    assert seen[-1] == before
    seen.clear()
    Recipe("map", hidden=(400, 400), epochs=1).fit(x, x, 1, progress=False)
    assert seen == []
