"""Devices for tests that run on the CPU everywhere and on an accelerator where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

ACCELERATORS = [
    name
    for name, available in (("cuda", torch.cuda.is_available()), ("mps", torch.backends.mps.is_available()))
    if available
]


def on_accelerators(*values: Any) -> list[Any]:
    """Parameters (*values, device) for each accelerator, marked `gpu`; one that is skipped where there is none."""
    if ACCELERATORS:
        return [pytest.param(*values, device, marks=pytest.mark.gpu) for device in ACCELERATORS]
    missing = pytest.mark.skip(reason="no accelerator (CUDA or MPS) on this machine")
    return [pytest.param(*values, "cuda", marks=[pytest.mark.gpu, missing])]


DEVICES = ["cpu", *on_accelerators()]
"""Values of the parameter `device`: the CPU, and the accelerators of this machine."""


class _NoReads(TorchDispatchMode):
    """Raise when an operation copies values from `device` to the host; copies to the device are allowed."""

    def __init__(self, device: str):
        super().__init__()
        self.device = torch.device(device)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense" and self._is_here(args[0]):
            raise AssertionError("a value was read from the device")
        if name in ("_to_copy", "copy_"):
            source = args[0] if name == "_to_copy" else args[1]
            target = torch.device((kwargs or {}).get("device") or args[0].device)
            if self._is_here(source) and target.type == "cpu":
                raise AssertionError("a tensor was copied from the device")
            if source.device.type == "cpu" and target.type != "cpu":
                with _sync_debug_mode("default"):
                    return func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _is_here(self, tensor: Tensor) -> bool:
        return tensor.device.type == self.device.type


@contextmanager
def _sync_debug_mode(mode: str) -> Iterator[None]:
    """What CUDA does when the host waits for it; nothing without CUDA."""
    if not torch.cuda.is_available():
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextmanager
def no_device_reads(device: str) -> Iterator[None]:
    """Raise when the host reads a value of the device; on CUDA also when it waits for the device in another way."""
    with _sync_debug_mode("error"), _NoReads(device):
        yield
