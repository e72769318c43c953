"""The software versions and the machine that produced a result."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

import torch


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    by_package = {"python": platform.python_version()}
    for package in ("bayesrule", "torch", "numpy"):
        try:
            by_package[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            by_package[package] = "from source"
    return by_package


def machine() -> str:
    """The machine in a few words: processor, cores, accelerator."""
    words = [_processor(), f"{os.cpu_count()} cores", f"{torch.get_num_threads()} torch threads"]
    if torch.cuda.is_available():
        words.append(torch.cuda.get_device_name())
    return ", ".join(words)


def _processor() -> str:
    """The processor's name, on Linux from /proc/cpuinfo."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
