"""Three planes of a volume: what they show, where, and to scale."""

import numpy as np
import pytest
import torch

from stochseg.plotting.planes import VolumeView, close_view, marked_view, plane_figure

SPACING = (3.0, 1.0, 0.5)


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
