"""Fractional DICOM SEG and parametric maps, read back by highdicom and pydicom."""

import highdicom
import numpy as np
import pydicom
import pytest

from stochseg.errors import UserError
from stochseg.inference.result import StackResult
from stochseg.inference.series import read_series
from stochseg.inference.writers import WRITERS, Prediction
from stochseg.inference.writers.dicom_maps import write_entropy_map, write_fractional_seg
from stochseg.types import DatasetInfo
from tests.support.oblique import write_series
from tests.support.predictions import random_samples

CODED = DatasetInfo(
    num_classes=3,
    image_channels=1,
    class_names=("background", "nodule", "vessel"),
    codes=("", "SCT:27925004:Nodule", ""),
)


@pytest.fixture
def prediction(tmp_path):
    write_series(tmp_path / "ct")
    stack = read_series(sorted((tmp_path / "ct").iterdir()))
    return Prediction(StackResult.from_samples(random_samples()), stack, CODED, "ccdm-fast", also=("dicom-maps",))


def test_probabilities_come_back_within_one_step(prediction, tmp_path):
    write_fractional_seg(prediction, tmp_path / "p.dcm")
    seg = highdicom.seg.segread(tmp_path / "p.dcm")
    uids = [header.SOPInstanceUID for header in prediction.stack.headers]
    found = seg.get_pixels_by_source_instance(uids, rescale_fractional=True)
    expected = np.moveaxis(prediction.result.mean[:, 1:], 1, -1)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= 1 / 255
    assert seg.SegmentationType == "FRACTIONAL"
    assert seg.SegmentationFractionalType == "PROBABILITY"
    nodule, vessel = (seg.get_segment_description(i).segmented_property_type for i in (1, 2))
    assert (nodule.scheme_designator, nodule.value, nodule.meaning) == ("SCT", "27925004", "Nodule")
    assert vessel.scheme_designator == "99STOCHSEG"


def test_entropy_comes_back_exactly(prediction, tmp_path):
    write_entropy_map(prediction, tmp_path / "e.dcm")
    found = pydicom.dcmread(tmp_path / "e.dcm")
    assert found.SOPClassUID == pydicom.uid.ParametricMapStorage
    places = [tuple(header.ImagePositionPatient) for header in prediction.stack.headers]
    for frame, pixels in zip(found.PerFrameFunctionalGroupsSequence, found.pixel_array, strict=True):
        slice_ = places.index(tuple(frame.PlanePositionSequence[0].ImagePositionPatient))
        assert np.array_equal(pixels, prediction.result.entropy[slice_])
    assert found.FrameOfReferenceUID == prediction.stack.headers[0].FrameOfReferenceUID


def test_they_are_written_on_request(prediction):
    names = {name for name, writer in WRITERS.items() if writer.applies(prediction)}
    assert {"probabilities.dcm", "entropy.dcm", "fused.dcm"} <= names


@pytest.mark.parametrize("codes", [("", "27925004"), ("SCT:1:x",), ("", "SCT:1")])
def test_codes_have_scheme_value_and_meaning(codes):
    with pytest.raises(UserError, match="codes"):
        DatasetInfo.parse({"num_classes": 2, "image_channels": 1, "codes": codes})
