"""Images: real content, the formats, and the downloads."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bayesrule.app.data import DataError
from benchmarks.data import Images, cifar10, fashion_mnist, mnist
from benchmarks.data.cifar import RECORD, SHA1, read_cifar_batch
from benchmarks.data.images import read_idx

images_module = sys.modules["benchmarks.data.images"]
cifar_module = sys.modules["benchmarks.data.cifar"]


def idx(array: np.ndarray[Any, Any]) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


@pytest.mark.data
def test_real_mnist(real_data: Path) -> None:
    data = mnist()
    assert data.x_train.shape == (60_000, 1, 28, 28)
    assert data.x_test.shape == (10_000, 1, 28, 28)
    assert data.x_train.dtype == torch.uint8
    assert data.y_train.dtype == torch.int64
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.y_train.bincount().tolist() == counts
    assert data.y_test[:3].tolist() == [7, 2, 1]


@pytest.mark.data
def test_real_fashion_mnist(real_data: Path) -> None:
    data = fashion_mnist()
    assert data.y_train.bincount().tolist() == [6000] * 10
    assert data.y_test.bincount().tolist() == [1000] * 10
    assert data.x_train.double().mean().item() / 255 == pytest.approx(0.28604, abs=1e-5)
    assert data.classes[int(data.y_test[0])] == "ankle boot"


@pytest.mark.data
def test_real_cifar10(real_data: Path) -> None:
    if not any((real_data / folder / "test_batch.bin").exists() for folder in cifar_module.FOLDERS):
        pytest.skip("CIFAR-10 is not in the data folder")
    data = cifar10()
    assert data.x_train.shape == (50_000, 3, 32, 32)
    assert data.y_train.bincount().tolist() == [5000] * 10
    assert data.classes[int(data.y_test[0])] == "cat"


def some_images() -> Images:
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (40, 3, 4, 4), generator=g, dtype=torch.uint8)
    x[:, 2] = 7  # a channel that never changes
    y = torch.arange(40) % 2
    return Images("some", x[:30], y[:30], x[30:], y[30:], ("a", "b"))


def test_floats_are_between_zero_and_one() -> None:
    data = some_images()
    unit = data.floats()
    assert unit.x_train.dtype == torch.float32
    assert torch.equal((unit.x_train * 255).round().to(torch.uint8), data.x_train)
    assert torch.equal(unit.floats().x_train, unit.x_train)


def test_standardised_uses_training_moments_only() -> None:
    data = some_images()
    scaled = data.standardised()
    flat = scaled.x_train.transpose(0, 1).flatten(1).double()
    assert flat.mean(1).abs().max() < 1e-6
    assert flat[:2].std(1, correction=0).sub(1).abs().max() < 1e-6
    assert torch.equal(scaled.x_train[:, 2], torch.zeros_like(scaled.x_train[:, 2]))
    train = data.x_train[:, 0].double() / 255
    expected = (data.x_test[:, 0].double() / 255 - train.mean()) / train.std(correction=0)
    assert torch.allclose(scaled.x_test[:, 0].double(), expected, atol=1e-5)


@pytest.mark.parametrize("shape", [(5,), (3, 2, 4)])
def test_idx_round_trip(shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    assert np.array_equal(read_idx(idx(array)), array)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not an idx file"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x00", "not an idx file of unsigned bytes"),
        (b"PNG....", "not an idx file"),
        (b"\x00\x00\x08\x03\x00\x00", "ends inside its idx header"),
        (idx(np.zeros((2, 3)))[:-1], r"announces shape \(2, 3\), 18 bytes; it has 17"),
        (idx(np.zeros((2, 3))) + b"x", "it has 19"),
    ],
)
def test_idx_faults(raw: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_idx(raw)


def test_cifar_records() -> None:
    rows = np.arange(3 * RECORD, dtype=np.int64).reshape(3, RECORD) % 251
    rows[:, 0] = [9, 0, 4]
    x, y = read_cifar_batch(rows.astype(np.uint8).tobytes())
    assert y.tolist() == [9, 0, 4]
    # Red, green and blue planes follow each other, each row by row.
    assert x[1, 2, 3, 5] == rows[1, 1 + 2 * 1024 + 3 * 32 + 5]


def test_cifar_faults() -> None:
    with pytest.raises(DataError, match="multiple"):
        read_cifar_batch(bytes(RECORD - 1))
    with pytest.raises(DataError, match="label 10"):
        read_cifar_batch(bytes([10]) + bytes(RECORD - 1))


def test_mnist_by_download(cache: Path, site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    sums = {}
    for part, n in (("train", 6), ("t10k", 2)):
        for kind, shape in (("images-idx3", (n, 28, 28)), ("labels-idx1", (n,))):
            raw = idx(rng.integers(0, 10, shape))
            name = f"{part}-{kind}-ubyte.gz"
            site.files[name] = gzip.compress(raw, 1)
            sums[name] = hashlib.md5(raw).hexdigest()
    monkeypatch.setattr(images_module, "MNIST_FILES", sums)
    monkeypatch.setattr(images_module, "MNIST_URLS", (f"{site.url}/gone", site.url))
    data = mnist()
    assert data.x_train.shape == (6, 1, 28, 28)
    assert data.y_test.shape == (2,)
    assert len(site.asked) == 8
    mnist()
    assert len(site.asked) == 8


def cifar_site(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in SHA1:
            rows = rng.integers(0, 10, (2, RECORD)).astype(np.uint8)
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = rows.size
            tar.addfile(info, io.BytesIO(rows.tobytes()))
            monkeypatch.setitem(SHA1, name, hashlib.sha1(rows.tobytes()).hexdigest())
    site.files["c.tar.gz"] = packed.getvalue()
    monkeypatch.setattr(cifar_module, "ARCHIVE_MD5", hashlib.md5(packed.getvalue()).hexdigest())
    monkeypatch.setattr(cifar_module, "URLS", (f"{site.url}/c.tar.gz",))


def test_cifar10_by_download(cache: Path, site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cifar_site(site, monkeypatch)
    data = cifar10()
    assert data.x_train.shape == (10, 3, 32, 32)
    assert data.x_test.shape == (2, 3, 32, 32)
    assert torch.equal(cifar10().x_train, data.x_train)
    assert site.asked == ["c.tar.gz"]
    assert sorted(path.name for path in (cache / "cifar10").iterdir()) == sorted(SHA1)


def test_cifar10_with_a_changed_batch_is_refused(
    cache: Path, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cifar_site(site, monkeypatch)
    monkeypatch.setitem(SHA1, "data_batch_3.bin", "0" * 40)
    with pytest.raises(DataError, match=r"data_batch_3\.bin.*sha1.*expected 0000"):
        cifar10()


def test_cifar10_archive_without_batches_is_refused(
    cache: Path, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cifar_site(site, monkeypatch)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz"):
        pass
    site.files["c.tar.gz"] = packed.getvalue()
    monkeypatch.setattr(cifar_module, "ARCHIVE_MD5", hashlib.md5(packed.getvalue()).hexdigest())
    with pytest.raises(DataError, match="not CIFAR-10's binary archive"):
        cifar10()
