"""Work in several processes loses nothing that is done when one of them is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayesrule.app.workers import results

pytest.importorskip("joblib")


@pytest.fixture(autouse=True)
def _no_process_stays() -> Iterator[None]:
    yield
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_item_has_its_result(jobs: int) -> None:
    found = dict(results(lambda item: 10 * item, range(6), jobs, lambda item: -item))
    assert found == {item: 10 * item for item in range(6)}


def test_an_item_whose_process_is_killed_once_is_done_again(tmp_path: Path) -> None:
    def work(item: int) -> int:
        (tmp_path / f"{item}-{len(list(tmp_path.glob(f'{item}-*')))}").touch()
        if item == 5 and len(list(tmp_path.glob("5-*"))) == 1:
            _wait_for(tmp_path / "received-0", tmp_path / "received-1")
            os.kill(os.getpid(), signal.SIGKILL)
        return 10 * item

    found = {}
    for item, result in results(work, range(12), 2, lambda item: -item):
        (tmp_path / f"received-{item}").touch()
        found[item] = result
    assert found == {item: 10 * item for item in range(12)}
    # A result that had arrived before the process was killed is not worked out a second time.
    assert [len(list(tmp_path.glob(f"{item}-*"))) for item in (0, 1)] == [1, 1]


def _wait_for(*files: Path) -> None:
    for _ in range(1000):
        if all(file.exists() for file in files):
            return
        time.sleep(0.01)


def test_an_item_that_kills_every_process_is_the_only_one_lost() -> None:
    def work(item: int) -> int:
        if item in (2, 7):
            os.kill(os.getpid(), signal.SIGKILL)
        return 10 * item

    found = dict(results(work, range(9), 2, lambda item: -item))
    assert found == {item: -item if item in (2, 7) else 10 * item for item in range(9)}


def test_an_error_of_the_work_itself_is_raised() -> None:
    def work(item: int) -> int:
        raise LookupError(f"item {item}")

    with pytest.raises(LookupError, match="item 0"):
        list(results(work, range(1), 2, lambda item: -item))
