"""Training batches: a function of the seed and the step alone.

Step 1000 has the same batch whether a run was resumed there or started at step 0, with any number of loader workers.
Several processes divide the same global batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch

from stochseg.data import AUGMENTATIONS, SegmentationData
from stochseg.data.fitting import pad_together, void_label
from stochseg.errors import UserError, lookup
from stochseg.models.sampling import Key
from stochseg.types import Batch, Example

# Purpose of a random stream: the first number after the seed in its key.
ORDER, AUGMENT, LOSS = 1, 2, 3


@dataclass(frozen=True)
class Draw:
    """A batch, and for each of its examples the key of the randomness in the loss."""

    batch: Batch
    keys: list[Key]


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, size: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng((seed, ORDER, epoch)).permutation(size)


class TrainingStream(torch.utils.data.Dataset[Draw]):
    """Batches by step: item `step` is the part of that step's batch that this process computes.

    Images of several sizes are padded to the largest of the part; the padding is void.

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
            raise UserError("the training split is empty")
        self.data, self.batch_size, self.seed = data, batch_size, seed
        self.augment = lookup("augmentation", AUGMENTATIONS, augment)
        self.share = range(rank, batch_size, world)

    def __getitem__(self, step: int) -> Draw:
        examples, keys = list[Example](), list[Key]()
        for j in self.share:
            epoch, place = divmod(step * self.batch_size + j, len(self.data))
            example = self.data[int(_order(self.seed, epoch, len(self.data))[place])]
            rng = np.random.default_rng((self.seed, AUGMENT, epoch, place))
            examples.append(self.augment(example, rng, self.data.info))
            keys.append((self.seed, LOSS, epoch, place))
        if len({e.image.shape for e in examples}) == 1:
            return Draw(Batch.collate(examples, self.data.info.ignore), keys)
        void = void_label(self.data.info)
        return Draw(Batch.collate(pad_together(examples, void), void), keys)


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
