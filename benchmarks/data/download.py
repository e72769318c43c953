"""Fetch one file over http, with progress on stderr: the file is verified, or absent."""

from __future__ import annotations

import os
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Protocol

from bayesrule.app.data.errors import DataError

CHUNK = 1 << 16
TIMEOUT_SECONDS = 30.0


class Progress(Protocol):
    """Receives the progress of a download: the bytes as they come, then the end."""

    def update(self, count: int) -> object: ...

    def close(self) -> object: ...


class Lines:
    """Progress as plain lines on stderr, one for each quarter, where tqdm is not installed."""

    def __init__(self, name: str, total: int | None) -> None:
        self.name, self.total, self.done, self.quarter = name, total, 0, 0
        size = "unknown size" if total is None else f"{total:,} bytes"
        print(f"downloading {name} ({size})", file=sys.stderr)

    def update(self, count: int) -> None:
        """Count the bytes and write a line when another quarter is complete."""
        self.done += count
        quarter = 4 * self.done // self.total if self.total else 0
        if quarter > self.quarter:
            self.quarter = quarter
            print(f"  {self.name}: {25 * quarter} %", file=sys.stderr)

    def close(self) -> None:
        """Say how much came."""
        print(f"  {self.name}: {self.done:,} bytes received", file=sys.stderr)


class Silent:
    """No progress, for many small files."""

    def update(self, count: int) -> None:
        """Take note of nothing."""

    def close(self) -> None:
        """Say nothing."""


def progress_for(name: str, total: int | None) -> Progress:
    """Return tqdm's bar if tqdm is installed, else plain lines."""
    try:
        from tqdm import tqdm
    except ImportError:
        return Lines(name, total)
    bar: Progress = tqdm(total=total, unit="B", unit_scale=True, desc=name, file=sys.stderr)
    return bar


def receive(url: str, part: Path, report: Callable[[int | None], Progress]) -> None:
    """Stream ``url`` into ``part``; a length other than the announced one is an error."""
    if not url.startswith(("http://", "https://")):
        raise DataError(f"Cannot download '{url}': only http and https addresses are taken.")
    request = urllib.request.Request(url, headers={"User-Agent": "bayesrule"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer, part.open("wb") as out:
        announced = answer.headers.get("Content-Length")
        total = int(announced) if announced and announced.isdigit() else None
        progress, received = report(total), 0
        try:
            while chunk := answer.read(CHUNK):
                received += out.write(chunk)
                progress.update(len(chunk))
        finally:
            progress.close()
    if total is not None and received != total:
        raise OSError(f"the connection ended after {received:,} of {total:,} bytes")


def place(target: Path, write: Callable[[Path], None]) -> Path:
    """Let ``write`` make a file beside ``target`` and move it there in one atomic step.

    The file is made in a temporary folder that vanishes whatever happens, so that an
    interruption leaves no half file and two processes may do this at once.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(dir=target.parent, prefix=".partial-")
    except OSError as error:
        raise DataError(
            f"Cannot write to the cache folder '{target.parent}' ({error}). "
            "Set BAYESRULE_CACHE to a folder that can be written to."
        ) from error
    with folder as inside:
        part = Path(inside) / target.name
        write(part)
        os.replace(part, target)
    return target


def download(
    urls: Sequence[str],
    target: Path,
    verify: Callable[[Path], None] | None = None,
    *,
    progress: bool = True,
) -> Path:
    """Fetch ``target`` from the first address that answers; ``verify`` sees it before it counts.

    Raises:
        DataError: with what each address answered, when none gave the file.
    """
    faults: list[str] = []

    def report(total: int | None) -> Progress:
        return progress_for(target.name, total) if progress else Silent()

    for url in urls:

        def write(part: Path, url: str = url) -> None:
            receive(url, part, report)
            if verify is not None:
                verify(part)

        try:
            return place(target, write)
        except DataError as error:
            faults.append(f"{url}: {error}")
        except (OSError, HTTPException) as error:
            faults.append(f"{url}: {error or type(error).__name__}")
    raise DataError("; ".join(faults) if faults else "there is no address to download it from")
