"""Colors of images and label maps, close-ups."""

import numpy as np
import pytest
import torch

from stochseg.plotting.pictures import (
    close_up,
    image_to_rgb,
    intensities_to_rgb,
    labels_to_rgb,
    mean_to_rgb,
    shrink,
    to_eight_bits,
)
from stochseg.types import DatasetInfo, Normalization

INFO = DatasetInfo(num_classes=2, image_channels=1, palette=("#000000", "#ff8000"), ignore=255)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float64])
def test_eight_bit_values_are_shown_unchanged(dtype):
    raw = np.arange(256).reshape(16, 16).astype(dtype)
    np.testing.assert_array_equal(to_eight_bits(raw), raw)
    np.testing.assert_array_equal(to_eight_bits(raw // 2), raw // 2)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-1000, 3000), (0, 65535), (500, 500)])
def test_other_values_are_shown_from_the_first_to_the_last_percentile(low, high):
    raw = np.linspace(low, high, 101)
    shown = to_eight_bits(raw)
    assert shown.min() == 0
    assert shown[:2].max() == 0
    if high > low:
        assert shown[-2:].min() == 255
        assert shown[50] == pytest.approx(127.5, abs=1e-3)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("scale", [255.0, 4000.0])
def test_images_of_any_range_and_channels(channels, scale):
    raw = torch.rand(channels, 5, 6) * scale
    shown = image_to_rgb(Normalization()(raw), Normalization())
    assert shown.shape == (5, 6, 3)
    assert shown.min() >= 0
    assert shown.max() <= 1
    np.testing.assert_allclose(shown, intensities_to_rgb(raw.permute(1, 2, 0).numpy()), atol=1e-4)
    if scale == 255 and channels == 3:
        np.testing.assert_allclose(shown, raw.permute(1, 2, 0) / 255, atol=1e-5)
    if channels < 3:
        assert (shown == shown[..., :1]).all()


def test_labels_have_the_colors_of_the_palette_and_void_is_gray():
    colors = labels_to_rgb(torch.tensor([[0, 1, 255]]), INFO)
    np.testing.assert_allclose(colors, [[[0, 0, 0], [1, 128 / 255, 0], [0.6, 0.6, 0.6]]])
    certain = torch.tensor([[[0.0]], [[1.0]]])
    np.testing.assert_allclose(mean_to_rgb(certain, INFO), [[[1, 128 / 255, 0]]], atol=1e-6)


def test_shrink_keeps_maps_aligned():
    picture = np.random.default_rng(0).random((1300, 700, 3))
    small, maps = shrink(picture, np.tile(np.arange(700), (2, 1300, 1)))
    assert small.shape == (434, 234, 3)
    assert maps.shape == (2, 434, 234)
    assert maps[0, 0, :3].tolist() == [1, 4, 7]


@pytest.mark.parametrize("aspect", [1.0, 3.0, 0.4])
def test_close_up_contains_all_that_is_marked(aspect):
    marked = np.zeros((200, 300), bool)
    marked[3:9, 290:299] = True
    rows, columns = close_up(marked, aspect)
    assert marked[rows, columns].sum() == marked.sum()
    assert aspect * (rows.stop - rows.start) == pytest.approx(columns.stop - columns.start, abs=max(1, aspect))
    assert close_up(np.zeros_like(marked)) is None
    assert close_up(np.ones_like(marked), aspect) is None
