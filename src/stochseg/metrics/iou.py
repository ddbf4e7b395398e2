"""IoU between label maps: the number from which GED, HM-IoU and diversity are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from stochseg.errors import UserError
from stochseg.metrics.checks import ArrayLike, as_labels, as_maps, as_mask, as_sets, check_aligned

# Pixels per matrix product: counts up to 2**24 are exact in float32, and memory stays small for volumes.
_PIXELS = 2**21


class IoUBlocks(NamedTuple):
    """IoU within and between the samples and the raters of each image, ready to unpack.

    Attributes:
        samples_samples: "b n n".
        samples_raters: "b n k".
        raters_raters: "b k k".
    """

    samples_samples: Tensor
    samples_raters: Tensor
    raters_raters: Tensor

    def first(self, n: int) -> IoUBlocks:
        """Select the first n samples: views, nothing is computed again.

        Raises:
            UserError: if there are fewer samples.
        """
        available = self.samples_raters.shape[1]
        if not 1 <= n <= available:
            raise UserError(f"first({n}): expected 1 to {available}, the number of samples; draw more samples")
        return IoUBlocks(self.samples_samples[:, :n, :n], self.samples_raters[:, :n], self.raters_raters)

    @staticmethod
    def mean(classes: Sequence[IoUBlocks]) -> IoUBlocks:
        """Average the blocks of all foreground classes: the blocks of the foreground mean IoU."""
        return IoUBlocks(*(_mean(parts) for parts in zip(*classes, strict=True)))


def pairwise_iou(a: ArrayLike, b: ArrayLike, num_classes: int) -> Tensor:
    """Compute the mean IoU of the foreground classes between all maps of two sets; empty against empty is 1.

    Args:
        a: "b n *space" int.
        b: "b m *space" int.
        num_classes: l, background included.

    Returns:
        "b n m" float64.

    Raises:
        UserError: if the maps do not fit each other or have other labels.

    Example:
        >>> pairwise_iou([[[1, 1, 0, 0]]], [[[1, 0, 0, 0], [0, 0, 0, 0]]], num_classes=2)
        tensor([[[0.5000, 0.0000]]], dtype=torch.float64)
    """
    a, b = as_maps("a", "b n *space", a, num_classes), as_maps("b", "b m *space", b, num_classes)
    check_aligned("a", a, "b", b)
    return cross_iou(a, b, num_classes)


def iou_blocks(samples: ArrayLike, raters: ArrayLike, num_classes: int) -> IoUBlocks:
    """Compute all that GED, HM-IoU and diversity need, with one matrix product per class.

    Args:
        samples: "b n *space" int.
        raters: "b k *space" int.
        num_classes: l, background included.

    Returns:
        The IoU of all pairs, float64.

    Raises:
        UserError: if the maps do not fit each other or have other labels.
    """
    return IoUBlocks.mean(class_iou_blocks(samples, raters, num_classes))


def class_iou_blocks(samples: ArrayLike, raters: ArrayLike, num_classes: int) -> tuple[IoUBlocks, ...]:
    """Compute the blocks of each foreground class alone.

    GED is linear in the IoU, so the GED of `iou_blocks` is the mean of the GEDs of these.

    Args:
        samples: label maps "b n *space".
        raters: label maps "b k *space".
        num_classes: number of labels, background included.

    Returns:
        The blocks of classes 1, 2, …

    Example:
        >>> [blocks.samples_raters.item() for blocks in class_iou_blocks([[[1, 1, 0, 2]]], [[[1, 0, 0, 2]]], 3)]
        [0.5, 1.0]
    """
    samples, raters = as_sets(samples, raters, num_classes)
    n = samples.shape[1]
    found = _class_ious((samples, raters), slice(None), slice(None), num_classes)
    return tuple(IoUBlocks(iou[:, :n, :n], iou[:, :n, n:], iou[:, n:, n:]) for iou in found)


def without_void(samples: ArrayLike, raters: ArrayLike, mask: ArrayLike | None) -> tuple[Tensor, Tensor]:
    """Set both sets to background wherever any rater is void, so that the pixel adds nothing to any IoU.

    Args:
        samples: "b n *space" int.
        raters: "b k *space" int.
        mask: "b k *space" bool, False = void; None if nothing is void.

    Returns:
        The samples and the raters.
    """
    samples, raters = as_labels("samples", samples), as_labels("raters", raters)
    if mask is None:
        return samples, raters
    mask = as_mask(mask, raters).all(1, keepdim=True)
    return samples * mask, raters * mask


def all_iou(num_classes: int, *sets: Tensor) -> Tensor:
    """Compute the IoU "b m m" between all maps of the checked sets "b . *space", joined to m maps per image."""
    return _iou(sets, slice(None), slice(None), num_classes)


def cross_iou(a: Tensor, b: Tensor, num_classes: int) -> Tensor:
    """Compute the IoU "b n m" between the checked sets "b n *space" and "b m *space"."""
    n = a.shape[1]
    return _iou((a, b), slice(0, n), slice(n, None), num_classes)


def _iou(sets: Sequence[Tensor], rows: slice, columns: slice, num_classes: int) -> Tensor:
    """Foreground mean IoU between two slices of the joined sets of each image."""
    return _mean(_class_ious(sets, rows, columns, num_classes))


def _mean(classes: Sequence[Tensor]) -> Tensor:
    return sum(classes[1:], start=classes[0]) / len(classes)


def _class_ious(sets: Sequence[Tensor], rows: slice, columns: slice, num_classes: int) -> list[Tensor]:
    """IoU "b . ." of each foreground class between two slices of the joined sets of each image."""
    dtype = torch.uint8 if num_classes <= 256 else torch.int32  # later passes read 8 times less than of int64
    maps = torch.cat([each.to(sets[0].device, dtype).flatten(2) for each in sets], dim=1)
    # Autocast would run the product in 16 bits, in which counts above 256 are no longer exact.
    with torch.autocast(maps.device.type, enabled=False):
        return [
            torch.stack([_class_iou(image, label, rows, columns) for image in maps]) for label in range(1, num_classes)
        ]


def _class_iou(maps: Tensor, label: int, rows: slice, columns: slice) -> Tensor:
    """IoU of one class between two slices of the maps "m p" of one image, by one matrix product."""
    intersection = torch.zeros(len(maps[rows]), len(maps[columns]), dtype=torch.float64, device=maps.device)
    size = torch.zeros(len(maps), dtype=torch.float64, device=maps.device)
    for part in torch.split(maps, _PIXELS, dim=1):
        # Written to integers because the comparison to bool is not vectorized on the CPU (25 times slower).
        hit = torch.eq(part, label, out=torch.empty_like(part))
        # A pixel where no map has the class adds nothing to any count; for most classes that is most pixels.
        used = hit.amax(0).nonzero().squeeze(1)
        one_hot = hit.gather(1, used.expand(len(maps), -1)).float()
        intersection += one_hot[rows] @ one_hot[columns].T
        size += one_hot.sum(1)
    union = size[rows, None] + size[None, columns] - intersection
    return torch.where(union > 0, intersection / union, 1.0)
