"""Slices beyond the ends: the object is gone from them, everything else is the volume's own."""

import numpy as np
import pytest
import torch
from scipy.ndimage import binary_dilation

from stochseg.data import BeyondEnds, Patches, Phantoms, PhantomVolumes
from stochseg.data.beyond import MARGIN, without_object
from stochseg.errors import UserError
from stochseg.training.stream import TrainingStream


def textured(height=24, width=20, channels=1):
    return np.random.default_rng(0).normal(0, 0.1, (channels, height, width)).astype(np.float32)


def square(height=24, width=20, size=3):
    marked = np.zeros((height, width), dtype=bool)
    marked[4 : 4 + size, 5 : 5 + size] = True
    return marked


def slowest(image, marked):
    """The replacement by the definition: all moves in loops."""
    hidden = binary_dilation(marked, iterations=MARGIN)
    around = binary_dilation(hidden, iterations=MARGIN) & ~hidden
    level = np.median(image[:, around], axis=1)[:, None, None]
    image = image.astype(np.float64)
    best, found = ((image - level)[:, around] ** 2).sum(), np.broadcast_to(level, image.shape)
    height, width = hidden.shape
    inside = np.argwhere(hidden | around)
    for move in np.ndindex(2 * height, 2 * width):
        there = inside + np.array(move) - (height, width)
        if (there < 0).any() or (there >= (height, width)).any() or hidden[tuple(there.T)].any():
            continue
        moved = np.roll(image, (height - move[0], width - move[1]), (1, 2))
        error = ((moved - image)[:, around] ** 2).sum()
        error += ((moved - level)[:, hidden] ** 2).sum() * around.sum() / hidden.sum()
        if error < best:
            best, found = error, moved
    return found, hidden


@pytest.mark.parametrize(("channels", "size"), [(1, 1), (2, 3), (1, 12)])
def test_replacement_is_the_best_of_all_moves(channels, size):
    image, marked = textured(channels=channels), square(size=size)
    image[:, marked] = 1.0
    expected, hidden = slowest(image, marked)
    found = without_object(image, marked)
    np.testing.assert_allclose(found[:, hidden], expected[:, hidden], atol=1e-6)
    assert found.max() < 0.6 < image.max()
    far = ~binary_dilation(hidden, iterations=2 * MARGIN)
    np.testing.assert_allclose(found[:, far], image[:, far], atol=1e-3)


def test_slice_without_object_is_unchanged():
    image = textured()
    np.testing.assert_array_equal(without_object(image, np.zeros(image.shape[1:], dtype=bool)), image)


def test_slice_that_is_all_object_stays_finite():
    image = textured()
    assert np.isfinite(without_object(image, np.ones(image.shape[1:], dtype=bool))).all()


def test_every_volume_twice_and_the_longer_one_holds_the_other():
    data = PhantomVolumes("train", size=32, slices=5, count=3)
    twice = BeyondEnds(data, 2)
    assert len(twice) == 6
    for i in range(3):
        own, longer = twice[i], twice[3 + i]
        assert torch.equal(own.image, data[i].image)
        assert longer.image.shape[1:] == longer.raters.shape[1:] == twice.space(3 + i) == (9, 32, 32)
        assert torch.equal(longer.image[:, 2:-2], own.image)
        assert torch.equal(longer.raters[:, 2:-2], own.raters)
        assert not longer.raters[:, :2].any()
        assert not longer.raters[:, -2:].any()
    assert any((data[i].raters[:, [0, 1, -2, -1]] > 0).any() for i in range(3))  # there was something to hide


def test_more_slices_than_the_volume_has():
    longer = BeyondEnds(PhantomVolumes("train", size=32, slices=1, count=1), 3)[1]
    assert longer.image.shape == (1, 7, 32, 32)
    assert longer.image.isfinite().all()


def test_training_batches_mix_both_in_groups_of_equal_depth():
    data = Patches(BeyondEnds(PhantomVolumes("train", size=32, slices=3, count=8), 2), (6, 32, 32))
    stream = TrainingStream(data, batch_size=2, seed=0)
    depths = {stream[step].batch.image.shape[2] for step in range(16)}
    assert depths == {3, 6}


@pytest.mark.parametrize(
    "make",
    [
        lambda: BeyondEnds(Phantoms("train", size=32, count=1), 2),
        lambda: BeyondEnds(PhantomVolumes("train", size=32, slices=3, count=1), 0),
    ],
)
def test_images_and_no_slices_are_refused(make):
    with pytest.raises(UserError, match="expected volumes and at least 1 slice"):
        make()
