"""Provenance of measurements: hardware, versions, commit, command."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

import torch

from stochseg._version import __version__


def provenance() -> dict[str, str]:
    """Collect the facts that belong to every measurement: hardware, versions, commit, command."""
    return {
        "hardware": hardware(),
        "torch": torch.__version__,
        "commit": commit(),
        "stochseg": __version__,
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def commit() -> str:
    """Short hash of the checkout of this package, with -dirty if its code has changed; "" outside a checkout."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists() or not (root / "src/stochseg").exists():
        return ""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if git("status", "--porcelain", "src") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def hardware() -> str:
    """CPU and the number of cores available to this process, such as "AMD EPYC, 2 cores"."""
    return f"{cpu_model()}, {core_count()} {'core' if core_count() == 1 else 'cores'}"


def device_name(device: torch.device) -> str:
    """Name of the GPU, or the type of any other device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def cpu_model() -> str:
    """Name of the CPU."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def core_count() -> int:
    """Number of cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
