"""Inputs of `predict` that are read and checked, ready to be sampled."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.inference.plan import Plan
from stochseg.inference.result import StackResult
from stochseg.inference.sources import Source, read_stack
from stochseg.inference.stacks import Stack
from stochseg.inference.writers.dicom_seg import check_headers
from stochseg.models import StochasticSegmenter
from stochseg.types import Normalization

MAX_DEVIATION = 20.0
"""A notice is printed for normalized intensities of more standard deviations."""
MIN_RANGE = 0.02
"""A notice is printed for images that span fewer standard deviations without being constant: fractions of 1 for a model
of 255 gray levels."""
MIN_LABELED = 0.2
"""A notice is printed if the model labels a smaller part of the image, because it was trained on its center."""


@dataclass
class Job:
    """An input to sample.

    images: "s c h w", normalized; files: its files with their checksums; notices: for the user; result: its samples,
    once they are drawn; seconds: the time this took.
    """

    source: Source
    stack: Stack
    images: Tensor
    files: list[dict[str, str]]
    notices: tuple[str, ...]
    result: StackResult | None = None
    seconds: float = 0.0


def read_job(source: Source, files: list[dict[str, str]], plan: Plan) -> Job:
    """Read and check an input; raise a `UserError` if it cannot be sampled, before any time is spent on it."""
    stack, model = read_stack(source.files, source.axis), plan.model
    notices: list[str] = []
    if stack.alpha and stack.values.ndim == 4 and stack.values.shape[-1] == model.image_channels + 1:
        stack = replace(stack, values=stack.values[..., :-1], alpha=False)
        notices.append("its alpha channel (opacity) was dropped")
    images = _prepare(stack, model)
    height, width = images.shape[-2:]
    plan.model_for(height, width)
    if plan.is_large(height, width) and plan.tiled is None:
        notices.append(f"taken whole: {plan.why_whole}")
    notices += _check_intensities(images, stack, model) + _check_size(height, width, model)
    if stack.headers:
        require("highdicom", "medical", "writing DICOM SEG")
        try:
            check_headers(stack.headers, model.info, (height, width))
        except UserError as error:
            stack = replace(stack, headers=())
            notices.append(f"without fused.dcm: {error}")
    return Job(source, stack, images, files, tuple(notices))


def _prepare(stack: Stack, model: StochasticSegmenter) -> Tensor:
    """Normalize the slices, "s c h w"."""
    prepared = []
    for number, values in enumerate(stack.values):
        try:
            prepared.append(model.prepare(values))
        except UserError as error:
            raise UserError(str(error) if len(stack.values) == 1 else f"slice {number}: {error}") from None
    return torch.cat(prepared)


def _check_intensities(images: Tensor, stack: Stack, model: StochasticSegmenter) -> list[str]:
    """Notice intensities that can be sampled but are implausible."""
    low, high = (float(v) for v in torch.aminmax(images))
    raw = f"its intensities {stack.values.min():g}..{stack.values.max():g}"
    if model.info.normalization == Normalization() and max(-low, high) > 1.01:
        return [f"{raw} are not the gray levels 0..255 that the model expects; apply the model's window to them"]
    if max(-low, high) > MAX_DEVIATION:
        return [f"{raw} reach {max(-low, high):.0f} standard deviations from the training data; check their units"]
    if 0 < high - low < MIN_RANGE:
        return [f"{raw} span {high - low:.2g} standard deviations of the training data; check their units"]
    return []


def _check_size(height: int, width: int, model: StochasticSegmenter) -> list[str]:
    """Notice sizes that can be sampled but differ from the training images."""
    notices = []
    size = model.info.size
    if size is not None and size != (height, width):
        notices.append(
            f"its {height}×{width} pixels are not resized, but the training images were resized to {size[0]}×{size[1]}:"
            " resize it first"
        )
    rows, columns = (part.stop - part.start for part in model.window(height, width))
    if rows * columns < MIN_LABELED * height * width:
        notices.append(
            f"the model labels the central {rows}×{columns} of its {height}×{width} pixels, all others are background; "
            "crop it around the region of interest, to the size of the training images"
        )
    return notices
