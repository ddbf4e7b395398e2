"""Images of several sizes: fitted into one with their aspect kept, or padded together."""

import numpy as np
import pytest
import torch
from PIL import Image

from stochseg.data.fitting import Fit, fit_example, nearest, pad_together, void_label
from stochseg.types import DatasetInfo, Example

SIZES = [(150, 200), (200, 150), (96, 96), (7, 300), (300, 7), (1, 1), (95, 97), (12, 16)]


@pytest.mark.parametrize("before", SIZES)
def test_the_aspect_is_kept_and_the_rest_is_padding(before):
    fit = Fit(before, (96, 96))
    h, w = fit.inner
    assert max(h / 96, w / 96) == 1
    scale = min(96 / before[0], 96 / before[1])
    assert (h, w) == pytest.approx((before[0] * scale, before[1] * scale), abs=1)
    labels = fit.labels(torch.ones(2, *before, dtype=torch.int64), 255)
    assert labels.shape == (2, 96, 96)
    assert int((labels == 1).sum()) == 2 * h * w
    top, left = (96 - h) // 2, (96 - w) // 2
    assert (labels[:, top : top + h, left : left + w] == 1).all()


@pytest.mark.parametrize("before", SIZES)
@pytest.mark.parametrize("size", [(96, 96), (40, 80)])
def test_undoing_gives_the_size_and_the_labels_back(before, size):
    """A disk that is large enough survives within a pixel of the smaller grid; probabilities still sum to 1."""
    fit = Fit(before, size)
    rows, columns = (torch.linspace(-1, 1, n)[:, None] for n in before)
    disk = ((rows**2 + columns.T**2) < 0.5).long()
    back = fit.undo_labels(fit.labels(disk, 255))
    assert tuple(back.shape) == before
    if min(before) > 10:
        assert (back != disk).float().mean() < 0.06
    mean = torch.rand(2, 3, *size)
    mean = fit.undo_probabilities(mean / mean.sum(1, keepdim=True))
    assert tuple(mean.shape) == (2, 3, *before)
    torch.testing.assert_close(mean.sum(1), torch.ones(2, *before))


def test_a_second_fit_changes_nothing():
    image, size = torch.rand(1, 30, 50), (24, 24)
    once = Fit((30, 50), size).image(image)
    assert Fit(size, size).image(once) is once


def test_nearest_agrees_with_pillow():
    labels = np.random.default_rng(0).integers(0, 200, (13, 21), dtype=np.uint8)
    for size in ((7, 5), (40, 33), (13, 30)):
        expected = np.asarray(Image.fromarray(labels).resize(size[::-1], Image.Resampling.NEAREST))
        assert (nearest(torch.from_numpy(labels), size).numpy() == expected).all()


def test_images_are_padded_with_their_edge_and_spacing_is_that_of_the_new_pixels():
    image = torch.zeros(1, 10, 20)
    image[:, 0], image[:, -1] = 3, 7
    example = fit_example(Example(image, torch.zeros(1, 10, 20).long(), "a", spacing=(0.5, 1.0)), (20, 20), 9)
    assert (example.image[0, 0] == 3).all()
    assert (example.image[0, -1] == 7).all()
    assert example.raters[0, :, 0].tolist() == [9] * 5 + [0] * 10 + [9] * 5
    assert example.spacing == (0.5, 1.0)
    assert fit_example(example, (10, 10), 9).spacing == (1.0, 2.0)


def test_examples_are_padded_to_the_largest():
    shapes = [(4, 9), (8, 3), (8, 9)]
    examples = [Example(torch.ones(2, *s), torch.ones(1, *s).long(), "") for s in shapes]
    padded = pad_together(examples, 255)
    assert {e.image.shape for e in padded} == {(2, 8, 9)}
    assert [int((e.raters == 1).sum()) for e in padded] == [h * w for h, w in shapes]


def test_volumes_are_padded_along_all_axes():
    shapes = [(2, 4, 9), (5, 8, 3)]
    examples = [Example(torch.rand(1, *s), torch.ones(3, *s).long(), "") for s in shapes]
    padded = pad_together(examples, 255)
    assert {tuple(e.image.shape) for e in padded} == {(1, 5, 8, 9)}
    first = padded[0]
    assert torch.equal(first.raters[:, 1:3, 2:6], examples[0].raters)
    assert int((first.raters == 255).sum()) == 3 * (5 * 8 * 9 - 2 * 4 * 9)
    assert torch.equal(first.image[0, 4, 2:6], examples[0].image[0, 1]), "slices beyond the last one repeat it"


@pytest.mark.parametrize(("classes", "ignore", "expected"), [(2, None, 255), (2, 7, 7), (300, None, 300)])
def test_padding_is_no_class(classes, ignore, expected):
    assert void_label(DatasetInfo(num_classes=classes, image_channels=1, ignore=ignore)) == expected
