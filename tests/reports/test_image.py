"""Pictures of one image on a page."""

import numpy as np
import pytest
import torch

from stochseg.plotting import report_figures as figures
from stochseg.plotting.outlines import draw_labels, draw_raters, draw_samples
from stochseg.plotting.output import embed_picture
from stochseg.plotting.pictures import shrink
from stochseg.reports.image import ImageReport
from stochseg.types import DatasetInfo
from tests.support.samples import as_samples

INFO = DatasetInfo(num_classes=2, image_channels=1)


def test_pictures_are_to_scale():
    """With pixels of 3 mm by 1 mm, a disc of 12 mm is round on the page and its window is square."""
    y, x = np.mgrid[:40, :120]
    disc = torch.from_numpy(np.hypot((y - 20) * 3.0, x - 60.0) < 6).long()[None]
    image = ImageReport("disc", np.zeros((40, 120, 3)), as_samples(disc), INFO, (3.0, 1.0))
    rows, columns = image.window
    assert (rows.stop - rows.start) * 3 == pytest.approx(columns.stop - columns.start, abs=3)
    assert disc[0, rows, columns].sum() == disc.sum()
    for figure in (
        figures.locator(image.picture, image.window, image.aspect),
        figures.value_map(np.zeros((40, 120)), 1.0, "magma", "", image.aspect),
        figures.overlay(image.picture, image.aspect, draw_labels, disc[0].numpy(), INFO),
        figures.overlay(image.picture, image.aspect, draw_samples, disc.numpy(), np.ones(1), INFO, [1]),
        figures.overlay(image.picture, image.aspect, draw_raters, disc.numpy()),
    ):
        axis = figure.axes[0]
        axis.apply_aspect()
        width, height = axis.get_position().size * figure.get_size_inches()
        assert height == pytest.approx(width)
        assert width == pytest.approx(figures.WIDTH)


def test_large_photographs_are_embedded_as_small_jpegs():
    picture = np.random.default_rng(0).random((1300, 700, 3))
    plot = figures.overlay(shrink(picture)[0], 1.0, draw_labels, np.zeros((434, 234), dtype=np.int64), INFO)
    uri = embed_picture(plot)
    assert uri.startswith("data:image/jpeg")
    assert len(uri) < 600_000
