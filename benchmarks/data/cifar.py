"""CIFAR-10, read from its six binary batches."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bayesrule.app.data.errors import DataError
from benchmarks.data.cache import UNREADABLE, cache_folder, find, locate, read_unpacked, verify
from benchmarks.data.download import place
from benchmarks.data.images import Images

Bytes = NDArray[np.uint8]

OBJECTS = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
SHA1 = {
    "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
}
FOLDERS = ("cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin")
ARCHIVE = "cifar10/cifar-10-binary.tar.gz"
ARCHIVE_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
URLS = ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",)
RECORD = 1 + 3 * 32 * 32


def read_cifar_batch(raw: bytes, name: str = "batch") -> tuple[Bytes, Bytes]:
    """Parse records of one label and 3 x 32 x 32 pixels into (n, 3, 32, 32) and (n,)."""
    if not raw or len(raw) % RECORD:
        raise DataError(
            f"'{name}' has {len(raw):,} bytes, which is not a multiple of CIFAR-10's {RECORD} "
            "bytes per image."
        )
    rows = np.frombuffer(raw, np.uint8).reshape(-1, RECORD)
    if (largest := int(rows[:, 0].max())) >= len(OBJECTS):
        raise DataError(f"'{name}' has a label {largest}; CIFAR-10's labels are 0 to 9.")
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def _extract(tar: tarfile.TarFile, name: str) -> None:
    member = tar.extractfile(f"cifar-10-batches-bin/{name}")
    if member is None:
        raise KeyError(f"'{name}' is not a plain file in it")
    with member:
        raw = member.read()

    def write(part: Path) -> None:
        part.write_bytes(raw)
        verify(part, content=f"sha1:{SHA1[name]}")

    place(cache_folder() / FOLDERS[0] / name, write)


def _unpack() -> None:
    archive = locate(ARCHIVE, md5=ARCHIVE_MD5, urls=URLS)
    try:
        with tarfile.open(archive) as tar:
            for name in SHA1:
                _extract(tar, name)
    except (tarfile.TarError, KeyError, *UNREADABLE) as error:
        raise DataError(f"'{archive}' is not CIFAR-10's binary archive: {error}.") from error
    if archive.is_relative_to(cache_folder()):
        archive.unlink()  # its content lies beside it now


def _search(name: str) -> Path | None:
    return next((path for folder in FOLDERS if (path := find(f"{folder}/{name}"))), None)


def _batch(name: str) -> tuple[Bytes, Bytes]:
    path = _search(name)
    if path is None:
        _unpack()
        path = cache_folder() / FOLDERS[0] / name
    verify(path, content=f"sha1:{SHA1[name]}")
    return read_cifar_batch(read_unpacked(path), str(path))


def cifar10() -> Images:
    """Return CIFAR-10: 50,000 and 10,000 colour images of ten classes, 3 x 32 x 32.

    The binary batches are looked for in ``cifar10/`` and ``cifar-10-batches-bin/`` of the data
    folder and the cache before the archive is downloaded.
    """
    *train, test = [_batch(name) for name in SHA1]
    x = torch.from_numpy(np.concatenate([images for images, _ in train]))
    y = torch.from_numpy(np.concatenate([labels for _, labels in train]).astype(np.int64))
    x_test, y_test = torch.from_numpy(test[0].copy()), torch.from_numpy(test[1].astype(np.int64))
    return Images("cifar10", x, y, x_test, y_test, OBJECTS)
