"""Contents of image files, as other programs write them."""

import io

import nibabel
import numpy as np
import pydicom
from pydicom.dataset import FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian


def nifti_bytes(
    array: np.ndarray, zooms: tuple[float, ...], units: str = "mm", kind: type = nibabel.Nifti1Image
) -> bytes:
    """A NIfTI file of an array "x y …" that runs to the left, the back and the feet, as slices are shown."""
    image = kind(array, np.diag([-1.0, -1.0, -1.0, 1.0]))
    image.header.set_zooms(zooms)
    image.header.set_xyzt_units(units)
    return image.to_bytes()


def dicom_bytes(array: np.ndarray | None, **tags: object) -> bytes:
    """A DICOM file of gray pixels "h w", or of frames "n h w", or without pixels."""
    meta = FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = ExplicitVRLittleEndian, CTImageStorage
    meta.MediaStorageSOPInstanceUID = "1.2.3"
    file = pydicom.Dataset()
    file.file_meta = meta
    file.SOPClassUID, file.SOPInstanceUID = CTImageStorage, "1.2.3"
    if array is not None:
        file.Rows, file.Columns = array.shape[-2:]
        file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
        file.BitsAllocated = file.BitsStored = array.itemsize * 8
        file.HighBit = file.BitsStored - 1
        file.PixelRepresentation = int(array.dtype.kind == "i")
        file.PixelData = array.tobytes()
    for key, value in tags.items():
        setattr(file, key, value)
    out = io.BytesIO()
    pydicom.dcmwrite(out, file, enforce_file_format=True)
    return out.getvalue()
