"""Pretrained weights from local files: read without running code, and checked to have arrived."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from stochseg.errors import UserError

WRAPPERS = ("state_dict", "model", "teacher")
"""Keys under which training scripts put the weights."""


def read_weights(file: str | Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, or of a file of torch.save, by name. No code of the file is run."""
    file = Path(file)
    if not file.is_file():
        raise UserError(f"pretrained weights: no file {file}; download them first, or leave encoder_weights out")
    try:
        content = (
            load_file(file)
            if file.suffix == ".safetensors"
            else torch.load(file, map_location="cpu", weights_only=True)
        )
    except Exception as error:  # whatever a damaged file does to its reader
        detail = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"pretrained weights: {file} cannot be read ({detail})") from None
    for key in WRAPPERS:
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not any(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"pretrained weights: {file} holds no tensors by name")
    return {key: value for key, value in content.items() if isinstance(value, Tensor)}


def adapt_channels(weight: Tensor, channels: int) -> Tensor:
    """An input convolution for RGB, "out 3 kh kw", made one for so many channels of the same scale."""
    colors = weight.shape[1]
    repeated = weight.repeat(1, -(-channels // colors), 1, 1)[:, :channels]
    if channels == 1:
        return weight.sum(1, keepdim=True)
    return repeated * (colors / channels)


def check_arrived(module: nn.Module, weights: dict[str, Tensor], file: str | Path) -> None:
    """UserError unless nearly all matrices of the module are found in the file, by value.

    Libraries load what fits and go on silently with the rest; a module may change a few tensors on purpose (the input
    convolution, position embeddings)."""
    known = {_print(value) for value in weights.values() if value.ndim > 1}
    matrices = [(name, value) for name, value in module.named_parameters() if value.ndim > 1]
    lost = [name for name, value in matrices if _print(value) not in known]
    if len(lost) > max(2, len(matrices) // 10):
        raise UserError(
            f"pretrained weights: {file} is of another network: {len(lost)} of {len(matrices)} tensors are not in it "
            f"(first: {lost[0]!r})"
        )


def _print(value: Tensor) -> tuple[object, ...]:
    """What tells two tensors apart whatever their names."""
    value = value.detach().float()
    return (value.numel(), *(round(float(x), 3) for x in (value.sum(), value.abs().sum())))
