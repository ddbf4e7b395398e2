"""Contours of DICOM RT structure sets, drawn as label maps on the grid of their scan."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np

from stochseg.data.readers.polygons import MAX_COORDINATE, LabelMap, Pen, Ring
from stochseg.data.readers.scans import Scan
from stochseg.errors import UserError
from stochseg.extras import require

MODALITY = "RTSTRUCT"
FLAT = 0.5
"""Slices by which the points of a contour may differ."""


def is_structure_set(content: bytes, where: str) -> bool:
    """Whether the content of a file is a DICOM RT structure set."""
    if not where.lower().endswith(".dcm") or content[128:132] != b"DICM":
        return False
    pydicom = require("pydicom", "medical", where)
    try:
        header = pydicom.dcmread(io.BytesIO(content), stop_before_pixels=True, specific_tags=["Modality"])
        return str(header.get("Modality", "")) == MODALITY
    except Exception:  # a damaged file is reported when it is read
        return False


def read_structures(content: bytes, where: str) -> dict[str, list[Ring]]:
    """Read the closed planar contours of every structure: points "n 3" in millimeters, in DICOM's axes (LPS).

    Raises:
        UserError: The file is damaged or no structure set.
    """
    pydicom = require("pydicom", "medical", where)
    try:
        dataset = pydicom.dcmread(io.BytesIO(content))
        names = {int(roi.ROINumber): str(roi.ROIName).strip() for roi in dataset.StructureSetROISequence}
        found: dict[str, list[Ring]] = {name: [] for name in names.values()}
        for roi in dataset.get("ROIContourSequence", []):
            for contour in roi.get("ContourSequence", []):
                if str(contour.ContourGeometricType) == "CLOSED_PLANAR":
                    points = np.array(contour.ContourData, np.float64).reshape(-1, 3)
                    if len(points) == 0 or not (np.abs(points) <= MAX_COORDINATE).all():
                        raise ValueError("a contour has no points in space")
                    found[names[int(roi.ReferencedROINumber)]].append(points)
    except Exception as error:  # a damaged file can fail anywhere in a decoder, in any way
        reason = str(error) or type(error).__name__
        raise UserError(f"{where} cannot be read as DICOM RT structure set ({reason}); export it again") from None
    return found


def draw_structures(content: bytes, scan: Scan, class_names: Sequence[str], where: str) -> LabelMap:
    """Draw structures as label map "d h w"; contours of one structure in one slice cut holes into each other.

    Args:
        content: Of the file.
        scan: The volume that was contoured.
        class_names: Of the labels 0, 1, …; structures of these names are drawn, upper and lower case alike, the higher
            label over the lower, and others are left out.
        where: The file, for error messages.

    Raises:
        UserError: No structure has the name of a class, or contours are not in slices of the volume.
    """
    structures = read_structures(content, where)
    by_name = {name.casefold(): rings for name, rings in structures.items()}
    slices, height, width = scan.values.shape[:3]
    labels = np.zeros((slices, height, width), np.uint8 if len(class_names) <= 256 else np.uint16)
    if not any(name.casefold() in by_name for name in class_names[1:]):
        raise UserError(
            f"{where}: expected a structure named like a class ({', '.join(class_names[1:])}), got "
            f"{', '.join(structures)}; set class_names"
        )
    to_index = np.linalg.inv(scan.affine) @ np.diag([-1.0, -1.0, 1.0, 1.0])  # from LPS
    pen = Pen(where)
    for label, name in enumerate(class_names[1:], start=1):
        planes: dict[int, list[Ring]] = {}
        for points in by_name.get(name.casefold(), []):
            index = (to_index @ np.c_[points, np.ones(len(points))].T)[:3].T
            place = round(float(index[:, 0].mean()))
            if np.abs(index[:, 0] - place).max() > FLAT or not 0 <= place < slices:
                raise UserError(
                    f"{where}: a contour of {name!r} is not in a slice of the volume; draw it in the plane of the "
                    "slices (`plane`), on the same scan"
                )
            planes.setdefault(place, []).append(index[:, :0:-1] + 0.5)  # x, y from the corner of the first pixel
        for place, rings in planes.items():
            pen.draw(labels[place], rings, label)
    return labels
