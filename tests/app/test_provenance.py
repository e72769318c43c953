"""What stands beside every result."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

import pytest
import torch

from bayesrule.app import provenance


def test_versions_are_those_that_run() -> None:
    found = provenance.versions()
    assert list(found) == ["python", "bayesrule", "torch", "numpy"]
    assert found["python"] == platform.python_version()
    assert found["torch"] == torch.__version__


def test_a_package_that_is_not_installed_runs_from_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", version)
    assert provenance.versions()["bayesrule"] == "from source"


def test_the_machine_is_said_in_a_few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Accelerator 9")
    monkeypatch.setattr(provenance, "_processor", lambda: "Processor 1")
    assert provenance.machine() == "Processor 1, 7 cores, 3 torch threads, Accelerator 9"


def test_the_processor_is_named_with_and_without_a_kernel_to_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Path, "is_file", lambda _: True)
    monkeypatch.setattr(Path, "read_text", lambda _: "flags: a\nmodel name\t: Some CPU @ 2 GHz\n")
    assert provenance._processor() == "Some CPU @ 2 GHz"
    monkeypatch.setattr(Path, "is_file", lambda _: False)
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert provenance._processor() == "riscv64"
