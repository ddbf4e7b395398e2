"""Training in 16 bits where the device computes in them."""

from __future__ import annotations

import torch
from torch import Tensor

from stochseg.errors import UserError


def has_bfloat16(device: torch.device) -> bool:
    """Whether this device computes in bfloat16 itself, which saves time; where it is emulated it costs time."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        return any(getattr(torch.cpu, check, bool)() for check in checks)
    return False


class Precision:
    """Mixed precision where the device has it; float32 otherwise does nothing."""

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

    @property
    def rescues_overflow(self) -> bool:
        """Whether a gradient that is not finite is met by a smaller loss scale and a skipped step."""
        return self.scaler.is_enabled()

    def state(self) -> dict[str, float]:
        """What a resumed run needs to scale the loss as if it had not been stopped; empty where nothing is scaled."""
        return self.scaler.state_dict()

    def restore(self, state: dict[str, float]) -> None:
        if state:
            self.scaler.load_state_dict(state)

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device, self.dtype, enabled=self.dtype != torch.float32)

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        self.scaler.step(optimizer)
        self.scaler.update()
