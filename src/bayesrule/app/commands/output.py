"""Standard output and standard error that may be closed while the work goes on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bayesrule.training.checkpoint import CheckpointError, write_atomically


class Lasting:
    """A text stream that the work does not depend on: where nobody reads, nothing is printed.

    A pipe whose reader has left, as in `| head -1`, is no fault. Any other reason why nothing can
    be written is kept in `fault` and said at the end, when the work is done. Letters that the
    stream does not have become `\\xe9`, so that two names never look the same.
    """

    def __init__(self, stream: Any) -> None:
        self.absent = stream is None
        self.fault: OSError | None = None
        self._stream = open(os.devnull, "w") if self.absent else stream  # noqa: SIM115
        if hasattr(self._stream, "reconfigure"):
            self._stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Writes text, as far as somebody reads it."""
        with self._silenced_on_failure():
            self._stream.write(text)
        return len(text)

    def write_data(self, text: str) -> None:
        """Writes the content of a file: in UTF-8, whatever letters the terminal has."""
        binary = getattr(self._stream, "buffer", None)
        if binary is None:
            self.write(text)
            return
        self.flush()
        with self._silenced_on_failure():
            binary.write(text.encode("utf-8", "backslashreplace"))
            binary.flush()

    def flush(self) -> None:
        """Hands on what is still held."""
        with self._silenced_on_failure():
            self._stream.flush()

    def end(self) -> None:
        """Hands on what is still held, and closes what was opened here."""
        self.flush()
        if self.absent:
            self._stream.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextmanager
    def _silenced_on_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            if not isinstance(problem, BrokenPipeError):
                self.fault = self.fault or problem
            # What the stream still holds goes nowhere, or Python would try again when it ends.
            with suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)


def write_file(file: Path, text: str) -> None:
    """Writes a file in UTF-8, whole or not at all; a device or a pipe stays what it is."""
    payload = text.encode("utf-8", "backslashreplace")
    if file.exists() and not file.is_file():
        file.write_bytes(payload)
        return
    try:
        write_atomically(file, payload)
    except CheckpointError as problem:
        reason = getattr(problem.__cause__, "strerror", None) or problem
        raise CheckpointError(f"Cannot write '{file}': {reason}. Choose another file.") from problem


@contextmanager
def lasting() -> Iterator[tuple[Lasting, Lasting]]:
    """Puts both streams in place; a stream that is closed from the beginning stays silent."""
    before = sys.stdout, sys.stderr
    _occupy_closed()
    streams = Lasting(before[0]), Lasting(before[1])
    sys.stdout, sys.stderr = streams
    try:
        yield streams
    finally:
        for stream in streams:
            stream.end()
        sys.stdout, sys.stderr = before


def _occupy_closed() -> None:
    """Opens closed streams to nowhere: the next file must not become standard output."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
