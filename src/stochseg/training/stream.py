"""Training batches: a function of the seed and the step alone.

Step 1000 has the same batch whether a run was resumed there or started at step 0, with any number of loader workers.
Several processes divide the same global batch. Volumes of similar depth share a batch, so that little is cut off.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from stochseg.data import AUGMENTATIONS, Patches, SegmentationData
from stochseg.data.fitting import pad_together, void_label
from stochseg.data.volumes import cut_slices, volume_depths
from stochseg.errors import UserError, lookup
from stochseg.models.sampling import Key
from stochseg.types import Batch, Example

# Purpose of a random stream: the first number after the seed in its key.
ORDER, AUGMENT, LOSS, CUT = 1, 2, 3, 4

POOL = 16
"""Batches of volumes whose examples are sorted by depth together."""


@dataclass(frozen=True)
class Draw:
    """A batch, and for each of its examples the key of the randomness in the loss."""

    batch: Batch
    keys: list[Key]


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, size: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng((seed, ORDER, epoch)).permutation(size)


Place = tuple[int, int]
"""Epoch, and place in the order of the epoch."""


class TrainingStream(torch.utils.data.Dataset[Draw]):
    """Batches by step: item `step` is the part of that step's batch that this process computes.

    Images of several sizes are padded to the largest of the part; the padding is void. Volumes, or random patches of
    them, are cut to the number of slices of the shallowest one in the batch, at a random place.

    Args:
        data: the training split.
        batch_size: examples per step, over all processes; a multiple of `world`.
        seed: determines the order of examples, their augmentation and the randomness of the loss.
        augment: name of the augmentation.
        rank: index of this process.
        world: number of processes.

    Raises:
        UserError: for an unknown augmentation, a batch that cannot be divided, or an empty split.
    """

    def __init__(
        self,
        data: SegmentationData,
        *,
        batch_size: int,
        seed: int,
        augment: str = "none",
        rank: int = 0,
        world: int = 1,
    ):
        if batch_size % world:
            raise UserError(f"batch_size {batch_size} must be a multiple of the number of processes, {world}")
        if len(data) == 0:
            raise UserError("the training split is empty; add images to it (`train` of splits.json)")
        self.data, self.batch_size, self.seed = data, batch_size, seed
        self.augment = lookup("augmentation", AUGMENTATIONS, augment)
        self.share = range(rank, batch_size, world)
        self.depths = volume_depths(data) if data.info.spatial_dims == 3 else None

    def __getitem__(self, step: int) -> Draw:
        places = self._places(step)
        depth = None if self.depths is None else min(self.depths[self._index(place)] for place in places)
        examples, keys = list[Example](), list[Key]()
        for epoch, place in (places[j] for j in self.share):
            index, rng = self._index((epoch, place)), np.random.default_rng((self.seed, CUT, epoch, place))
            example = self.data.random_patch(index, rng) if isinstance(self.data, Patches) else self.data[index]
            if depth is not None:
                example = cut_slices(example, rng, depth)
            rng = np.random.default_rng((self.seed, AUGMENT, epoch, place))
            examples.append(self.augment(example, rng, self.data.info))
            keys.append((self.seed, LOSS, epoch, place))
        if len({e.image.shape for e in examples}) == 1:
            return Draw(Batch.collate(examples, self.data.info.ignore, self.data.info.rater_names), keys)
        void = void_label(self.data.info)
        return Draw(Batch.collate(pad_together(examples, void), void, self.data.info.rater_names), keys)

    def _index(self, place: Place) -> int:
        return int(_order(self.seed, place[0], len(self.data))[place[1]])

    def _places(self, step: int) -> list[Place]:
        """The examples of a batch, over all processes."""
        size = self.batch_size
        if self.depths is None:
            return [divmod(i, len(self.data)) for i in range(step * size, (step + 1) * size)]
        pool, batch = divmod(step, POOL)
        places = [divmod(i, len(self.data)) for i in range(pool * POOL * size, (pool + 1) * POOL * size)]
        depths = [self.depths[self._index(place)] for place in places]
        by_depth = sorted(range(len(places)), key=lambda i: depths[i])
        first = int(np.random.default_rng((self.seed, CUT, pool)).permutation(POOL)[batch]) * size
        return [places[i] for i in by_depth[first : first + size]]


class ForwardErrors(torch.utils.data.Dataset[Draw | UserError]):
    """The stream, with a UserError returned instead of raised.

    Raised in a loader's process, it would arrive as the text of a traceback.
    """

    def __init__(self, stream: TrainingStream):
        self.stream = stream

    def __getitem__(self, step: int) -> Draw | UserError:
        try:
            return self.stream[step]
        except UserError as error:
            return error
