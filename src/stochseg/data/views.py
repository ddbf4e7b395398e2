"""Views of a split: some of its examples, or all of them at another size. Examples are read when they are used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stochseg.data.protocol import SegmentationData
from stochseg.data.transforms import resize
from stochseg.types import Example, central


class Subset:
    """Some examples of a split.

    Args:
        data: The split.
        indices: Numbers of the examples in the split.

    Example:
        >>> from stochseg.data import Phantoms, Subset
        >>> [example.id for example in Subset(Phantoms("train", size=32, count=4), [3, 1])]
        ['phantom-train-00003', 'phantom-train-00001']
    """

    def __init__(self, data: SegmentationData, indices: Sequence[int]) -> None:
        self.data, self.indices, self.info = data, indices, data.info

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Example:
        return self.data[self.indices[index]]


class Resized:
    """A split with every example resized to one size.

    Args:
        data: The split.
        size: Height and width.

    Example:
        >>> from stochseg.data import Phantoms, Resized
        >>> small = Resized(Phantoms("train", size=32, count=2), (16, 24))
        >>> tuple(small[0].image.shape), tuple(small[0].raters.shape), small.info.size
        ((1, 16, 24), (4, 16, 24), (16, 24))
    """

    def __init__(self, data: SegmentationData, size: tuple[int, int]) -> None:
        self.data, self.size = data, size
        self.info = data.info.model_copy(update={"size": size})

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Example:
        return resize(self.data[index], self.size)


class Cropped(Resized):
    """A split with every example cut to its center.

    Args:
        data: The split.
        size: Height and width; a smaller example stays as it is along that axis.

    Example:
        >>> from stochseg.data import Cropped, Phantoms
        >>> data = Cropped(Phantoms("train", size=32, count=2), (16, 24))
        >>> tuple(data[0].image.shape), tuple(data[0].raters.shape), data.info.size
        ((1, 16, 24), (4, 16, 24), (16, 24))
    """

    def __getitem__(self, index: int) -> Example:
        example = self.data[index]
        rows, columns = (central(n, side) for n, side in zip(example.image.shape[-2:], self.size, strict=True))
        image, raters = example.image[..., rows, columns], example.raters[..., rows, columns]
        return replace(example, image=image, raters=raters)
