"""The files that a run wrote into its folder, by name and checksum; no others are touched."""

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

    Before a file takes its name its checksum is listed, beside that of the file it replaces. So the
    list fits the folder at whatever moment a run is killed.
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
        """The names of the weight files that the run wrote."""
        return [name for name in self._sums if _WEIGHTS.fullmatch(name)]

    def adopt(self, name: str) -> None:
        """Lists a file of the run that a former version wrote without a list."""
        self._sums.setdefault(name, [_checksum(self.folder / name)])

    def refuse_foreign(self, name: str | None = None) -> None:
        """Raises if the run did not write the file of this name; without one, any weight file."""
        if name is None:
            names = [file.name for file in self._weight_files()]
        else:
            names = [name] if os.path.lexists(self.folder / name) else []
        for existing in names:
            if existing not in self._sums:
                raise CheckpointError(
                    f"{self.folder} holds a {existing} that no run wrote there; it is left as it "
                    "is. Move it away, or use another folder."
                )

    def write(self, name: str, payload: bytes, *, instead_of: Iterable[str] = ()) -> None:
        """Writes a file of the run; removes others once its bytes are on the disk."""
        self.refuse_foreign(name)

        def before() -> None:
            self._sums[name] = [*self._sums.get(name, [])[-1:], _sha256(payload)]
            self._write()
            for old in instead_of:
                (self.folder / old).unlink(missing_ok=True)

        write_atomically(self.folder / name, payload, before)

    def check(self, name: str) -> None:
        """Raises if a file is not as the run wrote it; warns where there is no list."""
        path = self.folder / name
        if not self.listed:
            warnings.warn(
                f"{self.folder} was written by a version that kept no checksums, so that damage to "
                f"{name} would not be noticed.",
                stacklevel=3,
            )
            return
        last_read = self._sums
        while _checksum(path) not in self._sums.get(name, ()):
            # A run that is still training writes the new list before the new file.
            self._sums = self._read()
            if self._sums == last_read:
                raise CheckpointError(
                    f"{path} is not as its run wrote it: it was damaged or edited, or comes from "
                    "another model or method. Restore it from a copy, or remove it and fit again."
                )
            last_read = self._sums

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
        """Removes files that a killed run left half written."""
        for file in self.folder.glob(f".*{HALF_WRITTEN}"):
            name = re.sub(r"^\.|\.\d+$", "", file.name.removesuffix(HALF_WRITTEN))
            if name in (*self._sums, NAME) or _WEIGHTS.fullmatch(name):
                file.unlink(missing_ok=True)

    def _write(self) -> None:
        if not self.listed and os.path.lexists(self.folder / NAME):
            raise CheckpointError(f"{self.folder / NAME} is not a list of files that a run wrote.")
        document = {"format": FORMAT, "files": self._sums, "checksum": _list_sum(self._sums)}
        write_atomically(self.folder / NAME, (json.dumps(document, indent=1) + "\n").encode())
        self.listed = True

    def _read(self) -> dict[str, list[str]]:
        file = self.folder / NAME
        try:
            document = json.loads(file.read_bytes())
            files, checksum = document["files"], document["checksum"]
            if document["format"] == FORMAT and checksum == _list_sum(files) and _plain(files):
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
        """The weight files of a folder without a list, with their checksums."""
        files = filter(checkpoint.is_checkpoint, self._weight_files())
        return {file.name: [_checksum(file)] for file in files}

    def _weight_files(self) -> list[Path]:
        """The files that have a name of weights, whoever wrote them."""
        return [file for file in self.folder.glob("*") if _WEIGHTS.fullmatch(file.name)]


def _plain(files: Any) -> bool:
    """Whether all names are without folders."""
    return all(Path(name).name == name for name in files)


def _list_sum(files: Any) -> str:
    return _sha256(json.dumps(files, sort_keys=True).encode())


def _sha256(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


def _checksum(path: Path) -> str:
    if not path.is_file():
        raise CheckpointError(f"There is no {path}.")
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
