"""Nodules of LIDC-IDRI as volumes from DICOM series and outlines, with label maps computed by hand."""

import numpy as np
import pytest

from stochseg.data.store import Store, write_store
from stochseg.errors import UserError
from tests.support.lidc import (
    PATIENT,
    SPACING,
    STEP,
    UID,
    disc,
    nodule,
    plan_of,
    reading,
    records,
    reference_crop,
    reference_window,
    roi,
    write_series,
    write_slice,
    write_xml,
)

KIND = "lidc-dicom-nodules"
ROW, COLUMN = 80, 70


def square(half):
    """The outline of a square around (ROW, COLUMN): the pixels closer than `half` are inside."""
    return [(COLUMN + dx * half, ROW + dy * half) for dx, dy in ((-1, -1), (1, -1), (1, 1), (-1, 1))]


def square_map(half):
    """The map of `square` in a crop, whose pixel (64, 64) is its center."""
    expected = np.zeros((128, 128), np.uint8)
    expected[64 - half + 1 : 64 + half, 64 - half + 1 : 64 + half] = 1
    return expected


def two_readers(source):
    """Readers 0 and 3 draw slices 1, 2 and 4; nobody draws slice 3. Reader 1 marks a point, reader 2 nothing."""
    first = nodule(roi(1, square(4)), roi(2, square(10)), roi(2, square(3), inclusion="FALSE"), roi(4, square(6)))
    small = nodule(roi(5, [(30, 30)]))
    write_xml(source, reading([first], [small], [], [nodule(roi(2, square(8)))]))


def test_volume_equals_the_maps_computed_by_hand(source):
    two_readers(source)
    found = records(source, KIND)
    assert list(found) == [f"{PATIENT}-n00"]
    (record,) = found.values()
    empty = np.zeros((128, 128), np.uint8)
    ring = square_map(10) - square_map(3)
    expected = [[square_map(4), ring, empty, square_map(6)], [empty] * 4, [empty] * 4]
    expected += [[empty, square_map(8), empty, empty]]
    assert np.array_equal(record.raters, expected)
    image = [reference_crop(reference_window(number), ROW, COLUMN) for number in (1, 2, 3, 4)]
    assert np.array_equal(record.image[..., 0], image)
    assert record.spacing == (STEP, *SPACING)


def test_slices_of_volumes_are_the_examples_of_slices(source):
    one, other = nodule(roi(2, disc(40, 40, 9)), roi(3, disc(42, 38, 7))), nodule(roi(3, disc(110, 90, 5)))
    write_xml(source, reading([one, other], [nodule(roi(3, disc(43, 39, 8)))]))
    slices, volumes = records(source), records(source, KIND)
    assert list(volumes) == [f"{PATIENT}-n00", f"{PATIENT}-n01"]
    for name, volume in volumes.items():
        own = [record for key, record in slices.items() if key.startswith(f"{name}-s")]
        assert np.array_equal(volume.image, [record.image for record in own])
        assert np.array_equal(volume.raters, np.stack([record.raters for record in own], 1))


def test_store_of_volumes_states_how_scans_are_prepared(source, tmp_path):
    two_readers(source)
    plan = plan_of(source, KIND)
    path = write_store(plan, tmp_path / "nodules.h5")
    (item,) = plan.items
    data = Store(item.split, path=str(path))
    assert data[0].image.shape == (1, 4, 128, 128)
    assert data[0].spacing == (STEP, *SPACING)
    assert data.info.spatial_dims == 3
    assert data.info.preparation.window == (-1000, 400)


def test_missing_slice_within_a_nodule(source):
    two_readers(source)
    folder = source / PATIENT / "study" / UID
    (folder / "1-004.dcm").unlink()  # slice 3, on which nobody drew
    with pytest.raises(UserError, match=r"1-005\.dcm and .*1-003\.dcm lie 4 mm apart, .* 2 mm: .*missing"):
        plan_of(source, KIND)


def test_missing_slice_elsewhere_is_no_gap_of_the_volume(source):
    two_readers(source)
    (source / PATIENT / "study" / UID / "1-002.dcm").unlink()  # slice 5
    (record,) = records(source, KIND).values()
    assert record.image.shape[0] == 4
    assert record.spacing == (STEP, *SPACING)


def test_two_slices_at_one_position_within_a_nodule(source):
    two_readers(source)
    write_slice(source / PATIENT / "study" / UID / "again.dcm", 3, SOPInstanceUID=f"{UID}.99")
    with pytest.raises(UserError, match="same place"):
        plan_of(source, KIND)


def test_distance_comes_from_positions_not_from_the_thickness(tmp_path):
    write_series(tmp_path, SliceThickness=5.0)
    two_readers(tmp_path)
    (record,) = records(tmp_path, KIND).values()
    assert record.spacing == (STEP, *SPACING)


def test_single_slice_is_as_deep_as_it_is_thick(tmp_path):
    drawn = reading([nodule(roi(0, square(5)))])
    write_xml(tmp_path, drawn)
    write_series(tmp_path, count=1, SliceThickness=5.0)
    (record,) = records(tmp_path, KIND).values()
    assert record.image.shape == (1, 128, 128, 1)
    assert record.spacing == (5.0, *SPACING)
    write_series(tmp_path, count=1, drop=["SliceThickness"])
    with pytest.raises(UserError, match=r"1-001\.dcm: .*distance"):
        plan_of(tmp_path, KIND)
