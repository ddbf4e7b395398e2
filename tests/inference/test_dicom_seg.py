"""DICOM Segmentation objects, read back by highdicom and pydicom."""

import sys

import highdicom
import numpy as np
import pydicom
import pytest
import torch

from stochseg.errors import UserError
from stochseg.inference import to_dicom_seg, to_nifti
from stochseg.inference.series import read_series
from stochseg.types import DatasetInfo
from tests.support.oblique import ACROSS, CORNER, DOWN, SPACING, STEP, write_series
from tests.support.predictions import CLASSES, random_samples


@pytest.fixture
def series(tmp_path):
    write_series(tmp_path / "ct")
    return read_series(sorted((tmp_path / "ct").iterdir()))


def test_pixels_and_references_of_every_source_slice(series, tmp_path):
    samples = random_samples()
    to_dicom_seg(samples, series.headers, CLASSES, "ccdm-fast").save_as(tmp_path / "seg.dcm")
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
    references = plain.ReferencedSeriesSequence[0].ReferencedInstanceSequence
    assert {reference.ReferencedSOPInstanceUID for reference in references} == set(uids)
    assert plain.SegmentSequence[0].SegmentAlgorithmType == "AUTOMATIC"
    assert plain.SegmentSequence[0].SegmentAlgorithmName == "ccdm-fast"


def test_geometry_is_that_of_the_series(series):
    seg = to_dicom_seg(random_samples(), series.headers, CLASSES)
    volume = seg.get_volume(combine_segments=True, skip_overlap_checks=True)
    for s, y, x in ((0, 0, 0), (4, 11, 9), (2, 5, 1)):
        where = CORNER + s * STEP * np.cross(ACROSS, DOWN) + y * SPACING[0] * DOWN + x * SPACING[1] * ACROSS
        found = volume.map_reference_to_indices(where[None])[0]
        assert np.allclose(found, found.round(), atol=1e-3)
        index = tuple(found.round().astype(int))
        assert volume.array[index] == random_samples().fused()[s, y, x]


def test_a_fused_map_without_foreground(series, caplog):
    samples = random_samples()
    samples.mean[:] = torch.tensor([1.0, 0.0, 0.0])[:, None, None]
    seg = to_dicom_seg(samples, series.headers, CLASSES)
    assert not seg.pixel_array.any()
    assert len(seg.SegmentSequence) == 2
    assert caplog.text == ""


def test_headers_without_a_patient(series):
    for header in series.headers:
        for tag in ("PatientBirthDate", "PatientSex", "AccessionNumber", "StudyID", "StudyDate", "StudyTime"):
            del header[tag]
    seg = to_dicom_seg(random_samples(), series.headers, CLASSES)
    assert not seg.PatientBirthDate
    assert "PatientSex" not in series.headers[0], "the given headers are not changed"


def test_class_names_in_any_script(series, tmp_path):
    names = ("背景", "结节", "Läsion")
    info = DatasetInfo(num_classes=3, image_channels=1, class_names=names)
    to_dicom_seg(random_samples(), series.headers, info).save_as(tmp_path / "seg.dcm")
    segments = pydicom.dcmread(tmp_path / "seg.dcm").SegmentSequence
    assert [segment.SegmentLabel for segment in segments] == [*names[1:]]
    assert [segment.SegmentedPropertyTypeCodeSequence[0].CodeMeaning for segment in segments] == [*names[1:]]


def test_long_and_empty_class_names(series):
    info = DatasetInfo(num_classes=3, image_channels=1, class_names=("", " ", "x" * 100))
    seg = to_dicom_seg(random_samples(), series.headers, info)
    assert [s.SegmentLabel for s in seg.SegmentSequence] == ["class 1", "x" * 64]


def test_one_header_per_slice_is_required(series):
    with pytest.raises(UserError, match="one DICOM header per slice, got 4 for 5"):
        to_dicom_seg(random_samples(), series.headers[:4], CLASSES)


def test_missing_packages_are_named(monkeypatch, series):
    monkeypatch.setitem(sys.modules, "highdicom", None)
    with pytest.raises(UserError, match=r"needs highdicom; install it with: pip install 'stochseg\[medical\]'"):
        to_dicom_seg(random_samples(), series.headers, CLASSES)
    monkeypatch.setitem(sys.modules, "nibabel", None)
    with pytest.raises(UserError, match=r"needs nibabel; install it with: pip install 'stochseg\[medical\]'"):
        to_nifti(random_samples())
