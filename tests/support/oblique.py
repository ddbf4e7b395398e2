"""An oblique, anisotropic DICOM series that conforms to the standard."""

from pathlib import Path

import numpy as np
import pydicom
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

ACROSS = np.array([0.8, 0.6, 0.0])
DOWN = np.array([-0.36, 0.48, -0.8])
"""Directions of an oblique slice: unit vectors at a right angle."""
SPACING = (0.7, 1.3)  # between rows, between columns
CORNER = np.array([-20.0, 33.5, 7.25])
STEP = 2.5


def dicom_slice(number: int, stored: np.ndarray, series: str, **changes) -> FileDataset:
    """A CT slice of the oblique volume, `number` steps along the normal."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = CTImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=[series, str(number)])
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file = FileDataset("slice", {}, file_meta=meta, preamble=bytes(128))
    file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    file.StudyInstanceUID, file.SeriesInstanceUID = generate_uid(entropy_srcs=["study"]), series
    file.FrameOfReferenceUID = generate_uid(entropy_srcs=["frame"])
    file.Modality, file.SeriesNumber, file.InstanceNumber = "CT", 4, number + 1
    file.PatientID, file.PatientName, file.StudyID = "P1", "Doe^Jane", "S1"
    file.PatientBirthDate, file.PatientSex, file.AccessionNumber = "", "F", ""
    file.StudyDate, file.StudyTime = "20240102", "101010"
    position = CORNER + number * STEP * np.cross(ACROSS, DOWN)
    file.ImagePositionPatient = [f"{v:.6f}" for v in position]
    file.ImageOrientationPatient = [float(v) for v in (*ACROSS, *DOWN)]
    file.PixelSpacing, file.SliceThickness = list(SPACING), 2.0
    file.RescaleSlope, file.RescaleIntercept = 2, -1000
    file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
    file.Rows, file.Columns = stored.shape
    file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = 16, 16, 15, 0
    file.PixelData = stored.astype("<u2").tobytes()
    for key, value in changes.items():
        if value is None:
            delattr(file, key)
        else:
            setattr(file, key, value)
    return file


def write_series(folder: Path, count: int = 5, size=(12, 10), leave_out=(), **changes) -> np.ndarray:
    """A series whose file names do not follow the order of the slices. Returns its intensities "s h w"."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = np.random.default_rng(7).integers(0, 1500, (count, *size))
    series = generate_uid(entropy_srcs=[str(folder)])
    for i in range(count):
        if i not in leave_out:
            file = dicom_slice(i, stored[i], series, **changes)
            pydicom.dcmwrite(folder / f"IM{(i * 7) % count:03d}", file)
    return stored * 2.0 - 1000


def expected_affine() -> np.ndarray:
    """Index (column, row, slice) to NIfTI's millimeters: x and y point the other way than in DICOM."""
    affine = np.eye(4)
    normal = np.cross(ACROSS, DOWN)
    affine[:3] = np.column_stack([ACROSS * SPACING[1], DOWN * SPACING[0], normal * STEP, CORNER])
    return np.diag([-1, -1, 1, 1]) @ affine


def write_volume(folder: Path, hounsfield: np.ndarray, **changes) -> Path:
    """A series with these even Hounsfield units "s h w", whose file names do not follow the order of the slices."""
    folder.mkdir(parents=True, exist_ok=True)
    series = generate_uid(entropy_srcs=[str(folder)])
    for i, values in enumerate(hounsfield):
        file = dicom_slice(i, (values + 1000) // 2, series, **changes)
        pydicom.dcmwrite(folder / f"IM{len(hounsfield) - i:03d}", file)
    return folder
