"""Keeps freed memory for the next step instead of returning it to the operating system."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_LARGE = 1 << 30
_MOST_MAPPED = 32 << 20  # the largest value that older versions of glibc accept

ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": str(_LARGE),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(_LARGE),
}
"""The same settings for another process; glibc reads them when it starts."""


def keep_memory() -> bool:
    """Tells the C library to keep memory that CPU tensors free; returns whether it accepted.

    Each training step frees and allocates the same large tensors. By default glibc returns their
    memory to the system in between, and every page is prepared again, which can take a quarter of a
    step's time. The setting holds for the whole process, which then never shrinks. So the library
    leaves the choice to the application; the command line `bayesrule` makes this call. On other
    systems than Linux with glibc nothing happens.

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
