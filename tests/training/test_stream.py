"""Training batches: a function of the seed and the step alone."""

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from stochseg.data import Patches, Phantoms
from stochseg.errors import UserError
from stochseg.training.stream import TrainingStream
from stochseg.types import DatasetInfo, Example

COUNT = 7


def stream(**options) -> TrainingStream:
    data = Phantoms("train", size=8, count=COUNT)
    return TrainingStream(data, **{"batch_size": 3, "seed": 0, "augment": "flip-rotate", **options})


def same(a, b) -> bool:
    return (
        a.keys == b.keys
        and a.batch.ids == b.batch.ids
        and torch.equal(a.batch.image, b.batch.image)
        and torch.equal(a.batch.raters, b.batch.raters)
    )


def test_a_batch_does_not_depend_on_the_steps_before():
    walked = stream()
    batches = [walked[step] for step in range(9)]
    assert all(same(stream()[step], batches[step]) for step in (8, 0, 5))
    assert not any(same(stream(seed=1)[step], batches[step]) for step in range(9))


def test_every_epoch_has_every_example_once_in_another_order():
    whole = stream()
    ids = [name for step in range(COUNT) for name in whole[step].batch.ids]  # 7 batches of 3 are 3 epochs of 7
    epochs = [ids[i : i + COUNT] for i in range(0, 3 * COUNT, COUNT)]
    assert all(len(set(epoch)) == COUNT for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_keys_never_repeat_and_augmentations_change_between_epochs():
    whole = stream(batch_size=COUNT)
    draws = [whole[step] for step in range(12)]
    keys = [key for draw in draws for key in draw.keys]
    assert len(set(keys)) == len(keys)
    looks = {draw.batch.image[draw.batch.ids.index("phantom-train-00000")].numpy().tobytes() for draw in draws}
    assert 1 < len(looks) <= 8


@pytest.mark.parametrize("world", [2, 4])
def test_processes_divide_the_batch_of_a_single_one(world):
    whole, parts = stream(batch_size=8), [stream(batch_size=8, rank=r, world=world) for r in range(world)]
    for step in (0, 3):
        full = whole[step]
        pairs = [pair for part in parts for pair in zip(part[step].keys, part[step].batch.ids, strict=True)]
        assert sorted(pairs) == sorted(zip(full.keys, full.batch.ids, strict=True))
        images = {key: x for part in parts for key, x in zip(part[step].keys, part[step].batch.image, strict=True)}
        assert all(torch.equal(images[key], x) for key, x in zip(full.keys, full.batch.image, strict=True))


@pytest.mark.parametrize("workers", [1, 2])
def test_loader_workers_change_nothing(workers):
    plain = stream()
    loader = DataLoader(stream(), batch_size=None, sampler=range(2, 9), num_workers=workers)
    assert all(same(draw, plain[step]) for draw, step in zip(loader, range(2, 9), strict=True))


def test_a_stream_can_be_pickled():
    """On macOS and Windows loader workers are not forked, and receive a pickle."""
    walked = stream()
    walked[0]
    assert same(pickle.loads(pickle.dumps(walked))[4], walked[4])


def test_invalid_streams():
    with pytest.raises(UserError, match="batch_size 3 .* 2"):
        stream(world=2)
    with pytest.raises(UserError, match=r"'spin'; known: flip, flip-jitter, flip-jitter-warp, flip-rotate"):
        stream(augment="spin")


# --- volumes ------------------------------------------------------------------------------------------------------


class Volumes:
    """Volumes of 1 to 9 slices that hold their own numbers."""

    info = DatasetInfo(num_classes=2, image_channels=1, spatial_dims=3)

    def __init__(self, count=40):
        self.sizes = np.random.default_rng(0).integers(1, 10, size=count).tolist()

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, i):
        slices = torch.arange(self.sizes[i]).float().view(1, -1, 1, 1)
        image = (100 * i + slices).expand(1, -1, 4, 4)
        return Example(image, (image % 2).long(), f"v{i:02d}")


def volumes(**options) -> TrainingStream:
    return TrainingStream(Volumes(), **{"batch_size": 4, "seed": 0, **options})


def test_volumes_of_similar_depth_share_a_batch_and_none_is_left_out():
    whole, sizes = volumes(), Volumes().sizes
    draws = [whole[step] for step in range(16)]  # one pool: 64 examples
    ids = [name for draw in draws for name in draw.batch.ids]
    assert set(ids) == {f"v{i:02d}" for i in range(40)}
    assert {ids.count(name) for name in set(ids)} == {1, 2}
    keys = [key for draw in draws for key in draw.keys]
    assert len(set(keys)) == 64
    for draw in draws:
        depths = [sizes[int(name[1:])] for name in draw.batch.ids]
        assert draw.batch.image.shape[2] == min(depths)
        assert max(depths) - min(depths) <= 2
    depths = [draw.batch.image.shape[2] for draw in draws]
    assert depths != sorted(depths)


def test_volumes_are_cut_to_consecutive_slices_with_their_labels():
    whole = TrainingStream(Patches(Volumes(), (3, 4, 4), foreground=0), batch_size=4, seed=0)
    starts = set()
    for step in range(32):
        batch = whole[step].batch
        assert batch.image.shape[2] <= 3
        assert torch.equal(batch.raters, (batch.image % 2).long())
        first = batch.image[:, 0, :1]
        assert torch.equal(batch.image[:, 0], first + torch.arange(batch.image.shape[2]).view(1, -1, 1, 1))
        starts |= set((first % 100).flatten().tolist())
    assert starts >= set(range(6))


@pytest.mark.parametrize("world", [2, 4])
def test_processes_divide_a_batch_of_volumes(world):
    whole, parts = volumes(), [volumes(rank=r, world=world) for r in range(world)]
    for step in (0, 17):
        full = whole[step]
        images = {key: x for part in parts for key, x in zip(part[step].keys, part[step].batch.image, strict=True)}
        assert all(torch.equal(images[key], x) for key, x in zip(full.keys, full.batch.image, strict=True))
