"""The order of training examples: a function of the seed and the step alone.

Asking for step 1000 gives the same batch whether the run began there or at step 0, with any number of
loader workers; with several processes each takes its share of the same global batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from stochseg.data import AUGMENTATIONS, SegmentationData
from stochseg.errors import UserError, unknown_name
from stochseg.models.sampling import Key
from stochseg.types import Batch

# What a random stream is for: the first number after the seed in its key.
ORDER, AUGMENT, LOSS = 1, 2, 3


@dataclass(frozen=True)
class Draw:
    """A batch and, an example, the key of its randomness in the loss."""

    batch: Batch
    keys: list[Key]


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, size: int) -> np.ndarray:
    return np.random.default_rng((seed, ORDER, epoch)).permutation(size)


class TrainingStream(torch.utils.data.Dataset):
    """Item `step` is this process's share of the batch of that step."""

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
        if augment not in AUGMENTATIONS:
            raise unknown_name("augmentation", augment, AUGMENTATIONS)
        if batch_size % world:
            raise UserError(f"batch_size {batch_size} must be a multiple of the number of processes, {world}")
        if len(data) == 0:
            raise UserError("the training split is empty")
        self.data = data
        self.batch_size = batch_size
        self.seed = seed
        self.augment = AUGMENTATIONS[augment]
        self.share = range(rank, batch_size, world)

    def __getitem__(self, step: int) -> Draw:
        examples, keys = [], []
        for j in self.share:
            epoch, place = divmod(step * self.batch_size + j, len(self.data))
            example = self.data[int(_order(self.seed, epoch, len(self.data))[place])]
            rng = np.random.default_rng((self.seed, AUGMENT, epoch, place))
            examples.append(self.augment(example, rng, self.data.info))
            keys.append((self.seed, LOSS, epoch, place))
        return Draw(Batch.collate(examples, self.data.info.ignore), keys)


class ForwardErrors(torch.utils.data.Dataset):
    """The stream, where a mistake of the user is an item: raised in a loader's process, it would come back as the text
    of a traceback."""

    def __init__(self, stream: TrainingStream):
        self.stream = stream

    def __getitem__(self, step: int) -> Draw | UserError:
        try:
            return self.stream[step]
        except UserError as error:
            return error
