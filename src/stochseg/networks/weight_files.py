"""Pretrained weights in local files: read without running code, and checked after loading."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from stochseg.errors import UserError

WRAPPERS = ("state_dict", "model", "teacher")
"""Keys under which training scripts store the weights."""


def read_tensor_file(file: Path, what: str) -> Any:
    """Read a .safetensors file or a file of torch.save without running code of the file.

    Args:
        file: The file. Next to tensors it may contain numpy arrays, which optimizers and schedulers leave in it.
        what: What the file should be, for error messages.

    Raises:
        UserError: If there is no such file, it is damaged, or it contains objects.
    """
    if not file.is_file():
        raise UserError(f"{what}: no file {file}; check the path, or download it first")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        with torch.serialization.safe_globals(_array_constructors()):
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # readers raise many kinds for damaged files
        name = re.search(r"GLOBAL (\S+)", str(error))
        if name is not None:
            raise UserError(
                f"{what}: {file} contains more than tensors ({name[1]}); refused, none of it was run"
            ) from None
        detail = (str(error) or type(error).__name__).splitlines()[0]
        # torch advises to load such a file without protection.
        detail = "" if "weights_only" in detail else f" ({detail})"
        raise UserError(f"{what}: {file} is damaged or no file of torch.save{detail}; check the path") from None


def _array_constructors() -> list[Any]:
    """What pickles of numpy arrays call, under the names of numpy 2 and 1."""
    core = getattr(np, "_core", None) or np.core
    found: list[Any] = [np.ndarray, np.dtype, *(type(np.dtype(kind)) for kind in ("i4", "i8", "f4", "f8", "?"))]
    for place in ("numpy._core.multiarray", "numpy.core.multiarray"):
        found += [(getattr(core.multiarray, name), f"{place}.{name}") for name in ("_reconstruct", "scalar")]
    return found


def read_weights(file: str | Path) -> dict[str, Tensor]:
    """Read the named tensors of a .safetensors file or of a file of torch.save, without running code of the file."""
    content = read_tensor_file(Path(file), "pretrained weights")
    for key in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not any(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"pretrained weights: {file} contains no named tensors")
    return {key: value for key, value in content.items() if isinstance(value, Tensor)}


def adapt_channels(weight: Tensor, channels: int) -> Tensor:
    """Adapt an input convolution for RGB, "out 3 kh kw", to another number of channels at the same output scale."""
    colors = weight.shape[1]
    if channels == 1:
        return weight.sum(1, keepdim=True)
    return weight.repeat(1, -(-channels // colors), 1, 1)[:, :channels] * (colors / channels)


def check_loaded(module: nn.Module, weights: Mapping[str, Tensor], file: str | Path) -> None:
    """Raise UserError unless nearly all matrices of the module have the value of a tensor in the file.

    Libraries load the tensors that fit and silently skip the rest. A few may differ on purpose: the input convolution
    and position embeddings.
    """
    known = {_digest(value) for value in weights.values() if value.ndim > 1}
    matrices = [(name, value) for name, value in module.named_parameters() if value.ndim > 1]
    lost = [name for name, value in matrices if _digest(value) not in known]
    if len(lost) > max(2, len(matrices) // 10):
        raise UserError(
            f"pretrained weights: {file} belongs to another network: {len(lost)} of {len(matrices)} tensors are "
            f"missing (first: {lost[0]!r})"
        )


def _digest(value: Tensor) -> bytes:
    """Identify a tensor regardless of its name, shape and layout in memory."""
    return hashlib.blake2b(value.detach().float().contiguous().cpu().numpy().tobytes()).digest()
