"""Mixed precision: training in 16 bits on devices that compute in them."""

from __future__ import annotations

import torch
from torch import Tensor

from stochseg.errors import UserError


def has_bfloat16(device: torch.device) -> bool:
    """Whether this device computes in bfloat16 natively, which saves time; emulation costs time."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        return any(getattr(torch.cpu, check, bool)() for check in checks)
    return False


class Precision:
    """Autocast and loss scaling of a run; neither does anything in float32.

    Args:
        name: "float32", "bfloat16", "float16" (CUDA only), or "auto" for bfloat16 if the device computes in it.
        device: the device of the model.

    Raises:
        UserError: if the device has no such precision.
    """

    def __init__(self, name: str, device: torch.device):
        if name == "auto":
            name = "bfloat16" if has_bfloat16(device) else "float32"
        if name == "float16" and device.type != "cuda":
            raise UserError(f"precision float16 needs a CUDA device, got {device}; use bfloat16 or float32")
        if name == "bfloat16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise UserError("this GPU has no bfloat16; use precision=float16 or float32")
        self.device = device.type
        self.dtype = getattr(torch, name)
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "float16")

    def autocast(self) -> torch.autocast:
        """Context of the forward pass."""
        return torch.autocast(self.device, self.dtype, enabled=self.dtype != torch.float32)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of the scaled loss."""
        torch.autograd.backward(self.scaler.scale(loss))

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take an optimizer step, unless gradients overflowed, and adjust the loss scale."""
        self.scaler.step(optimizer)
        self.scaler.update()
