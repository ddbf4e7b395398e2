"""Where to compute."""

from __future__ import annotations

import torch

from stochseg.errors import UserError


def pick_device(name: str = "auto") -> torch.device:
    """A device by name; "auto" is the first of CUDA, Apple's MPS, CPU that is there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"device {name!r} cannot be used here ({str(error).splitlines()[0]}); try --device cpu"
        ) from None
    return device
