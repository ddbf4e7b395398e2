"""The device to compute on."""

from __future__ import annotations

import torch

from stochseg.errors import UserError

DEVICES = "auto, cpu, cuda, cuda:N, mps"


def pick_device(name: str = "auto") -> torch.device:
    """Return a device by name and check that it works.

    Args:
        name: "auto" for the first available of CUDA, Apple's MPS and CPU, or a device of torch such as "cuda:1".

    Returns:
        The device.

    Raises:
        UserError: If the name is unknown or the device is not available.

    Example:
        >>> pick_device("cpu")
        device(type='cpu')
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise UserError(f"unknown device {name!r}; expected one of {DEVICES}") from None
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        detail = str(error).splitlines()[0]
        raise UserError(f"device {name!r} is not available ({detail}); use --device cpu") from None
    return device
