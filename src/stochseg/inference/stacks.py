"""Files as stacks of 2-D slices that know where they lie in space: pictures, NIfTI volumes, DICOM series."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from stochseg.data.readers import MILLIMETRES, Tree
from stochseg.errors import UserError
from stochseg.extras import require

PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp")
NIFTI = (".nii.gz", ".nii")
DICOM = (".dcm", ".ima")
NO_IMAGES = ("SEG", "RTSTRUCT", "RTPLAN", "RTDOSE", "SR", "PR", "KO", "REG")
"""DICOM modalities that lie beside images in a folder and are none."""

EVEN = 0.02
"""Distances between slices may differ by this share: positions are stored as rounded text."""

FINEST = 1e8
"""Pixels an inch: a PNG counts those of a metre in 32 bits."""


@dataclass(frozen=True)
class Lattice:
    """Where the voxels of a volume lie. affine: "4 4", array index (x, y, z) to millimeters, x to the right, y to the
    front, z to the head, as in NIfTI; axis: the slices follow each other along this axis of the array, and the axes of
    a slice are those left: the first is its width, the second its height."""

    affine: np.ndarray
    axis: int = 2
    header: Any = None
    """The NIfTI header that the volume came with."""
    unit: float = 1.0
    """Millimeters in a unit of the affine."""

    def stacked(self, volume: np.ndarray) -> np.ndarray:
        """An array "x y z …" as a stack "s h w …"."""
        across, down = (i for i in range(3) if i != self.axis)
        return np.moveaxis(volume, (self.axis, down, across), (0, 1, 2))

    def place(self, stack: np.ndarray) -> np.ndarray:
        """A stack "s h w …" as an array "x y z …"."""
        across, down = (i for i in range(3) if i != self.axis)
        return np.moveaxis(stack, (0, 1, 2), (self.axis, down, across))

    @property
    def spacing(self) -> tuple[float, float, float]:
        """Millimeters between slices, rows and columns."""
        lengths = np.linalg.norm(self.affine[:3, :3], axis=0) * self.unit
        across, down = (i for i in range(3) if i != self.axis)
        return float(lengths[self.axis]), float(lengths[down]), float(lengths[across])

    @property
    def voxel(self) -> float:
        """Cubic millimeters."""
        return float(abs(np.linalg.det(self.affine[:3, :3])) * self.unit**3)


@dataclass(frozen=True)
class Stack:
    """Slices of one size. values: raw intensities "s h w" or "s h w c"; lattice: None for a picture."""

    values: np.ndarray
    lattice: Lattice | None = None
    alpha: bool = False
    """The last channel is no intensity but says how opaque a pixel is."""
    dpi: tuple[float, float] | None = None
    """Dots an inch (x, y) that a picture's file states."""
    headers: tuple[Any, ...] = ()
    """DICOM headers, one a slice."""


def read_files(files: Sequence[Path], axis: int | None = None) -> Stack:
    """The file of a picture or a volume, or the files of a DICOM series."""
    if files[0].name.lower().endswith(NIFTI):
        return read_nifti(files[0], axis)
    if len(files) > 1 or is_dicom(files[0]):
        return read_series(files)
    return read_picture(files[0])


def is_dicom(path: Path) -> bool:
    if path.suffix.lower() in DICOM:
        return True
    try:
        with path.open("rb") as handle:
            return handle.read(132)[128:] == b"DICM"
    except OSError:  # reported when it is read
        return False


# ---------------------------------------------------------------------- pictures


def read_picture(file: Path) -> Stack:
    """PNG, JPEG, TIFF …: intensities as stored, of 8 or 16 bits or float, exactly as training reads them."""
    picture = Tree(file.parent).picture(file.name)
    alpha, dpi = False, None
    try:
        with Image.open(file) as image:
            extra = getattr(image, "tag_v2", {}).get(338) or ()  # 1, 2: alpha; 0: another channel
            alpha = image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or bool({1, 2}.intersection(np.atleast_1d(extra)))
            dpi = image.info.get("dpi")
    except Exception:  # TIFFs of many channels are read without Pillow
        pass
    return Stack(picture.values[None], None, alpha, _resolution(dpi))


def _resolution(dpi: Any) -> tuple[float, float] | None:
    """Pixels an inch, across and down, if they make sense and fit the 32 bits that PNG and TIFF have for them."""
    if dpi is None or len(dpi) != 2 or not all(0 < float(v) < FINEST for v in dpi):
        return None
    return float(dpi[0]), float(dpi[1])


# ---------------------------------------------------------------------- NIfTI


def read_nifti(file: Path, axis: int | None = None) -> Stack:
    """A NIfTI image or volume, cut along `axis` of its array: the last one by default, or the one of length 1."""
    nibabel = require("nibabel", "medical", str(file))
    try:
        image = nibabel.load(file)
        values = np.asanyarray(image.dataobj)
        unit = MILLIMETRES.get(image.header.get_xyzt_units()[0], 1.0)
    except Exception as error:  # a damaged file can fail in any way, anywhere in a decoder
        raise UserError(
            f"cannot be read as NIfTI ({str(error) or type(error).__name__}); it is damaged or cut short"
        ) from None
    if values.dtype.kind not in "buif":
        raise UserError(f"expected one number a voxel, got {values.dtype}; split it into its channels")
    values = values.astype(np.float32) if values.dtype.itemsize > 4 else values
    while values.ndim > 4 and values.shape[-1] == 1:
        values = values[..., 0]
    values = values[..., 0] if values.ndim == 4 and values.shape[3] == 1 else values
    values = values.reshape(values.shape + (1,) * (3 - values.ndim))
    if values.ndim > 4:
        raise UserError(f"expected a volume, with or without channels, got shape {values.shape}; split it")
    if values.size == 0:
        raise UserError(f"the volume is empty, shape {values.shape}")
    thin = [i for i, length in enumerate(values.shape[:3]) if length == 1]
    axis = (thin[0] if len(thin) == 1 else 2) if axis is None else axis
    if not np.isfinite(image.affine).all() or abs(np.linalg.det(image.affine)) == 0:
        raise UserError(f"its affine does not tell where voxels lie: {np.round(image.affine, 3).tolist()}; correct it")
    lattice = Lattice(image.affine, axis, image.header.copy(), unit)
    return Stack(lattice.stacked(values), lattice)


# ---------------------------------------------------------------------- DICOM

_NEEDED = ("SOPClassUID", "SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID", "Rows", "Columns")


def read_header(file: Path) -> Any:
    pydicom = require("pydicom", "medical", str(file))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is wrong and matters is found below
            return pydicom.dcmread(file, stop_before_pixels=True)
    except pydicom.errors.InvalidDicomError:
        raise UserError(f"{file.name} cannot be read as DICOM: its mark is missing; export it again") from None
    except Exception as error:  # a damaged file surfaces as whatever the parser stumbles over
        raise UserError(f"{file.name} cannot be read as DICOM ({error}); export it again") from None


def read_series(files: Sequence[Path]) -> Stack:
    """The slices of a DICOM series, sorted along their normal, with the modality's slope and intercept."""
    headers = [read_header(file) for file in files]
    for file, header in zip(files, headers, strict=True):
        missing = [tag for tag in _NEEDED if header.get(tag) in (None, "")]
        if missing:
            raise UserError(f"{file.name}: the DICOM header has no {missing[0]}, or is cut short; export it again")
        if str(header.get("Modality", "")) in NO_IMAGES:
            raise UserError(f"{file.name} is a DICOM {header.Modality}, expected an image")
    lattice, order = _lattice(files, headers)
    pictures = [Tree(files[i].parent).picture(files[i].name) for i in order]
    shapes = {picture.values.shape for picture in pictures}
    if len(shapes) > 1:
        raise UserError(f"the slices of the series differ in size: {sorted(shapes)}; give each as a file")
    spacing = pictures[0].spacing
    dpi = None if lattice is not None or spacing is None else _resolution((25.4 / spacing[1], 25.4 / spacing[0]))
    values = np.stack([picture.values for picture in pictures])
    return Stack(values, lattice, False, dpi, tuple(headers[i] for i in order))


def _lattice(files: Sequence[Path], headers: Sequence[Any]) -> tuple[Lattice | None, list[int]]:
    """Where the slices lie, and their order along the normal. None for an image without a place, such as an X-ray."""
    places = [_place(file, header) for file, header in zip(files, headers, strict=True)]
    lost = [file.name for file, place in zip(files, places, strict=True) if place is None]
    if lost:
        if len(files) == 1:
            return None, [0]
        raise UserError(
            f"{lost[0]} has no position in space, so the {len(files)} slices have no order; give them one by one"
        )
    position, across, down, spacing = (np.array(part) for part in zip(*places, strict=True))
    for i, file in enumerate(files):
        if not (
            np.allclose(across[i], across[0], atol=1e-3)
            and np.allclose(down[i], down[0], atol=1e-3)
            and np.allclose(spacing[i], spacing[0], rtol=1e-3)
        ):
            raise UserError(
                f"{file.name} is turned or spaced differently from {files[0].name} of the same series (a localizer?); "
                "take it out, or give the slices one by one"
            )
    normal = np.cross(across[0], down[0])
    heights = position @ normal
    order = np.argsort(heights, kind="stable")
    step = _step(files, headers, position[order], heights[order], order, normal)
    lps = np.eye(4)
    lps[:3] = np.column_stack([across[0] * spacing[0][1], down[0] * spacing[0][0], step, position[order[0]]])
    return Lattice(np.diag([-1.0, -1.0, 1.0, 1.0]) @ lps), order.tolist()


def _place(file: Path, header: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
    """Position, directions along a row and a column, (row, column) spacing: DICOM's own axes, in millimeters."""
    tags = ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing")
    if any(header.get(tag) in (None, "") for tag in tags):
        return None
    try:
        position, turn, spacing = (np.array([float(v) for v in header[tag].value]) for tag in tags)
        across, down = turn.reshape(2, 3)
        good = position.shape == (3,) and spacing.shape == (2,) and (spacing > 0).all()
        if good and np.allclose([across @ across, down @ down, across @ down], [1, 1, 0], atol=1e-2):
            return position, across, down, spacing
    except (ValueError, TypeError):
        pass
    raise UserError(f"{file.name}: position, orientation or spacing in the DICOM header make no sense; export it again")


def _length(header: Any, tag: str) -> float:
    """In millimeters; 0 of a tag that is missing or makes no sense, such as "5,0"."""
    try:
        length = abs(float(header.get(tag) or 0))
    except (ValueError, TypeError):
        return 0.0
    return length if np.isfinite(length) else 0.0


def _step(
    files: Sequence[Path],
    headers: Sequence[Any],
    position: np.ndarray,
    heights: np.ndarray,
    order: np.ndarray,
    normal: np.ndarray,
) -> np.ndarray:
    """From a slice to the next, in millimeters; slices must be evenly spaced. A tilted gantry makes it oblique."""
    if len(heights) == 1:
        said = (_length(headers[0], tag) for tag in ("SpacingBetweenSlices", "SliceThickness"))
        return normal * next((length for length in said if length > 0), 1.0)
    gaps = np.diff(heights)
    usual = float(np.sort(gaps)[(len(gaps) - 1) // 2])
    for i, gap in enumerate(gaps):
        pair = f"{files[order[i]].name} and {files[order[i + 1]].name}"
        if gap < 1e-3:
            raise UserError(f"{pair} lie at the same place (a second phase, or a copy?); give one volume at a time")
        if abs(gap - usual) > EVEN * usual + 2e-3:
            problem = "a slice is missing" if gap > usual else "the slices are not evenly spaced"
            raise UserError(
                f"{pair} lie {gap:.3g} mm apart, most slices of the series {usual:.3g} mm: {problem}; complete the "
                "series, or give the slices one by one"
            )
    return (position[-1] - position[0]) / (len(position) - 1)
