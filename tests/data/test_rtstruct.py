"""DICOM RT structure sets as the label maps of a rater."""

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

from stochseg.data.folder import Folder, init_folder
from stochseg.data.readers.geojson import trace_rings
from stochseg.errors import UserError
from tests.support.oblique import expected_affine, write_volume
from tests.support.scans import ct, nodule

SIZE, CENTER = (6, 16, 18), (3, 8, 9)


def write_structures(file, masks):
    """Save masks "s h w" by name as contours on the grid of `write_volume`."""
    to_lps = np.diag([-1, -1, 1, 1]) @ expected_affine()
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.481.3"
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    content = FileDataset(None, {}, file_meta=meta, preamble=bytes(128))
    content.SOPClassUID, content.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    content.Modality = "RTSTRUCT"
    content.StructureSetROISequence, content.ROIContourSequence = [], []
    for number, (name, mask) in enumerate(masks.items(), start=1):
        roi, contours = Dataset(), Dataset()
        roi.ROINumber, roi.ROIName = number, name
        contours.ReferencedROINumber, contours.ContourSequence = number, []
        for s in np.flatnonzero(mask.any((1, 2))):
            for ring in trace_rings(mask[s]):
                points = np.c_[ring[:-1] - 0.5, np.full(len(ring) - 1, s), np.ones(len(ring) - 1)]  # x, y, z
                contour = Dataset()
                contour.ContourGeometricType = "CLOSED_PLANAR"
                contour.NumberOfContourPoints = len(points)
                contour.ContourData = [f"{v:.6f}" for v in (points @ to_lps.T)[:, :3].ravel()]
                contours.ContourSequence.append(contour)
        content.StructureSetROISequence.append(roi)
        content.ROIContourSequence.append(contours)
    file.parent.mkdir(parents=True, exist_ok=True)
    content.save_as(file, enforce_file_format=True)


@pytest.fixture
def masks():
    outer, inner = (nodule(SIZE, CENTER, radius) for radius in ((2.2, 5.0, 6.0), (1.2, 2.0, 2.5)))
    return {"Lesion": outer & ~inner, "Core": inner, "BODY": np.ones(SIZE, bool)}


def write_folder(root, masks):
    for i in range(3):
        write_volume(root / f"images/p{i}", ct(SIZE, CENTER, (2, 3, 3), seed=i))
        write_structures(root / f"labels/ana/p{i}.dcm", masks)


def test_structures_are_drawn_on_the_scan(tmp_path, masks):
    write_folder(tmp_path, masks)
    init_folder(tmp_path, {"num_classes": 3, "class_names": ["background", "lesion", "core"]})
    example = Folder("train", root=str(tmp_path))[0]
    assert example.rater_names == ("ana",)
    expected = masks["Lesion"] + 2 * masks["Core"]
    turned = [np.flip(expected, [i for i in range(3) if flips >> i & 1]) for flips in range(8)]
    assert any(np.array_equal(example.raters[0].numpy(), each) for each in turned), "holes and all"
    image = example.image[0].numpy()
    bright = image > (image.min() + image.max()) / 2
    assert (example.raters[0].numpy()[bright] > 0).mean() > 0.9, "on the same voxels as the scan"


def test_classes_are_found_in_the_files(tmp_path, masks):
    write_folder(tmp_path, masks)
    assert init_folder(tmp_path).class_names == ("background", "BODY", "Core", "Lesion")


def test_names_that_no_class_has_are_listed(tmp_path, masks):
    write_folder(tmp_path, masks)
    init_folder(tmp_path, {"num_classes": 2, "class_names": ["background", "liver"]})
    with pytest.raises(UserError, match="Lesion, Core, BODY"):
        Folder("train", root=str(tmp_path))[0]


def test_damaged_files_and_other_planes_are_refused(tmp_path, masks):
    write_folder(tmp_path, masks)
    init_folder(tmp_path, {"num_classes": 2, "class_names": ["background", "lesion"]})
    data = Folder("train", root=str(tmp_path))
    file = tmp_path / f"labels/ana/{data.ids[0]}.dcm"
    content = pydicom.dcmread(file)
    points = content.ROIContourSequence[0].ContourSequence[0].ContourData
    content.ROIContourSequence[0].ContourSequence[0].ContourData = [float(v) + 500 for v in points]
    content.save_as(file)
    with pytest.raises(UserError, match="not in a slice"):
        data[0]
    del content.StructureSetROISequence
    content.save_as(file)
    with pytest.raises(UserError, match="structure set"):
        data[0]
