"""Freed memory is kept, where the C library can do so."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from bayesrule.execution.memory import keep_memory

_FAULTS = """
import resource, torch
import bayesrule.execution.memory as memory
if {keep}:
    assert memory.keep_memory()
def work():
    return [torch.ones(size) for size in (1_000_000, 12_000_000)]
for _ in range(3):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

glibc = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "gnu_get_libc_version"),
    reason="a setting of glibc",
)


def _faults(keep: bool) -> int:
    code = _FAULTS.format(keep=keep)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


@glibc
def test_pages_are_not_prepared_anew() -> None:
    assert _faults(keep=True) < 100 < _faults(keep=False)


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert not keep_memory()


def test_a_c_library_without_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not keep_memory()
