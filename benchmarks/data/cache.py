"""Find a data file: in the user's data folder, in the cache, or by download into the cache."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

from bayesrule.app.data.errors import DataError
from benchmarks.data.download import download

OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
UNREADABLE = (OSError, EOFError, lzma.LZMAError, zlib.error)


def data_folder() -> Path | None:
    """Return the folder named by ``BAYESRULE_DATA``, or None when it is unset."""
    named = os.environ.get("BAYESRULE_DATA", "")
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"BAYESRULE_DATA is '{named}', which is not a folder. "
            "Point it at the folder that holds the data sets, or unset it."
        )
    return folder


def cache_folder() -> Path:
    """Return ``BAYESRULE_CACHE``, else ``bayesrule`` in the user's cache (XDG_CACHE_HOME)."""
    if named := os.environ.get("BAYESRULE_CACHE", ""):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification tells programs to ignore relative paths here.
    home = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return home / "bayesrule"


def open_unpacked(path: Path) -> IO[bytes]:
    """Open a file for reading bytes, unpacking .gz, .xz and .bz2 on the way."""
    stream: IO[bytes] = OPENERS.get(path.suffix, open)(path, "rb")
    return stream


def read_unpacked(path: Path) -> bytes:
    """Return a file's bytes, unpacked; a broken archive is named."""
    try:
        with open_unpacked(path) as stream:
            return stream.read()
    except UNREADABLE as error:
        raise DataError(f"Cannot read '{path}': {error}. Delete it and fetch it again.") from error


def checksum(path: Path, algorithm: str, unpacked: bool = False) -> str:
    """Return the hexadecimal digest of a file, or of what it unpacks to."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open_unpacked(path) if unpacked else path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def verify(
    path: Path, sha256: str | None = None, md5: str | None = None, content: str | None = None
) -> None:
    """Compare a file with its known sums.

    Args:
        path: the file.
        sha256: sum of the file as it lies there.
        md5: the same, for sets that were published with this sum.
        content: ``"algorithm:sum"`` of what the file unpacks to. A recompressed copy of the
            same data has another ``sha256`` but the same content.
    """
    whole = (("sha256", sha256), ("md5", md5))
    known = [(algorithm, value, False) for algorithm, value in whole if value]
    if content:
        algorithm, _, value = content.partition(":")
        known.append((algorithm, value, True))
    for algorithm, expected, unpacked in known:
        what = f"{algorithm}{' of the unpacked content' if unpacked else ''}"
        try:
            got = checksum(path, algorithm, unpacked)
        except UNREADABLE as error:
            raise DataError(f"'{path.name}' ({path}) cannot be read: {error}.") from error
        if got != expected:
            raise DataError(
                f"'{path.name}' ({path}) is not the expected file: its {what} is {got}, "
                f"expected {expected}."
            )


def find(relative_path: str) -> Path | None:
    """Return the file in the data folder or else in the cache, unverified, or None."""
    parts = PurePosixPath(relative_path)
    if parts.is_absolute() or ".." in parts.parts:
        raise DataError(f"Data files are named by a relative path; got '{relative_path}'.")
    folders = [folder for folder in (data_folder(), cache_folder()) if folder is not None]
    return next((path for folder in folders if (path := folder / parts).is_file()), None)


def locate(
    relative_path: str,
    *,
    sha256: str | None = None,
    md5: str | None = None,
    content: str | None = None,
    urls: Sequence[str] = (),
) -> Path:
    """Return a local path of a data file, downloading it into the cache when needed.

    Looks in ``$BAYESRULE_DATA``, then in the cache folder, then at ``urls`` in turn. Every file
    is verified (see :func:`verify`). A bad file in the user's own folder is an error and stays;
    a bad file in the cache is replaced by a fresh download.
    """
    found = find(relative_path)
    cached = cache_folder() / relative_path
    bad = ""
    if found is not None:
        try:
            verify(found, sha256, md5, content)
            return found
        except DataError as error:
            if found != cached:
                raise DataError(f"{error} Replace the file, or unset BAYESRULE_DATA.") from error
            bad = f"the cached copy was bad and has been deleted ({error}); "
            found.unlink()
    try:
        return download(urls, cached, lambda part: verify(part, sha256, md5, content))
    except DataError as error:
        raise not_found(relative_path, f"{bad}{error}") from error


def not_found(relative_path: str, why: str) -> DataError:
    """Name the file, the places searched, why the download failed, and how to proceed."""
    folder = data_folder()
    own = f"'{folder / relative_path}'" if folder else "BAYESRULE_DATA (not set)"
    cached = cache_folder() / relative_path
    return DataError(
        f"Cannot find '{relative_path}'. Looked in {own} and '{cached}', then tried to download "
        f"it: {why}. Set BAYESRULE_DATA to a folder that holds '{relative_path}', or put the file "
        f"at '{cached}' by hand."
    )
