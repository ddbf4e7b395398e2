"""Pictures of one image on a page."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from stochseg.plotting import report_figures as figures
from stochseg.plotting.outlines import draw_labels, draw_raters, draw_samples, rater_colors
from stochseg.plotting.output import embed_picture
from stochseg.plotting.pictures import shrink
from stochseg.reports.image import ImageReport
from stochseg.reports.page import write_page
from stochseg.types import DatasetInfo
from tests.support.pages import Page
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


def test_all_raters_and_classes_are_named_on_the_page(tmp_path):
    """With their colors, beyond the fourth, and with one probability map per class."""
    names = ("background", "rim", "cup", "vessel")
    info = DatasetInfo(num_classes=4, image_channels=1, class_names=names)
    maps = torch.zeros(6, 32, 32, dtype=torch.long)
    maps[:, 4:28, 4:28] = 1
    maps[:, 10:20, 10:20] = 2
    raters = tuple(f"reader {letter}" for letter in "ABCDEFGHI")
    image = ImageReport(
        "disc",
        np.zeros((32, 32, 3)),
        as_samples(maps, 4),
        info,
        raters=maps[:1].repeat(9, 1, 1),
        rater_names=raters,
    )
    page = Page(write_page(tmp_path / "page.html", "t", "", [image.section()])).check()
    titles = [title for title, _ in page.images]
    assert {"rim.", "cup."} <= set(titles)
    assert "vessel." not in titles
    assert "at every pixel: vessel" in page.text
    assert [name for name in (*raters, *names[1:]) if name not in page.text] == []
    text = (tmp_path / "page.html").read_text()
    assert [color for color in (*rater_colors(9), *info.colors[1:3]) if f"background: {color}" not in text] == []


def test_the_labeled_part_is_drawn_to_scale_in_a_close_up():
    maps = torch.zeros(1, 100, 100, dtype=torch.long)
    maps[0, 40:50, 42:52] = 1
    image = ImageReport("a", np.zeros((100, 100, 3)), replace(as_samples(maps), window=((30, 70), (32, 72))), INFO)
    rows, columns = image.window
    (picture,) = image._view()
    figure = figures.overlay(picture, 1.0, draw_labels, maps[0, rows, columns].numpy(), INFO)
    image._draw_window(figure, picture)
    left, top, right, bottom = figure.axes[0].patches[0].get_bbox().extents + 0.5
    assert (top + rows.start, bottom + rows.start) == (30, 70)
    assert (left + columns.start, right + columns.start) == (32, 72)
