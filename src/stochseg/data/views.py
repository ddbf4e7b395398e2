"""Views of a split: some of its examples, or all of them at another size. Examples are read when they are used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from stochseg.data.fitting import pad_example, void_label
from stochseg.data.protocol import KnownRaters, SegmentationData, WindowedData, space_of
from stochseg.data.transforms import resize
from stochseg.errors import UserError, unknown_name
from stochseg.types import Example, Truth, Window, central

PLACES = 256
"""Places of a class in a volume from which a patch on the foreground is drawn."""
SLAB = 16
"""Slices that are read at once to find them."""


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

    def space(self, index: int) -> tuple[int, ...]:
        """Return the spatial size of an example."""
        return space_of(self.data, self.indices[index])


class OfRater:
    """A split with the label maps of one rater; an image without one has none.

    Args:
        data: The split.
        name: One of `data.info.rater_names`.

    Raises:
        UserError: The data do not name this rater.

    Example:
        >>> from stochseg.data import OfRater, Phantoms
        >>> data = OfRater(Phantoms("train", size=32, count=2, habits=(-3, 3)), "rater2")
        >>> tuple(data[0].raters.shape), data[0].rater_names
        ((1, 32, 32), ('rater2',))
    """

    def __init__(self, data: SegmentationData, name: str) -> None:
        if name not in data.info.rater_names:
            raise unknown_name(f"rater of {data.info.name}", name, data.info.rater_names)
        self.data, self.name, self.info = data, name, data.info

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Example:
        example = self.data[index]
        theirs = torch.tensor([name == self.name for name in example.rater_names], dtype=torch.bool)
        return replace(example, raters=example.raters[theirs], rater_names=(self.name,) * int(theirs.sum()))

    def space(self, index: int) -> tuple[int, ...]:
        """Return the spatial size of an example."""
        return space_of(self.data, index)


class OfKnownRater(OfRater):
    """The maps of one rater, of data that know their distribution."""

    def truth(self, index: int) -> Truth:
        """Return the distribution over label maps of one image and this rater."""
        assert isinstance(self.data, KnownRaters)
        return self.data.truth(index, self.name)


def of_rater(data: SegmentationData, name: str) -> OfRater:
    """Return the maps of one rater of a split, with their distribution if the data know it.

    Args:
        data: The split.
        name: One of `data.info.rater_names`.

    Returns:
        The view.
    """
    return OfKnownRater(data, name) if isinstance(data, KnownRaters) else OfRater(data, name)


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


class Patches:
    """A split of volumes, read patch by patch.

    `data[i]` is the central patch of volume i. Training draws `data.random_patch(i, rng)`. An axis that is shorter than
    the patch is read whole; rows and columns are then padded, the image with its edge and the label maps with void,
    slices are not: see `pad_example`.

    Args:
        data: The split; of a packed store only the patch is read, of other data the whole volume.
        size: Slices, rows and columns of a patch.
        foreground: Chance that a random patch is centered on a voxel that a rater has marked, of a class drawn
            uniformly from those in the volume, as in nnU-Net; otherwise all patches are equally likely.

    Raises:
        UserError: The data are images, or the size or the chance makes no sense.

    Example:
        >>> from stochseg.data import Patches, PhantomVolumes
        >>> data = Patches(PhantomVolumes("train", size=32, slices=6, count=2), (4, 16, 48))
        >>> tuple(data[0].image.shape), data[0].raters[0, 0, 0, :9].tolist()
        ((1, 4, 16, 48), [255, 255, 255, 255, 255, 255, 255, 255, 0])
        >>> tuple(data.random_patch(0, np.random.default_rng(0)).raters.shape)
        (4, 4, 16, 48)
    """

    def __init__(self, data: SegmentationData, size: tuple[int, int, int], *, foreground: float = 1 / 3) -> None:
        if data.info.spatial_dims != 3:
            raise UserError("patches: expected volumes, got images; use Cropped, or data.size in training")
        if len(size) != 3 or min(size) < 1 or not 0 <= foreground <= 1:
            raise UserError(
                "patches: expected at least 1 slice, row and column and a chance from 0 to 1, got "
                f"size {size}, foreground {foreground}"
            )
        self.data, self.size, self.foreground = data, size, foreground
        self.info = data.info.model_copy(update={"ignore": void_label(data.info)})
        self._places: dict[int, list[npt.NDArray[np.int64]]] = {}

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Example:
        whole = space_of(self.data, index)
        parts = [central(n, side) for n, side in zip(whole, self.size, strict=True)]
        return self._read(index, tuple((part.start, part.stop) for part in parts))

    def space(self, index: int) -> tuple[int, ...]:
        """Return the size (d, h, w) of the patches of a volume."""
        return (min(space_of(self.data, index)[0], self.size[0]), *self.size[1:])

    def random_patch(self, index: int, rng: np.random.Generator) -> Example:
        """Read a random patch of a volume."""
        whole = np.array(space_of(self.data, index))
        side = np.minimum(whole, self.size)
        start = rng.integers(0, whole - side + 1)
        if rng.random() < self.foreground and (side < whole).any() and (classes := self._foreground(index)):
            places = classes[rng.integers(len(classes))]
            start = np.clip(places[rng.integers(len(places))] - side // 2, 0, whole - side)
        return self._read(index, tuple(zip(start.tolist(), (start + side).tolist(), strict=True)))

    def _read(self, index: int, window: Window) -> Example:
        slices = window[0][1] - window[0][0]
        return pad_example(_window(self.data, index, window), (slices, *self.size[1:]), void_label(self.info))

    def _foreground(self, index: int) -> list[npt.NDArray[np.int64]]:
        """Up to `PLACES` random voxels "n 3" of each class that a rater has marked; the same in every process."""
        if index not in self._places:
            rng = np.random.default_rng(index)
            found: dict[int, npt.NDArray[np.float64]] = {}
            for start, raters in self._slabs(index):
                for label in range(1, self.info.num_classes):
                    voxels = np.argwhere((raters == label).any(0)) + np.array([start, 0, 0])
                    # The smallest of random numbers are a fair choice, also slab by slab.
                    rows = np.column_stack([rng.random(len(voxels)), voxels])
                    rows = np.concatenate([found.get(label, rows[:0]), rows])
                    found[label] = rows[np.argsort(rows[:, 0])[:PLACES]]
            self._places[index] = [rows[:, 1:].astype(np.int64) for rows in found.values() if len(rows)]
        return self._places[index]

    def _slabs(self, index: int) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """Yield the label maps "k d h w" of a volume, some slices at a time, with the number of the first one."""
        slices, height, width = space_of(self.data, index)
        for start in range(0, slices, SLAB):
            window = ((start, min(start + SLAB, slices)), (0, height), (0, width))
            yield start, _window(self.data, index, window).raters.numpy()


def _window(data: SegmentationData, index: int, window: Window) -> Example:
    if isinstance(data, WindowedData):
        return data.patch(index, window)
    example, parts = data[index], (slice(None), *(slice(*part) for part in window))
    return replace(example, image=example.image[parts], raters=example.raters[parts])
