"""Three planes of a volume: through the object, upright and to scale."""

import pytest
import torch

from stochseg.data import PhantomVolumes
from stochseg.plotting import contact_sheet
from stochseg.plotting.sections import sections
from stochseg.types import DatasetInfo, Example

INFO = DatasetInfo(num_classes=2, image_channels=1, spatial_dims=3, ignore=255)


def test_planes_cut_the_middle_of_the_object():
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


def test_every_plane_shows_a_part_of_objects_far_apart():
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
