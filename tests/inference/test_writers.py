"""Samples as numpy, NIfTI, DICOM SEG and TIFF: read back with the field's own readers."""

import json
import sys
from dataclasses import replace

import highdicom
import nibabel
import numpy as np
import pydicom
import pytest
import tifffile
import torch
from PIL import Image

from stochseg.errors import UserError
from stochseg.inference import to_dicom_seg, to_nifti, to_numpy
from stochseg.inference.result import StackResult
from stochseg.inference.result_folder import write_result
from stochseg.inference.series import read_series
from stochseg.inference.stacks import Lattice, Stack
from stochseg.inference.writers import Prediction
from stochseg.inference.writers.previews import overlay
from stochseg.types import DatasetInfo, Samples
from tests.support.oblique import ACROSS, CORNER, DOWN, SPACING, STEP, expected_affine, write_series

INFO = DatasetInfo(num_classes=3, image_channels=1, class_names=("background", "nodule", "vessel"))


def drawn(s=5, n=4, h=12, w=10, classes=3) -> Samples:
    generator = torch.Generator().manual_seed(3)
    mean = torch.rand(s, classes, h, w, generator=generator) ** 3
    labels = torch.randint(classes, (s, n, h, w), generator=generator)
    return Samples(labels, mean / mean.sum(1, keepdim=True), torch.full((s, n), 1 / n), seed=0)


def predicted(samples: Samples, stack: Stack, **options) -> Prediction:
    return Prediction(StackResult.from_samples(samples), stack, INFO, **options)


FACTS = {"format": "stochseg-prediction"}


# --- converters -------------------------------------------------------------------------------------------


def test_numpy():
    samples = drawn()
    arrays = to_numpy(samples)
    assert {k: (v.shape, v.dtype) for k, v in arrays.items()} == {
        "labels": ((5, 4, 12, 10), np.uint8),
        "fused": ((5, 12, 10), np.uint8),
        "mean": ((5, 3, 12, 10), np.float32),
        "entropy": ((5, 12, 10), np.float32),
        "weights": ((5, 4), np.float32),
    }
    assert (arrays["labels"] == samples.labels.numpy()).all()
    assert (arrays["fused"] == samples.mean.argmax(1).numpy()).all()


def test_more_classes_than_a_byte_holds():
    samples = drawn(1, 2, 4, 4, classes=300)
    assert to_numpy(samples)["labels"].dtype == np.uint16
    assert (to_nifti(samples, "labels").get_fdata()[:, :, 0].transpose(2, 1, 0) == samples.labels[0].numpy()).all()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_nifti_puts_every_value_where_its_slice_lies(axis):
    samples = drawn()
    lattice = Lattice(np.diag([2.0, 3.0, 4.0, 1.0]), axis)
    across, down = (i for i in range(3) if i != axis)
    fused, labels = to_nifti(samples, lattice=lattice), to_nifti(samples, "labels", lattice)
    mean, entropy = to_nifti(samples, "mean", lattice), to_nifti(samples, "entropy", lattice)
    for s, y, x in np.random.default_rng(0).integers(0, (5, 12, 10), (20, 3)):
        index = [0, 0, 0]
        index[axis], index[down], index[across] = s, y, x
        index = tuple(index)
        assert fused.get_fdata()[index] == samples.fused()[s, y, x]
        assert (labels.get_fdata()[index] == samples.labels[s, :, y, x].numpy()).all()
        assert np.allclose(mean.get_fdata()[index], samples.mean[s, :, y, x])
        assert np.allclose(entropy.get_fdata()[index], samples.entropy[s, y, x], atol=1e-6)
    assert labels.shape[3] == 4
    assert mean.shape[3] == 3
    assert labels.get_data_dtype() == np.uint8
    assert np.allclose(fused.affine, lattice.affine)


def test_nifti_of_an_unknown_part():
    with pytest.raises(UserError, match="unknown part 'variance'; known: entropy, fused, labels, mean"):
        to_nifti(drawn(), "variance")


def test_a_header_keeps_its_codes_and_loses_its_scaling(tmp_path):
    source = nibabel.Nifti1Image(np.zeros((10, 12, 5), np.int16), expected_affine())
    source.header.set_sform(expected_affine(), code="scanner")
    source.header.set_qform(expected_affine(), code="scanner")
    source.header.set_slope_inter(3.0, 7.0)
    source.header["cal_max"] = 900
    lattice = Lattice(source.affine, 2, source.header)
    to_nifti(drawn(), "labels", lattice).to_filename(tmp_path / "a.nii.gz")
    again = nibabel.load(tmp_path / "a.nii.gz")
    assert int(again.header["sform_code"]) == int(again.header["qform_code"]) == 1
    assert np.allclose(again.header.get_sform(), expected_affine(), atol=1e-5)
    assert np.allclose(again.header.get_qform(), expected_affine(), atol=1e-4)
    assert again.header.get_intent()[0] == "label"
    assert again.header["cal_max"] == 0
    assert (np.asarray(again.dataobj).transpose(2, 3, 1, 0) == drawn().labels.numpy()).all()
    assert again.get_data_dtype() == np.uint8


def test_nifti_2_stays_nifti_2():
    source = nibabel.Nifti2Image(np.zeros((10, 12, 5), np.int16), expected_affine())
    assert isinstance(to_nifti(drawn(), lattice=Lattice(source.affine, 2, source.header)), nibabel.Nifti2Image)


# --- DICOM SEG --------------------------------------------------------------------------------------------


@pytest.fixture
def series(tmp_path):
    write_series(tmp_path / "ct")
    return read_series(sorted((tmp_path / "ct").iterdir()))


def test_seg_says_what_the_fused_map_says_of_every_source_slice(series, tmp_path):
    samples = drawn()
    to_dicom_seg(samples, series.headers, INFO, "ccdm-fast").save_as(tmp_path / "seg.dcm")
    seg = highdicom.seg.segread(tmp_path / "seg.dcm")
    uids = [header.SOPInstanceUID for header in series.headers]
    pixels = seg.get_pixels_by_source_instance(uids, combine_segments=True, skip_overlap_checks=True)
    assert (pixels == samples.fused().numpy()).all()
    assert [d.segment_label for d in (seg.get_segment_description(i) for i in (1, 2))] == ["nodule", "vessel"]
    assert seg.number_of_segments == 2
    plain = pydicom.dcmread(tmp_path / "seg.dcm")
    assert plain.SOPClassUID == pydicom.uid.SegmentationStorage
    assert plain.Modality == "SEG"
    assert plain.SegmentationType == "BINARY"
    header = series.headers[0]
    for tag in ("StudyInstanceUID", "PatientID", "PatientName", "FrameOfReferenceUID", "StudyID"):
        assert plain[tag].value == header[tag].value
    assert plain.SeriesInstanceUID != header.SeriesInstanceUID
    assert plain.ReferencedSeriesSequence[0].SeriesInstanceUID == header.SeriesInstanceUID
    assert {i.ReferencedSOPInstanceUID for i in plain.ReferencedSeriesSequence[0].ReferencedInstanceSequence} == set(
        uids
    )
    assert plain.SegmentSequence[0].SegmentAlgorithmType == "AUTOMATIC"
    assert plain.SegmentSequence[0].SegmentAlgorithmName == "ccdm-fast"


def test_seg_lies_where_its_series_lies(series):
    volume = to_dicom_seg(drawn(), series.headers, INFO).get_volume(combine_segments=True, skip_overlap_checks=True)
    corners = np.array([[0, 0, 0], [4, 11, 9], [2, 5, 1]])
    for s, y, x in corners:
        where = CORNER + s * STEP * np.cross(ACROSS, DOWN) + y * SPACING[0] * DOWN + x * SPACING[1] * ACROSS
        found = volume.map_reference_to_indices(where[None])[0]
        assert np.allclose(found, found.round(), atol=1e-3)
        index = tuple(found.round().astype(int))
        assert volume.array[index] == drawn().fused()[s, y, x]


def test_seg_of_nothing_but_background(series):
    samples = drawn()
    samples.mean[:] = 0
    samples.mean[:, 0] = 1
    seg = to_dicom_seg(samples, series.headers, INFO)
    assert not seg.pixel_array.any()


def test_seg_of_headers_without_a_patient(series):
    for header in series.headers:
        for tag in ("PatientBirthDate", "PatientSex", "AccessionNumber", "StudyID", "StudyDate", "StudyTime"):
            del header[tag]
    seg = to_dicom_seg(drawn(), series.headers, INFO)
    assert not seg.PatientBirthDate
    assert "PatientSex" not in series.headers[0], "the headers given are left as they are"


def test_seg_keeps_class_names_in_any_script(series, tmp_path):
    names = ("背景", "结节", "Läsion")
    info = DatasetInfo(num_classes=3, image_channels=1, class_names=names)
    to_dicom_seg(drawn(), series.headers, info).save_as(tmp_path / "seg.dcm")
    segments = pydicom.dcmread(tmp_path / "seg.dcm").SegmentSequence
    assert [segment.SegmentLabel for segment in segments] == [*names[1:]]
    assert [segment.SegmentedPropertyTypeCodeSequence[0].CodeMeaning for segment in segments] == [*names[1:]]


def test_seg_needs_one_header_per_slice(series):
    with pytest.raises(UserError, match="one DICOM header per slice, got 4 for 5"):
        to_dicom_seg(drawn(), series.headers[:4], INFO)


def test_seg_of_nothing_is_whole_and_silent(series, caplog):
    out = drawn()
    background = torch.zeros_like(out.mean)
    background[:, 0] = 1
    seg = to_dicom_seg(replace(out, labels=torch.zeros_like(out.labels), mean=background), series.headers, INFO)
    assert not seg.pixel_array.any()
    assert len(seg.SegmentSequence) == 2
    assert caplog.text == ""


def test_seg_with_long_and_empty_class_names(series):
    info = DatasetInfo(num_classes=3, image_channels=1, class_names=("", " ", "x" * 100))
    seg = to_dicom_seg(drawn(), series.headers, info)
    assert [s.SegmentLabel for s in seg.SegmentSequence] == ["class 1", "x" * 64]


@pytest.mark.parametrize(("package", "convert"), [("nibabel", to_nifti), ("highdicom", None)])
def test_missing_packages_are_named(monkeypatch, package, convert, series):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"needs {package}; install it with: pip install 'stochseg\[medical\]'"):
        to_nifti(drawn()) if convert else to_dicom_seg(drawn(), series.headers, INFO)


# --- the folder -------------------------------------------------------------------------------------------


def test_a_picture_gives_tiff_and_png(tmp_path):
    samples = drawn(1)
    raw = np.random.default_rng(0).integers(0, 256, (1, 12, 10), dtype=np.uint8)
    write_result(tmp_path / "a", predicted(samples, Stack(raw, dpi=(300.0, 150.0))), FACTS)
    assert (tifffile.imread(tmp_path / "a/samples.tif") == samples.labels[0].numpy()).all()
    assert np.allclose(tifffile.imread(tmp_path / "a/mean.tif"), samples.mean[0])
    assert np.allclose(tifffile.imread(tmp_path / "a/entropy.tif"), samples.entropy[0], atol=1e-6)
    with tifffile.TiffFile(tmp_path / "a/samples.tif") as file:
        assert len(file.pages) == 4
        assert file.pages[0].resolution == (300.0, 150.0)
    with Image.open(tmp_path / "a/samples.tif") as file:  # other readers see the pages too
        assert file.n_frames == 4
        file.seek(2)
        assert (np.asarray(file) == samples.labels[0, 2].numpy()).all()
    with Image.open(tmp_path / "a/fused.png") as file:
        assert file.mode == "P"
        assert (np.asarray(file) == samples.fused()[0].numpy()).all()
        assert np.allclose(file.info["dpi"], (300, 150), atol=0.1)
        assert np.asarray(file.convert("RGB"))[samples.fused()[0].numpy() == 1][0].tolist() == [0xE8, 0x85, 0x3C]
    with Image.open(tmp_path / "a/overlay.png") as file:
        assert file.size == (430, 516), "43 times as large, so that one can see something"
        small = np.asarray(file.resize((10, 12), Image.Resampling.NEAREST))
    assert (small == np.asarray(overlay(raw[0], samples.fused()[0].numpy(), INFO))).all()
    result = json.loads((tmp_path / "a/result.json").read_text())
    assert result["unit"] == "pixels"
    assert sum(c["fused"] for c in result["classes"]) == 120
    assert [c["samples"][1] for c in result["classes"]] == torch.bincount(samples.labels[0, 1].flatten()).tolist()
    assert set(result["files"]) == {p.name for p in (tmp_path / "a").iterdir()} - {"result.json"}


def test_more_classes_than_a_palette_has(tmp_path):
    samples = drawn(1, classes=300)
    info = DatasetInfo(num_classes=300, image_channels=1)
    prediction = Prediction(StackResult.from_samples(samples), Stack(np.zeros((1, 12, 10))), info)
    write_result(tmp_path / "a", prediction, FACTS)
    assert (tifffile.imread(tmp_path / "a/fused.tif") == samples.fused()[0].numpy()).all()
    assert not (tmp_path / "a/fused.png").exists()


@pytest.mark.parametrize("shape", [(3, 12, 10), (1, 12, 10, 3), (1, 600, 20)])
def test_an_overview_on_request(tmp_path, shape):
    samples = drawn(shape[0], 11, *shape[1:3])
    prediction = predicted(samples, Stack(np.zeros(shape, np.uint8)), overview=True)
    write_result(tmp_path / "a", prediction, FACTS)
    assert "overview.png" in json.loads((tmp_path / "a/result.json").read_text())["files"]
    with Image.open(tmp_path / "a/overview.png") as picture:
        assert min(picture.size) > 300
    write_result(tmp_path / "a", predicted(samples, Stack(np.zeros(shape, np.uint8))), FACTS)
    assert not (tmp_path / "a/overview.png").exists()


def test_sizes_are_in_millimeters_where_the_lattice_knows_them(tmp_path):
    affine = np.diag([0.5, 2.0, 3.0, 1.0])
    for s, unit, size in ((1, "mm2", 1.0), (5, "mm3", 3.0)):
        stack = Stack(np.zeros((s, 12, 10)), Lattice(affine))
        write_result(tmp_path / unit, predicted(drawn(s), stack), FACTS)
        result = json.loads((tmp_path / unit / "result.json").read_text())
        assert result["unit"] == unit
        counts = torch.bincount(drawn(s).labels[:, 2].flatten())
        assert [c["samples"][2] for c in result["classes"]] == pytest.approx([size * v for v in counts.tolist()])
        assert result["image"]["spacing_mm"] == [3.0, 2.0, 0.5]


def test_a_failed_write_leaves_nothing_and_a_foreign_folder_stays(tmp_path):
    prediction = predicted(drawn(1), Stack(np.zeros((1, 12, 10))))
    with pytest.raises(ValueError, match="nan"):
        write_result(tmp_path / "a", prediction, {"seconds": float("nan")})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").mkdir()
    (tmp_path / "a/thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="not a result of stochseg predict"):
        write_result(tmp_path / "a", prediction, FACTS)
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["thesis.txt"]


def test_the_overlay_shows_the_image_where_nothing_is_and_colors_elsewhere():
    raw = np.linspace(0, 255, 16).reshape(4, 4)
    fused = np.zeros((4, 4), np.uint8)
    fused[1, 1] = 1
    shown = np.asarray(overlay(raw, fused, INFO))
    assert (shown[fused == 0] == raw[fused == 0].round()[:, None]).all()
    assert shown[1, 1, 0] > shown[1, 1, 2], "orange"
    for deep in (raw * 100, raw / 255, np.full((4, 4), 7.0), np.repeat(raw[..., None], 2, -1)):
        assert np.asarray(overlay(deep, fused, INFO)).shape == (4, 4, 3)


def test_the_slice_with_the_most_foreground_is_shown():
    samples, stack = drawn(3), Stack(np.zeros((3, 12, 10)))
    samples.mean[:] = torch.tensor([1.0, 0.0, 0.0])[:, None, None]
    assert predicted(samples, stack).shown_slice == 1, "the middle one, where there is none"
    samples.mean[2, :, 0] = torch.tensor([0.0, 1.0, 0.0])[:, None]
    assert predicted(samples, stack).shown_slice == 2
