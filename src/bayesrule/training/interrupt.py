"""Ctrl-C that takes effect after a step, and not in the middle of one."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

from bayesrule.tensors import distributed


@contextlib.contextmanager
def delayed_interrupt(wanted: bool = True) -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether Ctrl-C was pressed; a second Ctrl-C stops at once.

    Nothing changes where somebody else handles Ctrl-C, in threads other than the main one, and
    where several ranks must stop together.
    """
    asked = threading.Event()
    on_main = threading.current_thread() is threading.main_thread()
    ours = wanted and on_main and distributed.world_size() == 1
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield asked.is_set
        return

    def ask(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        asked.set()

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
