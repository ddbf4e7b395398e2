"""Three planes of a volume: what they show, where, and to scale."""

import numpy as np
import pytest
import torch

from stochseg.data import PhantomVolumes
from stochseg.plotting import contact_sheet
from stochseg.plotting.planes import VolumeView, close_view, marked_view, plane_figure, sections
from stochseg.types import DatasetInfo, Example

SPACING = (3.0, 1.0, 0.5)
INFO = DatasetInfo(num_classes=2, image_channels=1, spatial_dims=3, ignore=255)


def test_planes_go_through_the_center_with_the_last_slice_on_top():
    values = np.arange(5 * 6 * 7).reshape(5, 6, 7)
    view = VolumeView((slice(1, 5), slice(0, 6), slice(2, 7)), (3, 4, 5))
    part = view.crop(values)
    assert (view.cut(part, 0) == values[3, :, 2:]).all()
    assert (view.cut(part, 1) == values[4:0:-1, 4, 2:]).all()
    assert (view.cut(part, 2) == values[4:0:-1, :, 5]).all()
    assert view.cut(part[None].repeat(2, 0), 1).shape == (2, 4, 5)


def test_planes_are_to_scale():
    view = VolumeView((slice(0, 8), slice(0, 20), slice(0, 30)), (4, 10, 15), SPACING)
    figure = plane_figure(view, lambda axis, plane: None, 8.0)
    inches = [axis.get_position().size * figure.get_size_inches() for axis in figure.axes]
    scale = inches[0][0] / 15
    for plane, (width, height) in enumerate(inches):
        rows, columns = view.sides(plane)
        assert (width, height) == (pytest.approx(columns * scale), pytest.approx(rows * scale))
    assert [view.sides(plane) for plane in range(3)] == [(20, 15), (24, 15), (24, 20)]
    assert [view.aspect(plane) for plane in range(3)] == [2, 6, 3]


def test_close_view_contains_all_and_cuts_the_largest_part():
    maps = torch.zeros(2, 20, 60, 80, dtype=torch.long)
    maps[0, 10:14, 40:50, 10:16] = 1
    maps[1, 2, 5, 70] = 1
    view = marked_view([maps], SPACING)
    assert view.crop(maps.numpy()).sum() == maps.sum()
    assert maps[(0, *view.center)] == 1
    small = close_view(maps[0].numpy() > 0, None, SPACING)
    assert np.prod([side.stop - side.start for side in small.window]) < maps[0].numel() / 4
    empty = close_view(np.zeros((4, 5, 6), dtype=bool), None, None)
    assert (empty.center, empty.window) == ((1, 2, 2), (slice(0, 4), slice(0, 5), slice(0, 6)))


def test_sections_cut_the_middle_of_the_object():
    image = torch.arange(4 * 5 * 6).float().view(1, 4, 5, 6)
    raters = torch.zeros(2, 4, 5, 6, dtype=torch.int64)
    raters[0, 3, 1, 2:5] = 1
    raters[1, :2] = 255
    slices, rows, columns = sections(Example(image, raters, "p", spacing=(2.5, 0.7, 0.5)), INFO)
    assert torch.equal(slices.image, image[:, 3])
    assert torch.equal(rows.image, image[:, :, 1].flip(1)), "the last slice is on top"
    assert torch.equal(columns.raters, raters[..., 3].flip(1))
    assert [part.spacing for part in (slices, rows, columns)] == [(0.7, 0.5), (2.5, 0.5), (2.5, 0.7)]
    assert [part.id for part in (slices, rows, columns)] == ["p", "row 1", "column 3"]


def test_every_section_shows_a_part_of_objects_far_apart():
    raters = torch.zeros(1, 9, 9, 9, dtype=torch.int64)
    raters[0, 0, 0, 0] = raters[0, 8, 8, 8] = 1
    assert all((plane.raters > 0).any() for plane in sections(Example(torch.rand(1, 9, 9, 9), raters, "p"), INFO))


def test_an_unmarked_volume_is_cut_in_its_middle():
    planes = sections(Example(torch.rand(1, 4, 5, 7), torch.zeros(1, 4, 5, 7).long(), "p"), INFO)
    assert [plane.id for plane in planes[1:]] == ["row 2", "column 3"]


def test_contact_sheet_of_volumes_is_to_scale():
    data = PhantomVolumes("train", size=16, slices=4, count=2)
    figure = contact_sheet([data[0], data[1]], data.info)
    shown = [axis for axis in figure.axes if axis.images]
    assert len(shown) == 6
    assert [axis.get_aspect() for axis in shown[:3]] == [1.0, pytest.approx(9 / 5.6), pytest.approx(9 / 5.6)]
