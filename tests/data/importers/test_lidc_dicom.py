"""LIDC-IDRI from DICOM series and outlines, on small series that these tests write."""

import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pydicom
import pytest
import torch

from stochseg.data.importers import lidc_dicom as importer
from stochseg.data.importers.lidc import published_split
from stochseg.data.importers.lidc_dicom import cluster, crop
from stochseg.data.store import Store, write_store
from stochseg.errors import UserError
from tests.support.lidc import (
    INTERCEPT,
    OTHER,
    PATIENT,
    SIZE,
    SLOPE,
    SPACING,
    UID,
    disc,
    error_of,
    four,
    nodule,
    one_nodule,
    plan_of,
    raw_pixels,
    reading,
    records,
    reference,
    reference_crop,
    reference_window,
    roi,
    sop,
    write_series,
    write_slice,
    write_xml,
)


def cloud(x, y=0.0, z=0.0):
    return np.array([[x, y, z], [x + 1.0, y, z]])


def groups(clouds, tolerance):
    return sorted(map(sorted, cluster(clouds, tolerance)))


def test_annotations_within_the_tolerance_are_one_nodule():
    assert groups([cloud(0), cloud(3), cloud(9)], 2.0) == [[0, 1], [2]]
    assert groups([cloud(0), cloud(3), cloud(9)], 1.99) == [[0], [1], [2]]
    assert groups([cloud(0), cloud(0, z=2.5), cloud(0, y=3.0)], 2.5) == [[0, 1], [2]]
    assert groups([cloud(0), cloud(4), cloud(2)], 1.0) == [[0, 1, 2]]
    assert cluster([], 1.0) == []


def test_tolerance_shrinks_until_at_most_four_are_joined():
    first = [cloud(0, y=0.01 * i) for i in range(4)]
    second = [cloud(2.5, y=0.01 * i) for i in range(3)]
    assert groups(first + second, 2.0) == [[0, 1, 2, 3], [4, 5, 6]]


def test_clustering_ends_if_no_tolerance_separates_annotations():
    assert groups([cloud(0)] * 6, 2.0) == [[0, 1, 2, 3, 4, 5]]


def test_two_nearby_nodules_stay_separate(source):
    """There are three pixels of 0.75 mm between the outlines, and the tolerance is 2 mm."""
    left, right = disc(60, 50, 6), disc(60, 65, 6)
    write_xml(source, reading(*[[one_nodule(left), one_nodule(right)]] * 4))
    found = records(source)
    assert list(found) == [f"{PATIENT}-n00-s003", f"{PATIENT}-n01-s003"]
    for record, points, column in zip(found.values(), (left, right), (50, 65), strict=True):
        assert np.array_equal(record.raters, [reference_crop(reference(points), 60, column)] * 4)


def test_distance_is_in_millimeters_along_each_axis(source):
    """The outlines are 4 pixels apart: 2 mm between rows, 3 mm between columns."""
    for gap, count in (((11, 0), 1), ((0, 11), 2)):
        readers = [[one_nodule(square(40, 40))], [one_nodule(square(40 + gap[0], 40 + gap[1]))]]
        write_xml(source, reading(*readers))
        assert len({item.id[:-5] for item in plan_of(source).items}) == count


def square(row, column, half=3.5):
    """A square of eight pixels: the outlines of two that are 11 pixels apart have a distance of four."""
    low, high = int(-half), int(half + 0.5)
    return [(column + dx, row + dy) for dx, dy in ((low, low), (high, low), (high, high), (low, high))]


def test_slice_distance_is_the_tolerance_without_thickness(tmp_path):
    write_series(tmp_path, drop=["SliceThickness"])
    write_xml(tmp_path, reading([one_nodule(square(40, 40))], [one_nodule(square(51, 40))]))
    assert len(plan_of(tmp_path).items) == 1


def test_parts_of_one_reader_are_united(source):
    whole, parts = disc(60, 60, 12), [disc(55, 60, 4), disc(66, 60, 4)]
    write_xml(source, reading([one_nodule(whole)], [one_nodule(part) for part in parts]))
    (record,) = records(source).values()
    votes = reference(whole).astype(int) + reference(parts[0]) + reference(parts[1])
    row, column = (int(np.floor((axis * votes).sum() / votes.sum() + 0.5)) for axis in np.indices(SIZE))
    union = reference(parts[0]) | reference(parts[1])
    empty = np.zeros((128, 128), np.uint8)
    expected = [reference_crop(m, row, column) for m in (reference(whole), union)]
    assert np.array_equal(record.raters, [*expected, empty, empty])


def test_maps_of_readers_who_drew_nothing_are_empty(source):
    """Reader 2 did not draw the nodule, and reader 3 not on the upper slice."""
    low, high = disc(70, 80, 8), disc(70, 80, 5)
    both = nodule(roi(2, low), roi(3, high))
    write_xml(source, reading([both], [], [nodule(roi(2, low))], [both]))
    found = records(source)
    assert list(found) == [f"{PATIENT}-n00-s002", f"{PATIENT}-n00-s003"]
    drawn = [record.raters.any((1, 2)).tolist() for record in found.values()]
    assert drawn == [[True, False, True, True], [True, False, False, True]]
    for record, points in zip(found.values(), (low, high), strict=True):
        assert record.raters.shape == (4, 128, 128)
        assert np.array_equal(record.raters[0], reference_crop(reference(points), 70, 80))
        assert np.array_equal(record.raters[3], record.raters[0])


def test_holes_are_removed_without_their_edge(source):
    outer, hole = disc(70, 80, 12), disc(71, 78, 4)
    write_xml(source, reading([nodule(roi(3, outer), roi(3, hole, inclusion="FALSE"))], [one_nodule(outer)]))
    (record,) = records(source).values()
    expected = reference(outer) & ~reference(hole)
    full = reference(outer)
    votes = expected.astype(int) + full
    row, column = (int(np.floor((axis * votes).sum() / votes.sum() + 0.5)) for axis in np.indices(SIZE))
    assert np.array_equal(record.raters[0], reference_crop(expected, row, column))
    assert np.array_equal(record.raters[1], reference_crop(full, row, column))
    x, y = hole[0]
    assert record.raters[0, y - row + 64, x - column + 64] == 1


def test_center_is_the_mean_over_readers_and_slices(source):
    """Two readers disagree and the nodule is oblique; all slices share the center."""
    a, b, c = disc(60, 60, 9), disc(64, 70, 5), disc(66, 62, 6)
    write_xml(source, reading([nodule(roi(2, a), roi(3, c))], [nodule(roi(2, b))]))
    found = list(records(source).values())
    votes = sum(reference(points).astype(int) for points in (a, b, c))
    row, column = (int(np.floor((axis * votes).sum() / votes.sum() + 0.5)) for axis in np.indices(SIZE))
    for record, number in zip(found, (2, 3), strict=True):
        assert np.array_equal(record.image[..., 0], reference_crop(reference_window(number), row, column))
    assert np.array_equal(found[0].raters[1], reference_crop(reference(b), row, column))


@pytest.mark.parametrize(("row", "column"), [(12, 11), (149, 138), (80, 11)])
def test_crops_are_padded_with_air_and_background(source, row, column):
    points = disc(row, column, 6)
    write_xml(source, reading(*four(points)))
    (record,) = records(source).values()
    assert np.array_equal(record.image[..., 0], reference_crop(reference_window(3), row, column))
    assert np.array_equal(record.raters, [reference_crop(reference(points), row, column)] * 4)
    assert record.raters[:, 64, 64].all()


def test_small_images_are_padded_on_all_sides(tmp_path):
    write_series(tmp_path, size=(40, 48))
    points = disc(20, 24, 6)
    write_xml(tmp_path, reading(*four(points)))
    (record,) = records(tmp_path).values()
    assert np.array_equal(record.image[..., 0], reference_crop(reference_window(3, (40, 48)), 20, 24))
    assert np.array_equal(record.raters[0], reference_crop(reference(points, (40, 48)), 20, 24))


def test_crop_is_around_the_center():
    image = np.arange(200 * 300).reshape(200, 300)
    assert crop(image, (120, 130))[64, 64] == image[120, 130]
    assert crop(np.stack([image] * 2), (0, 299)).shape == (2, 128, 128)


def test_hounsfield_window(tmp_path):
    hounsfield = np.array([-2048, -1024, -1000, -998, -300, 0, 398, 400, 402, 3000])
    raw = np.zeros(SIZE, np.int16)
    raw[0, : len(hounsfield)] = (hounsfield - INTERCEPT) / SLOPE
    write_slice(tmp_path / "a.dcm", 0, PixelData=raw.tobytes())
    got = importer.read_window(tmp_path / "a.dcm")
    assert got.dtype == np.uint8
    # -300 lies halfway at 127.5; 0 HU is 1000/1400 of 255, 182.1; 2 HU are 0.36 gray values.
    assert got[0, : len(hounsfield)].tolist() == [0, 0, 0, 0, 128, 182, 255, 255, 255, 255]


def test_slice_numbers_count_from_the_foot_and_spacing_is_kept(source):
    write_xml(source, reading([nodule(roi(5, disc(60, 60, 6)), roi(1, disc(90, 90, 6)))]))
    found = records(source)
    assert list(found) == [f"{PATIENT}-n00-s001", f"{PATIENT}-n00-s005"]
    assert all(record.spacing == SPACING and record.rater_names == () for record in found.values())


@pytest.mark.parametrize("namespace", ["", ' xmlns="http://www.nih.gov"', ' xmlns="urn:other"'])
def test_xml_may_have_any_namespace_and_place(source, namespace):
    content = reading(*four(disc(60, 60, 6)), namespace=namespace)
    write_xml(source, content, f"{PATIENT}/study/{UID}/158.XML")
    assert len(plan_of(source).items) == 1


def test_more_than_four_sessions_fill_the_maps_in_order(source):
    points = disc(60, 60, 6)
    write_xml(source, reading([], [], [], [one_nodule(points)], [], [one_nodule(points)]))
    (record,) = records(source).values()
    assert record.raters.any((1, 2)).tolist() == [True, True, False, False]


def test_files_without_suffix_and_other_modalities(tmp_path):
    folder = write_series(tmp_path)
    for file in folder.iterdir():
        file.rename(file.with_name(file.stem.replace("-", ".")))
    write_slice(folder / "film.dcm", 0, uid=OTHER, Modality="DX")
    (folder / "LICENSE").write_text("CC BY 3.0")
    write_xml(tmp_path, reading(*four(disc(60, 60, 6))))
    plan = plan_of(tmp_path)
    assert len(plan.items) == 1
    assert "0 CT series without annotation" in plan.provenance.note


def test_nodules_are_numbered_across_the_series_of_a_patient(source):
    write_series(source, uid=OTHER)
    points = disc(60, 60, 6)
    write_xml(source, reading(*four(points)), "a.xml")
    write_xml(source, reading(*four(points), uid=OTHER), "b.xml")
    assert [item.id for item in plan_of(source).items] == [f"{PATIENT}-n00-s003", f"{PATIENT}-n01-s003"]


def test_store_equals_the_drawings_split_by_patient(tmp_path):
    root = tmp_path / "source"
    points = {}
    for i in range(1, 9):
        patient, uid = f"LIDC-IDRI-{i:04d}", f"1.2.826.9.{i}"
        write_series(root, count=5, patient=patient, uid=uid)
        points[patient] = disc(60 + i, 70 - i, 4 + i)
        drawn = [[one_nodule(points[patient])]] * 3
        write_xml(root, reading(*drawn, uid=uid), f"{i}.xml")
    plan = plan_of(root)
    assert {item.group: item.split for item in plan.items} == {p: published_split(p) for p in points}
    path = write_store(plan, tmp_path / "lidc.h5")
    splits = sorted({item.split for item in plan.items})
    assert len(splits) > 1
    examples = [e for split in splits for e in Store(split, path=str(path))]
    assert sorted(e.group for e in examples) == sorted(points)
    for example in examples:
        i = int(example.group[-4:])
        assert example.id == f"{example.group}-n00-s003"
        assert example.spacing == SPACING
        expected = reference_crop(reference(points[example.group]), 60 + i, 70 - i)
        assert np.array_equal(example.raters[:3], [expected] * 3)
        assert example.raters.shape == (4, 128, 128)
        assert not example.raters[3].any()
        image = reference_crop(reference_window(3), 60 + i, 70 - i)
        torch.testing.assert_close(example.image[0], (torch.from_numpy(image).float() - 127.5) / 127.5)


def test_planning_reads_no_pixels_and_slices_are_read_once(source, monkeypatch):
    write_xml(source, reading(*[[one_nodule(disc(40, 40, 6)), one_nodule(disc(90, 90, 6))]] * 2))
    read = Counter()
    original = pydicom.dcmread

    def counting(file, **options):
        read["header" if options.get("stop_before_pixels") else "pixels"] += 1
        return original(file, **options)

    monkeypatch.setattr(pydicom, "dcmread", counting)
    items = plan_of(source).items
    assert read == {"header": 7}
    assert len([item.read() for item in items]) == 2
    assert read["pixels"] == 1


def test_skipped_series_and_readings_are_noted(source):
    write_series(source, count=2, uid=OTHER)
    write_xml(source, reading(*four(disc(60, 60, 6))))
    write_xml(source, '<IdriReadMessage xmlns="http://www.nih.gov/idri"/>', "film.xml")
    write_xml(source, reading([], uid="1.9.9"), "elsewhere.xml")
    note = plan_of(source).provenance.note
    assert "1 CT series without annotation" in note
    assert "1 readings of chest films" in note
    assert "outlines from the XML files" in note


def test_position_takes_precedence_over_the_uid(source):
    write_xml(source, reading([nodule(roi(3, disc(60, 60, 6), uid=sop(6)))]))
    assert [item.id for item in plan_of(source).items] == [f"{PATIENT}-n00-s003"]


def test_uid_decides_if_no_slice_has_the_position(source):
    write_xml(source, reading([nodule(roi(3, disc(60, 60, 6), z=77))]))
    assert [item.id for item in plan_of(source).items] == [f"{PATIENT}-n00-s003"]


def test_uid_decides_between_slices_of_one_position(source):
    folder = source / PATIENT / "study" / UID
    write_slice(folder / "again.dcm", 3, SOPInstanceUID=f"{UID}.99")
    write_xml(source, reading([nodule(roi(3, disc(60, 60, 6), uid=f"{UID}.99"))]))
    (item,) = plan_of(source).items
    assert item.id == f"{PATIENT}-n00-s004"


def test_no_dicom_no_annotation_no_folder(tmp_path, source):
    with pytest.raises(UserError, match="LIDC-IDRI: .*annotation"):
        plan_of(source)
    write_xml(tmp_path / "only", reading([]))
    with pytest.raises(UserError, match="only: .*DICOM"):
        plan_of(tmp_path / "only")
    archive = Path(shutil.make_archive(str(tmp_path / "all"), "zip", source))
    with pytest.raises(UserError, match=r"all\.zip: .*folder"):
        plan_of(archive)


def test_annotations_of_other_series(source):
    assert "1 CT series is one of the 1 annotated" in error_of(source, reading([], uid=OTHER))


def test_roi_on_a_missing_slice(source):
    (source / PATIENT / "study" / UID / "1-004.dcm").unlink()
    message = error_of(source)
    assert "158.xml: a roi at z -94.0" in message
    assert sop(3) in message
    assert "matches 0 slices" in message


def test_roi_at_the_position_of_two_slices(source):
    write_slice(source / PATIENT / "study" / UID / "again.dcm", 3, SOPInstanceUID=f"{UID}.99")
    content = reading([nodule(roi(3, disc(60, 60, 6), uid="1.1.1"))])
    assert "matches 2 slices" in error_of(source, content)


def test_same_slice_twice(source):
    folder = source / PATIENT / "study" / UID
    shutil.copy(folder / "1-004.dcm", folder / "copy.dcm")
    message = error_of(source)
    assert "copy.dcm and" in message
    assert f"1-004.dcm are the same slice (SOP UID {sop(3)})" in message


def test_slices_of_different_sizes(source):
    write_slice(source / PATIENT / "study" / UID / "wide.dcm", 9, size=(160, 170))
    assert "wide.dcm: (patient, size, spacing) is" in error_of(source)


def test_outline_beyond_the_image(source):
    content = reading([nodule(roi(3, disc(60, 148, 6)))])
    assert "an outline leaves the 160×150 image" in error_of(source, content)


def test_missing_or_damaged_pixels(source):
    file = source / PATIENT / "study" / UID / "1-004.dcm"
    write_slice(file, 3, drop=["PixelData"])
    assert "1-004.dcm has no pixel data" in error_of(source)
    write_slice(file, 3, PixelData=b"\0\0" * 10)
    assert "1-004.dcm: the pixels cannot be decoded" in error_of(source)
    write_slice(file, 3, drop=["RescaleSlope"])
    assert "1-004.dcm: no RescaleSlope" in error_of(source)
    write_slice(file, 3, NumberOfFrames=2, PixelData=raw_pixels(3).tobytes() * 2)
    assert "1-004.dcm: expected one slice of (160, 150), got pixels of shape (2, 160, 150)" in error_of(source)


def test_missing_or_damaged_headers(source):
    file = source / PATIENT / "study" / UID / "1-004.dcm"
    write_slice(file, 3, drop=["ImagePositionPatient"])
    assert "1-004.dcm: the DICOM header has no ImagePositionPatient" in error_of(source)
    write_slice(file, 3, PixelSpacing=None)
    assert "1-004.dcm: the DICOM header has no PixelSpacing" in error_of(source)
    write_slice(file, 3, PixelSpacing=[0.5])
    assert "1-004.dcm: the DICOM header" in error_of(source)
    file.write_bytes(b"not DICOM")
    assert "1-004.dcm cannot be read as DICOM" in error_of(source)


def test_missing_pydicom_names_the_extra(source, monkeypatch):
    monkeypatch.setitem(sys.modules, "pydicom", None)
    assert "pip install 'stochseg[medical]'" in error_of(source)
