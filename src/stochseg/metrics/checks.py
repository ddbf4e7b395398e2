"""Conversion and checks of the arguments of a metric: tensors, numpy arrays and lists become checked tensors."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stochseg.errors import UserError, is_integer

ArrayLike: TypeAlias = Tensor | npt.ArrayLike


def as_tensor(name: str, values: ArrayLike) -> Tensor:
    """Convert an array or nested list to a tensor."""
    try:
        if not isinstance(values, Tensor):
            array = np.asarray(values)
            # torch takes neither foreign byte orders nor negative strides, and warns about read-only memory.
            values = torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
        # torch cannot compute in these types.
        return values.long() if values.dtype in (torch.uint16, torch.uint32, torch.uint64) else values
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{name}: expected a tensor or an array of numbers, got {type(values).__name__} ({error}); "
            "pass one array, such as numpy.stack(list)"
        ) from None


def as_labels(name: str, values: ArrayLike) -> Tensor:
    """Convert to integer labels."""
    labels = as_tensor(name, values)
    if labels.is_floating_point() or labels.is_complex():
        raise UserError(
            f"{name}: expected integer labels, got {labels.dtype}; take argmax(1) of logits, "
            "or convert with .long() if these are labels"
        )
    if labels.device.type == "mps":
        raise UserError(f"{name}: metrics need float64, which device mps does not have; pass {name}.cpu()")
    return labels


def as_maps(name: str, pattern: str, values: ArrayLike, num_classes: int) -> Tensor:
    """Convert to label maps of this pattern with labels below `num_classes`."""
    if not is_integer(num_classes) or num_classes < 2:
        raise UserError(
            f"num_classes: expected an integer of at least 2, background and foreground, got {num_classes!r}"
        )
    maps = as_labels(name, values)
    check_dimensions(name, pattern, maps)
    check_range(name, maps, num_classes)
    return maps


def as_sets(samples: ArrayLike, raters: ArrayLike, num_classes: int) -> tuple[Tensor, Tensor]:
    """Convert to samples "b n *space" and raters "b k *space" of the same images."""
    maps = as_maps("samples", "b n *space", samples, num_classes), as_maps("raters", "b k *space", raters, num_classes)
    check_aligned("samples", maps[0], "raters", maps[1])
    return maps


def as_mask(mask: ArrayLike, raters: Tensor) -> Tensor:
    """Convert to a boolean mask of the shape of the raters "b k *space"."""
    mask = as_tensor("mask", mask)
    if mask.shape != raters.shape or mask.dtype != torch.bool:
        raise UserError(
            f'mask "b k *space": expected torch.bool of shape {tuple(raters.shape)}, as the raters, got '
            f"{mask.dtype} of shape {tuple(mask.shape)}; give one value per rater and pixel, False = void"
        )
    return mask


def check_dimensions(name: str, pattern: str, values: Tensor) -> None:
    """Require an image axis, a second axis and at least one axis of space, none of them empty."""
    shape = tuple(values.shape)
    if len(shape) < 3:
        raise UserError(
            f'{name} "{pattern}": expected at least 3 dimensions, got shape {shape}; '
            f"add an axis of length 1 for a single image or map, as in {name}[None]"
        )
    if values.numel() == 0:
        raise UserError(f'{name} "{pattern}": expected at least one of each, got shape {shape}; skip empty batches')


def check_range(name: str, maps: Tensor, num_classes: int) -> None:
    """Require labels 0 to `num_classes` - 1."""
    if maps.numel() == 0:
        return
    lowest, highest = (int(bound) for bound in maps.aminmax())
    if lowest < 0 or highest >= num_classes:
        raise UserError(
            f"{name}: expected labels 0 to {num_classes - 1}, got {lowest} to {highest}; "
            "raise num_classes, or map void labels to a class or a mask first"
        )


def check_aligned(name: str, a: Tensor, other: str, b: Tensor) -> None:
    """Require the same images and the same space of "b n *space" and "b m *space"."""
    if a.shape[0] != b.shape[0] or a.shape[2:] != b.shape[2:]:
        batch = f"; add the axis b of a single image with {name}[None]" if 3 in (a.ndim, b.ndim) else ""
        raise UserError(
            f"{name} and {other}: expected equal b and *space, got shapes {tuple(a.shape)} and "
            f"{tuple(b.shape)}; compare maps of the same images at one resolution{batch}"
        )
