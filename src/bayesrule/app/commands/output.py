"""Standard output and standard error that may close without stopping the work."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bayesrule.training.checkpoint import CheckpointError, write_atomically


class Lasting:
    """A text stream whose failure does not stop the work: if nobody reads, nothing is printed.

    A pipe whose reader has left, as in `| head -1`, is no fault. Any other failure to write is kept
    in `fault` and reported once the work is done. Characters that the stream's encoding lacks
    become `\\xe9`, so that two names never look the same.
    """

    def __init__(self, stream: Any) -> None:
        self.absent = stream is None
        self.fault: OSError | None = None
        self._stream = open(os.devnull, "w") if self.absent else stream  # noqa: SIM115
        if hasattr(self._stream, "reconfigure"):
            self._stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Writes text; drops it where nobody reads."""
        with self._silenced_on_failure():
            self._stream.write(text)
        return len(text)

    def write_data(self, text: str) -> None:
        """Writes the content of a file: in UTF-8, whatever the terminal's encoding."""
        binary = getattr(self._stream, "buffer", None)
        if binary is None:
            self.write(text)
            return
        self.flush()
        with self._silenced_on_failure():
            binary.write(text.encode("utf-8", "backslashreplace"))
            binary.flush()

    def flush(self) -> None:
        """Passes on buffered text."""
        with self._silenced_on_failure():
            self._stream.flush()

    def end(self) -> None:
        """Passes on buffered text, and closes the stream if it was opened here."""
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
            # The buffered rest goes to the null device, or Python would try again at exit.
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
    """Replaces stdout and stderr; a stream that was closed from the start stays silent."""
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
    """Opens the null device for closed streams, so that no later file becomes standard output."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
