"""An input of `predict` that was read and checked, and whether its result is there already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.files import recover_folder
from stochseg.inference.plan import Plan
from stochseg.inference.result import StackResult
from stochseg.inference.sources import RESULT, Source, is_result
from stochseg.inference.stacks import Stack
from stochseg.inference.writers.dicom_seg import check_headers
from stochseg.models import StochasticSegmenter
from stochseg.models.io import read_json
from stochseg.types import Normalization

FAR = 20.0
"""Normalized intensities of more standard deviations are remarked on; of a model of 8-bit images, all but 0 to 255."""
FLAT = 0.02
"""So are images that span fewer, without being of one gray: fractions of 1 for a model of 255 gray levels."""
SEEN = 0.2
"""And images of which the model labels a smaller share, because it was trained on what lies in the center."""


@dataclass
class Job:
    """An input that was read. images: "s c h w", normalized; result: its samples, once drawn."""

    source: Source
    stack: Stack
    images: Tensor
    files: list[dict[str, str]]
    notices: tuple[str, ...]
    result: StackResult | None = None
    seconds: float = 0.0


def is_complete(folder: Path, files: Sequence[dict[str, str]], plan: Plan) -> bool:
    """Whether the result is there, whole. One of another image, model or options is not written over unasked."""
    recover_folder(folder)
    if not (folder.is_dir() and is_result(folder)):
        return False
    record = read_json(folder / RESULT)
    names = record.get("files")
    if not names or not all((folder / str(name)).is_file() for name in names):
        return False
    if plan.options.overview and "overview.png" not in names:
        return False
    options = plan.options.model_dump(mode="json", exclude={"overview"})
    changed = [key for key, value in options.items() if record.get("options", {}).get(key) != value]
    if record.get("model", {}).get("sha256") != plan.digest:
        changed.append("model")
    if [f["sha256"] for f in record.get("inputs", [])] != [f["sha256"] for f in files]:
        changed.append("input")
    if changed:
        raise UserError(
            f"{folder} holds a result of another {', '.join(changed)}; replace it with --overwrite, or give another "
            "--out"
        )
    return True


def read_job(source: Source, files: list[dict[str, str]], plan: Plan) -> Job:
    """Read and check; what cannot be sampled fails here, before any time is spent."""
    stack, model, notices = source.read(), plan.model, []
    if stack.alpha and stack.values.ndim == 4 and stack.values.shape[-1] == model.image_channels + 1:
        stack = replace(stack, values=stack.values[..., :-1], alpha=False)
        notices.append("its alpha channel (opacity) was left out")
    prepared = []
    for number, values in enumerate(stack.values):
        try:
            prepared.append(model.prepare(values))
        except UserError as error:
            raise UserError(str(error) if len(stack.values) == 1 else f"slice {number}: {error}") from None
    images = torch.cat(prepared)
    height, width = images.shape[-2:]
    plan.model_for(height, width)
    if plan.large(height, width) and plan.tiled is None:
        notices.append(f"taken whole: {plan.why_whole}")
    notices += _remarks(images, stack, model)
    if stack.headers:
        require("highdicom", "medical", "writing DICOM SEG")
        try:
            check_headers(stack.headers, model.info, (height, width))
        except UserError as error:
            stack = replace(stack, headers=())
            notices.append(f"without fused.dcm: {error}")
    return Job(source, stack, images, files, tuple(notices))


def _remarks(images: Tensor, stack: Stack, model: StochasticSegmenter) -> list[str]:
    """On what can be sampled, but is hardly meant."""
    low, high = (float(v) for v in torch.aminmax(images))
    raw = f"its intensities {stack.values.min():g}..{stack.values.max():g}"
    ask = "what the model was trained on; are they in the same units?"
    remarks = []
    if model.info.normalization == Normalization() and max(-low, high) > 1.01:
        remarks.append(f"{raw} are not the gray levels 0..255 that the model takes; bring them to its window")
    elif max(-low, high) > FAR:
        remarks.append(f"{raw} reach {max(-low, high):.0f} standard deviations from {ask}")
    elif 0 < high - low < FLAT:
        remarks.append(f"{raw} differ by {high - low:.2g} standard deviations of {ask}")
    height, width = images.shape[-2:]
    size = model.info.size
    if size is not None and size != (height, width):
        remarks.append(
            f"its {height}×{width} pixels are taken as they are, but the model was trained on images brought to "
            f"{size[0]}×{size[1]}: bring it to that size first"
        )
    rows, columns = (part.stop - part.start for part in model.window(height, width))
    if rows * columns < SEEN * height * width:
        remarks.append(
            f"the model labels the central {rows}×{columns} of its {height}×{width} pixels, all others are background; "
            "crop it around what is sought, to the size of the images the model was trained on"
        )
    return remarks
