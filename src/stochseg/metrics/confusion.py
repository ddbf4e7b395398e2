"""Mean IoU of one label map per image over a data set, from its confusion matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from stochseg.errors import UserError
from stochseg.metrics.checks import ArrayLike, as_labels, as_tensor, check_range


def confusion_matrix(prediction: ArrayLike, target: ArrayLike, num_classes: int, ignore: int | None = None) -> Tensor:
    """Count the pixels of each (target, prediction) pair of labels; add the matrices of a whole data set.

    Args:
        prediction: int, any shape, such as "b *space".
        target: int, the same shape.
        num_classes: l, background included.
        ignore: target pixels with this label are left out.

    Returns:
        "l l" int64, rows are the target.

    Raises:
        UserError: if the shapes differ or a label is not below `num_classes`.

    Example:
        >>> confusion_matrix([0, 1, 1, 0], [0, 1, 0, 255], num_classes=2, ignore=255)
        tensor([[1, 1],
                [0, 1]])
    """
    prediction, target = as_labels("prediction", prediction), as_labels("target", target)
    if prediction.shape != target.shape:
        raise UserError(
            f"prediction and target: expected one shape, got {tuple(prediction.shape)} and "
            f"{tuple(target.shape)}; resize one to the other, labels by nearest neighbor"
        )
    if ignore is not None:
        kept = target != ignore
        prediction, target = prediction[kept], target[kept]
    check_range("prediction", prediction, num_classes)
    check_range("target", target, num_classes)
    pairs = target.long().flatten() * num_classes + prediction.long().flatten()
    return torch.bincount(pairs, minlength=num_classes**2).view(num_classes, num_classes)


def iou_per_class(confusion: ArrayLike) -> Tensor:
    """Compute the IoU of each class of a confusion matrix "l l"; nan for a class in neither prediction nor target.

    Args:
        confusion: "l l", of `confusion_matrix`.

    Returns:
        "l" float64.

    Raises:
        UserError: if the matrix is not square.
    """
    both, pixels = _overlap(confusion)
    return both / (pixels - both)


def dice_per_class(confusion: ArrayLike) -> Tensor:
    """Compute the Dice score of each class of a confusion matrix "l l"; nan for a class that occurs nowhere.

    Args:
        confusion: "l l", counts of pixels.

    Returns:
        "l" float64.

    Raises:
        UserError: if the matrix is not square.

    Example:
        >>> dice_per_class([[2, 1], [1, 4]])
        tensor([0.6667, 0.8000], dtype=torch.float64)
    """
    both, pixels = _overlap(confusion)
    return 2 * both / pixels


def _overlap(confusion: ArrayLike) -> tuple[Tensor, Tensor]:
    """Pixels of each class in both maps, and the sum of those in each."""
    confusion = as_tensor("confusion", confusion)
    shape = tuple(confusion.shape)
    if len(shape) != 2 or shape[0] != shape[1]:
        raise UserError(f'confusion "l l": expected a square matrix, got shape {shape}; use confusion_matrix')
    return confusion.diagonal().double(), confusion.sum(0) + confusion.sum(1)


def miou(confusion: ArrayLike) -> Tensor:
    """Compute the mean IoU of a data-set confusion matrix "l l", over the classes that occur.

    Args:
        confusion: "l l", of `confusion_matrix`.

    Returns:
        A float64 scalar.

    Raises:
        UserError: if the matrix is not square or counts no pixel.

    Example:
        >>> miou([[2, 1], [1, 4]])
        tensor(0.5833, dtype=torch.float64)
    """
    confusion = as_tensor("confusion", confusion)
    classes = iou_per_class(confusion)
    if not bool((confusion > 0).any()):
        raise UserError("miou: the confusion matrix counts no pixel; check `ignore` and that data was added")
    return classes.nanmean()
