"""Data sets as lists of dictionaries, which MONAI's `Dataset` and transforms take, and back. MONAI is not needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from stochseg.data.protocol import SegmentationData
from stochseg.errors import UserError
from stochseg.types import DatasetInfo, Example


def to_dictionaries(data: SegmentationData) -> Sequence[dict[str, Any]]:
    """Present a split as a sequence of dictionaries, read when they are used.

    Args:
        data: The split.

    Returns:
        Dictionaries with `image` "c *space" float32, normalized, and `label` "k *space" int64, one channel per rater,
        in the order of this package (slices, rows, columns), and `id`, `group`, `rater_names`, `spacing`. Pass them to
        `monai.data.Dataset(dictionaries, transform)`.

    Example:
        >>> from stochseg.data import Phantoms
        >>> first = to_dictionaries(Phantoms("train", size=32, count=2))[0]
        >>> sorted(first), tuple(first["image"].shape)
        (['group', 'id', 'image', 'label', 'rater_names', 'spacing'], (1, 32, 32))
    """
    return _Dictionaries(data)


class _Dictionaries(Sequence[dict[str, Any]]):
    def __init__(self, data: SegmentationData):
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        example = self.data[range(len(self))[index]]
        return {
            "image": example.image,
            "label": example.raters,
            "id": example.id,
            "group": example.group,
            "rater_names": example.rater_names,
            "spacing": example.spacing,
        }


class DictionaryData:
    """A split made of dictionaries, as MONAI's data sets yield them.

    Args:
        items: Anything with a length and dictionaries by number, such as `monai.data.Dataset`. Each has `image`
            "c *space", normalized, and `label` "k *space", one channel per rater; `id`, `group`, `rater_names` and
            `spacing` are optional.
        info: Facts about the data.
        image: Key of the image.
        label: Key of the label maps.

    Raises:
        UserError: An item lacks a key or has another shape, when it is read.

    Example:
        >>> item = {"image": torch.zeros(1, 8, 8), "label": torch.ones(2, 8, 8)}
        >>> DictionaryData([item], DatasetInfo(num_classes=2, image_channels=1))[0].raters.shape
        torch.Size([2, 8, 8])
    """

    def __init__(self, items: Any, info: DatasetInfo, *, image: str = "image", label: str = "label"):
        self.items, self.info, self.keys = items, info, (image, label)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Example:
        item = self.items[index]
        missing = [key for key in self.keys if not isinstance(item, Mapping) or key not in item]
        if missing:
            raise UserError(f"item {index}: expected a dictionary with {', '.join(self.keys)}, it lacks {missing[0]}")
        image, labels = (_plain(item[key]) for key in self.keys)
        dims = self.info.spatial_dims + 1
        if not image.ndim == labels.ndim == dims or image.shape[1:] != labels.shape[1:]:
            raise UserError(
                f'item {index}: expected an image "c *space" and labels "k *space" of {dims - 1} axes and one size, '
                f"got shapes {tuple(image.shape)} and {tuple(labels.shape)}"
            )
        if not bool((labels == labels.round()).all()):
            raise UserError(f"item {index}: expected whole numbers as labels; resample them with mode='nearest'")
        id = str(item.get("id", index))
        spacing = item.get("spacing")
        return Example(
            image.float(),
            labels.long(),
            id,
            str(item.get("group", id)),
            None if spacing is None else tuple(float(mm) for mm in spacing),
            tuple(item.get("rater_names", ())),
        )


def _plain(values: Any) -> torch.Tensor:
    """A tensor without MONAI's metadata."""
    tensor = torch.as_tensor(np.asarray(values)) if not isinstance(values, torch.Tensor) else values
    return tensor.as_subclass(torch.Tensor)
