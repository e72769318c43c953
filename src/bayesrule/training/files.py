"""The files that a run wrote into its folder: known by name and checksum; no others are touched."""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bayesrule.training import checkpoint
from bayesrule.training.checkpoint import HALF_WRITTEN, CheckpointError, Place, write_atomically

NAME = "files.json"
FORMAT = 1
_WEIGHTS = re.compile(r"(checkpoint|best-\d+|begin-\d+|member-\d+|final)\.safetensors")


class Files:
    """The files of one run, listed in `files.json` with the checksums that they may have.

    A file is listed before it takes its name, beside the checksum of the file that it replaces: at
    whatever moment a run is killed, what lies in the folder is what the list says.
    """

    def __init__(self, folder: Place) -> None:
        self.folder = Path(folder)
        self.listed = (self.folder / NAME).is_file()
        """Whether there is a list; folders of former versions have none."""
        self._sums = self._read() if self.listed else self._former()

    def __contains__(self, name: str) -> bool:
        """Whether the run wrote a file of this name, and it is there."""
        return name in self._sums and (self.folder / name).is_file()

    def weights(self) -> list[str]:
        """The files of weights that the run wrote."""
        return [name for name in self._sums if _WEIGHTS.fullmatch(name)]

    def adopt(self, name: str) -> None:
        """Takes a file of a former version for one of the run's own."""
        self._sums.setdefault(name, [_checksum(self.folder / name)])

    def refuse_foreign(self, name: str | None = None) -> None:
        """Raises where a file of this name, or any that looks like weights, is not the run's."""
        if name is None:
            found = [file.name for file in self.folder.glob("*") if _WEIGHTS.fullmatch(file.name)]
        else:
            found = [name] if os.path.lexists(self.folder / name) else []
        for other in found:
            if other not in self._sums:
                raise CheckpointError(
                    f"{self.folder} holds a {other} that no run wrote there; it is left as it is. "
                    "Move it away, or use another folder."
                )

    def write(self, name: str, payload: bytes, *, instead_of: Iterable[str] = ()) -> None:
        """Writes a file of the run; once the bytes are on the disk others may go for it."""
        self.refuse_foreign(name)

        def before() -> None:
            self._sums[name] = [*self._sums.get(name, [])[-1:], _sha256(payload)]
            self._write()
            for old in instead_of:
                (self.folder / old).unlink(missing_ok=True)

        write_atomically(self.folder / name, payload, before)

    def check(self, name: str) -> None:
        """Raises where a file is not as the run wrote it; for former versions a note is all."""
        path = self.folder / name
        if not self.listed:
            warnings.warn(
                f"{self.folder} was written by a version that kept no checksums, so that damage to "
                f"{name} would not be noticed.",
                stacklevel=3,
            )
            return
        known = self._sums
        while _checksum(path) not in self._sums.get(name, ()):
            # A run that goes on meanwhile writes a new list before a new file.
            self._sums = self._read()
            if self._sums == known:
                raise CheckpointError(
                    f"{path} is not as its run wrote it: it was damaged or edited, or comes from "
                    "another model or method. Restore it from a copy, or remove it and fit again."
                )
            known = self._sums

    def remove(self, *names: str) -> None:
        """Removes files of the run, in this order, and the list when nothing is left on it."""
        for name in names:
            (self.folder / name).unlink(missing_ok=True)
            self._sums.pop(name, None)
        if self._sums:
            self._write()
        elif self.listed:
            (self.folder / NAME).unlink(missing_ok=True)
            self.listed = False

    def tidy(self) -> None:
        """Removes what a run left half written when it was killed."""
        for file in self.folder.glob(f".*{HALF_WRITTEN}"):
            name = re.sub(r"^\.|\.\d+$", "", file.name.removesuffix(HALF_WRITTEN))
            if name in (*self._sums, NAME) or _WEIGHTS.fullmatch(name):
                file.unlink(missing_ok=True)

    def _write(self) -> None:
        if not self.listed and os.path.lexists(self.folder / NAME):
            raise CheckpointError(f"{self.folder / NAME} is not a list of files that a run wrote.")
        document = {"format": FORMAT, "files": self._sums, "checksum": _of_list(self._sums)}
        write_atomically(self.folder / NAME, (json.dumps(document, indent=1) + "\n").encode())
        self.listed = True

    def _read(self) -> dict[str, list[str]]:
        file = self.folder / NAME
        try:
            document = json.loads(file.read_bytes())
            files, whole = document["files"], document["checksum"]
            if document["format"] == FORMAT and whole == _of_list(files) and _plain(files):
                return files
        except OSError as problem:
            raise CheckpointError(f"Cannot read {file}: {problem.strerror}.") from problem
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        raise CheckpointError(
            f"{file} is no list of the files of a run that this version reads; it may be damaged. "
            "Restore it from a copy; without it the run is read unchecked."
        )

    def _former(self) -> dict[str, list[str]]:
        """Of a folder without a list, the files of weights that a run wrote."""
        found = [file for file in self.folder.glob("*") if _WEIGHTS.fullmatch(file.name)]
        return {file.name: [_checksum(file)] for file in found if checkpoint.is_checkpoint(file)}


def _plain(files: Any) -> bool:
    """Whether all names are those of files in the folder itself."""
    return all(Path(name).name == name for name in files)


def _of_list(files: Any) -> str:
    return _sha256(json.dumps(files, sort_keys=True).encode())


def _sha256(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


def _checksum(path: Path) -> str:
    if not path.is_file():
        raise CheckpointError(f"There is no {path}.")
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
