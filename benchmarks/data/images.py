"""Labelled images as tensors; MNIST and Fashion-MNIST, read from their original idx files."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesrule.app.data.errors import DataError
from benchmarks.data.cache import locate, read_unpacked

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images: ``x`` (n, c, h, w), uint8 as loaded, and ``y`` (n,) int64."""

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: tuple[str, ...]

    def floats(self) -> Images:
        """Return the same images as float32 between 0 and 1."""
        return replace(self, x_train=_unit(self.x_train), x_test=_unit(self.x_test))

    def standardised(self) -> Images:
        """Return float32 images with mean 0 and variance 1 per channel of the training images."""
        unit = self.floats()
        std, mean = torch.std_mean(unit.x_train, dim=(0, 2, 3), correction=0, keepdim=True)
        std = torch.where(std > 0, std, torch.ones_like(std))
        return replace(unit, x_train=(unit.x_train - mean) / std, x_test=(unit.x_test - mean) / std)


def _unit(x: Tensor) -> Tensor:
    return x.float().div_(255) if x.dtype == torch.uint8 else x


DIGITS = tuple("0123456789")
GARMENTS = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
# The md5 of the unpacked files: compressed copies differ from mirror to mirror.
MNIST_FILES = {
    "train-images-idx3-ubyte.gz": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte.gz": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte.gz": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte.gz": "27ae3e4e09519cfbb04c329615203637",
}
FASHION_FILES = {
    "train-images-idx3-ubyte.gz": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte.gz": "9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte.gz": "8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte.gz": "15d484375f8d13e6eb1aabb0c3f46965",
}
MNIST_URLS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
FASHION_URLS = (
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
)


def read_idx(raw: bytes, name: str = "idx file") -> Bytes:
    """Parse the idx format: zero, zero, type, number of axes, big-endian sizes, the bytes.

    >>> read_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9])).tolist()
    [7, 9]
    """
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08" or raw[3] == 0:
        raise DataError(
            f"'{name}' is not an idx file of unsigned bytes: it begins with {raw[:4].hex()!r}, "
            "expected '000008' and the number of axes."
        )
    axes = raw[3]
    start = 4 + 4 * axes
    if len(raw) < start:
        raise DataError(f"'{name}' ends inside its idx header ({len(raw)} bytes).")
    shape = struct.unpack(f">{axes}I", raw[4:start])
    size = int(np.prod(shape, dtype=np.int64))
    if len(raw) != start + size:
        raise DataError(
            f"'{name}' announces shape {shape}, {start + size:,} bytes; it has {len(raw):,}."
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def _idx_pair(
    folder: str, part: str, sums: dict[str, str], urls: tuple[str, ...]
) -> tuple[Tensor, Tensor]:
    arrays = []
    for name in (f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz"):
        path = locate(
            f"{folder}/{name}", content=f"md5:{sums[name]}", urls=[f"{url}/{name}" for url in urls]
        )
        arrays.append(read_idx(read_unpacked(path), str(path)))
    x, y = arrays
    if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
        raise DataError(f"'{folder}' has images {x.shape} and labels {y.shape}; they do not fit.")
    return torch.from_numpy(x.copy()).unsqueeze(1), torch.from_numpy(y.astype(np.int64))


def mnist() -> Images:
    """Return MNIST: 60,000 and 10,000 handwritten digits, 1 x 28 x 28."""
    train = _idx_pair("mnist", "train", MNIST_FILES, MNIST_URLS)
    return Images("mnist", *train, *_idx_pair("mnist", "t10k", MNIST_FILES, MNIST_URLS), DIGITS)


def fashion_mnist() -> Images:
    """Return Fashion-MNIST: 60,000 and 10,000 pictures of clothes, 1 x 28 x 28."""
    train = _idx_pair("fashion_mnist", "train", FASHION_FILES, FASHION_URLS)
    test = _idx_pair("fashion_mnist", "t10k", FASHION_FILES, FASHION_URLS)
    return Images("fashion_mnist", *train, *test, GARMENTS)
