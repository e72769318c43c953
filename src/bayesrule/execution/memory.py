"""Freed memory kept for the next step, instead of going back to the operating system."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_LARGE = 1 << 30
_MOST_MAPPED = 32 << 20  # the most that older versions of glibc take

ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": str(_LARGE),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(_LARGE),
}
"""The same for another process, as glibc reads it when the process starts."""


def keep_memory() -> bool:
    """Tells the C library to keep what tensors on the CPU free; whether it understood.

    Training frees and asks for the same large tensors in each step. By default glibc hands them
    back to the system in between and every page is prepared anew, which can take a quarter of the
    time of a step. The setting holds for the whole process, which then stays as large as it has
    ever been, so the library leaves it to whoever owns the process: `bayesrule` on the command line
    does it. Elsewhere than on Linux with glibc nothing happens.

    >>> keep_memory() in (True, False)
    True
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    kept = mallopt(_TRIM_THRESHOLD, _LARGE) and mallopt(_TOP_PAD, 64 << 20)
    mapped = mallopt(_MMAP_THRESHOLD, _LARGE) or mallopt(_MMAP_THRESHOLD, _MOST_MAPPED)
    return bool(kept and mapped)
