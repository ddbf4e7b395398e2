"""Images, volumes and label maps that come from outside: convert them to tensors and check them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stochseg.data.readers.pictures import SeveralImages
from stochseg.data.readers.trees import Tree
from stochseg.errors import UserError
from stochseg.models.intensities import check_intensities
from stochseg.types import DatasetInfo

UNKNOWN = -1
"""The label of pixels that a caller of `sample` does not know."""

PIL_MODES = {"P": "RGB", "1": "L"}
"""Palette and 1-bit pictures hold indices; converting them gives their intensities."""

ACCEPTED = {
    2: 'an array "h w" or "h w c", a batch "b h w" or "b h w c", a PIL image, the path of an image file, a list of '
    'these, or a normalized float tensor "b c h w"',
    3: 'an array "d h w" or "d h w c", a batch "b d h w" or "b d h w c", a list of these, or a normalized float tensor '
    '"b c d h w"',
}
"""What `sample` takes, by the number of spatial dimensions of the model."""

FILES = "segment the file with `stochseg predict` or stochseg.inference.predict"
HINTS = {
    2: f'The model takes images. For a volume, pass its slices as an array "b h w", or {FILES}',
    3: f'The model takes volumes. For one slice, pass an array "1 h w"; {FILES}',
}
SHAPES = {2: "b c h w", 3: "b c d h w"}


def prepare_images(image: Any, info: DatasetInfo, *, allow_unusual: bool = False) -> Tensor:
    """Convert any accepted image or volume to a checked tensor "b c *space"; raw intensities are normalized.

    Images unlike the training images are refused unless `allow_unusual` (see `check_intensities`).
    """
    if isinstance(image, (list, tuple)):
        if not image:
            raise UserError(f"image: expected {ACCEPTED[info.spatial_dims]}; got an empty list")
        if any(isinstance(each, (int, float)) for each in image):
            raise UserError(
                "image: got a list of numbers, but the entries of a list are images; pass the pixels as an array: "
                f"numpy.asarray(image). Expected {ACCEPTED[info.spatial_dims]}"
            )
        parts = [prepare_images(each, info, allow_unusual=allow_unusual) for each in image]
        sizes = sorted({tuple(part.shape[2:]) for part in parts})
        if len(sizes) > 1:
            shown = ", ".join("×".join(map(str, size)) for size in sizes)
            raise UserError(f"image: the images of a list must have one size, got {shown}; sample them one at a time")
        return torch.cat(parts)
    if isinstance(image, Tensor):
        batch = image.float() if image.is_floating_point() else image  # float64 may hold values beyond float32
    else:
        raw = np.ascontiguousarray(_raw_batch(image, info.image_channels, info.spatial_dims).astype(np.float32))
        batch = torch.cat([info.normalization(one.movedim(-1, 0))[None] for one in torch.from_numpy(raw)])
    check_images(batch, info)
    if not allow_unusual:
        for one in batch:
            check_intensities(one, info, normalized=isinstance(image, Tensor))
    return batch


def _raw_batch(image: Any, channels: int, dims: int) -> np.ndarray[Any, Any]:
    """Raw intensities "b *space c" of a path, a PIL image or an array."""
    if isinstance(image, (str, Path)):
        if dims == 3:
            raise UserError(f"image: expected {ACCEPTED[dims]}; got a path; {FILES}")
        image = read_image(Path(image))
    if getattr(image, "mode", None) in PIL_MODES:
        image = image.convert(PIL_MODES[image.mode])
    try:
        raw = np.asarray(image)
    except (ValueError, TypeError):  # nested sequences of unequal lengths
        raise UserError(f"image: expected {ACCEPTED[dims]}; got {type(image).__name__}") from None
    if raw.ndim == dims or (channels == 1 and raw.ndim == dims + 1 and raw.shape[-1] not in (1, 3, 4)):  # 3, 4: colors
        raw = raw[..., None]  # gray, one image or a batch
    if raw.ndim == dims + 1:
        raw = raw[None]
    if raw.ndim != dims + 2 or raw.dtype.kind not in "buif" or (channels == 1 and raw.shape[-1] > 4):
        got = f"{type(image).__name__} of shape {np.shape(image)} and type {raw.dtype}"
        raise UserError(f"image: expected {ACCEPTED[dims]}; got {got}. {HINTS[dims]}")
    if raw.shape[-1] != channels:
        remedy = "convert it to grayscale" if channels == 1 else f"convert it to {channels} channels"
        raise UserError(
            f'image "{SHAPES[dims][4:]} c": the model takes {channels} channel(s), got {raw.shape[-1]}; {remedy}'
        )
    return raw


def read_image(file: Path) -> np.ndarray[Any, Any]:
    """Raw intensities "h w" or "h w c" of an image file, read as in training."""
    if not file.exists():
        raise UserError(f"no such image: {file}")
    if file.is_dir():
        raise UserError(f"{file} is a folder; pass image files, e.g. the files of {file}/*.png")
    try:
        return Tree(file.parent).picture(file.name).values
    except SeveralImages as error:  # whose own remedy is for training data
        raise UserError(f"{str(error).partition(', expected')[0]}, expected one 2-D image. {HINTS[2]}") from None


def check_images(image: Tensor, info: DatasetInfo) -> None:
    """Raise a UserError unless `image` is a finite float tensor "b c *space" as the model takes it."""
    dims, shape = info.spatial_dims, SHAPES[info.spatial_dims]
    if image.ndim != dims + 2 or not image.is_floating_point():
        raise UserError(
            f'image "{shape}": expected a float tensor of {dims + 2} dimensions, got {tuple(image.shape)} '
            f"{image.dtype}; pass raw intensities as a numpy array instead. {HINTS[dims]}"
        )
    if image.shape[1] != info.image_channels:
        raise UserError(f'image "{shape}": expected c={info.image_channels}, got shape {tuple(image.shape)}')
    if image.numel() == 0:
        raise UserError(f'image "{shape}": empty, shape {tuple(image.shape)}')
    finite = torch.isfinite(image)
    if not bool(finite.all()):
        raise UserError(f"image: {int((~finite).sum())} value(s) are NaN or infinite; replace them before segmenting")


def check_raters(image: Tensor, raters: Tensor, mask: Tensor | None, num_classes: int) -> None:
    """Raise a UserError unless `raters` "b k *space" fits the image and holds classes wherever the mask is True."""
    size = (image.shape[0], *image.shape[2:])
    if raters.ndim != image.ndim or (raters.shape[0], *raters.shape[2:]) != size or raters.shape[1] < 1:
        raise UserError(
            f'raters "b k *space": expected {size[0]} images of {"×".join(map(str, size[1:]))} like the image, '
            f"k >= 1 raters, got shape {tuple(raters.shape)}"
        )
    if raters.is_floating_point():
        raise UserError(f"raters: expected integers, got {raters.dtype}; convert with raters.long()")
    if mask is not None and (mask.shape != raters.shape or mask.dtype != torch.bool):
        raise UserError(
            f"mask: expected torch.bool of the raters' shape {tuple(raters.shape)}, False = void, "
            f"got {mask.dtype} of shape {tuple(mask.shape)}"
        )
    labeled = raters.long() if mask is None else raters.long().masked_fill(~mask, 0)
    low, high = (int(v) for v in torch.aminmax(labeled))
    if low < 0 or high >= num_classes:
        raise UserError(
            f"raters: expected 0..{num_classes - 1} for {num_classes} classes, got {low}..{high}; "
            "exclude void pixels with a mask (`ignore` in the data set's info), or create the model with more classes"
        )


def check_rater_facts(raters: Tensor, rater_count: Tensor | None, rater_index: Tensor | None) -> tuple[Tensor, Tensor]:
    """The count "b" of the maps of each image and the raters "b k" of the maps; by default all, and unknown ones.

    Raises:
        UserError: if they do not fit `raters` "b k *space".
    """
    b, k = raters.shape[:2]
    if rater_count is None:
        rater_count = torch.full((b,), k)
    elif rater_count.shape != (b,) or int(rater_count.min()) < 1 or int(rater_count.max()) > k:
        raise UserError(f'rater_count "b": expected {b} numbers from 1 to {k}, got {rater_count.tolist()}')
    if rater_index is None:
        rater_index = torch.full((b, k), -1)
    elif rater_index.shape != (b, k):
        raise UserError(f'rater_index "b k": expected shape {(b, k)}, got {tuple(rater_index.shape)}')
    return rater_count, rater_index


def prepare_known(known: Any, batch: Tensor, num_classes: int) -> Tensor:
    """Known labels "b *space" int64 of a batch "b c *space" from an array "*space" or "b *space", -1 if unknown."""
    labels = torch.as_tensor(known)
    size = tuple(batch.shape[2:])
    if tuple(labels.shape) not in (size, (len(batch), *size)) or labels.is_floating_point() or labels.is_complex():
        raise UserError(
            f'known "*space" or "b *space": expected integers of shape {size} or {(len(batch), *size)} as the image, '
            f"got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    labels = labels.long().expand(len(batch), *size)
    low, high = (int(v) for v in torch.aminmax(labels))
    if low < UNKNOWN or high >= num_classes:
        raise UserError(
            f"known: expected labels 0..{num_classes - 1}, and {UNKNOWN} where unknown, got {low}..{high}; give -1 to "
            "pixels that you have not labeled"
        )
    return labels


def image_key(image: Tensor) -> int:
    """A number that names the image by its content, so that its noise follows it into any batch."""
    array = np.ascontiguousarray(image.detach().cpu().float().numpy())
    digest = hashlib.blake2b(array.tobytes() + repr(array.shape).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
