"""One process at a time in a folder: a lock that the system frees when its holder dies."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from bayesrule.tensors import distributed
from bayesrule.training.checkpoint import CheckpointError, Place

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

NAME = ".bayesrule.lock"
# The locks of this process: the open file and the thread, by folder.
_HELD: dict[Path, tuple[int, int]] = {}


@contextlib.contextmanager
def occupied(folder: Place) -> Iterator[None]:
    """Reserves a folder for this thread; other threads and processes of this machine are refused.

    A killed process leaves a file behind, but no lock, so that the next one can have it. Of several
    ranks only the first takes the lock, and a thread may take again a lock that it holds.
    """
    place = Path(folder).resolve()
    mine = _HELD.get(place, (0, None))[1] == threading.get_ident()
    if mine or not distributed.is_main():
        yield
        return
    file = _acquire(place)
    _HELD[place] = file, threading.get_ident()
    try:
        yield
    finally:
        del _HELD[place]
        # Removed while the lock is held, so that it is never somebody else's.
        (place / NAME).unlink(missing_ok=True)
        os.close(file)


def _acquire(place: Path) -> int:
    """Opens the lock file of a folder and takes its lock; raises if another holds that."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        while True:
            file = os.open(place / NAME, os.O_RDWR | os.O_CREAT, 0o644)
            if not _locked(file):
                raise _refusal(place, file)
            if _is_still_there(place / NAME, file):
                break
            os.close(file)
    except OSError as problem:
        raise CheckpointError(
            f"Cannot write into the folder {place}: {problem.strerror or problem}. Choose another."
        ) from problem
    # Tells others who holds the lock; a full disk must not prevent training.
    with contextlib.suppress(OSError):
        os.truncate(file, 0)
        os.write(file, f"process {os.getpid()} on {socket.gethostname()}".encode())
    return file


def _locked(file: int) -> bool:
    """Takes the lock if it is free, and says so; a file system without locks has only free ones."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            import msvcrt

            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True
    return True


def _is_still_there(path: Path, file: int) -> bool:
    """Whether an open file still has its name: its last holder may just have removed it."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(file))
    return False


def _refusal(place: Path, file: int) -> CheckpointError:
    holder = os.read(file, 200).decode(errors="replace") or "another process"
    os.close(file)
    return CheckpointError(
        f"{place} is in use: {holder} is training there. Wait until it ends, or use another folder."
    )


def _forget_locks() -> None:
    """A forked child, such as a loader's worker, must not keep the lock when its parent dies."""
    for file, _ in _HELD.values():
        os.close(file)
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)
