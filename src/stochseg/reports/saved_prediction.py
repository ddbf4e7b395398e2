"""Images and arrays of folders written by `stochseg predict`, read back for a report."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tifffile
import torch
from PIL import Image

from stochseg.analysis.image_samples import ImageSamples
from stochseg.analysis.measurement import Measurement
from stochseg.analysis.questions import Question
from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.files import sha256
from stochseg.inference.result_folder import RESULT
from stochseg.inference.sources import read_stack
from stochseg.limits import check_memory
from stochseg.plotting.pictures import FloatArray, intensities_to_rgb
from stochseg.plotting.planes import marked_view
from stochseg.reports.image import ImageReport
from stochseg.reports.saved_result import REMEDY, Geometry, Result
from stochseg.reports.volume import VolumeReport
from stochseg.types import Samples, Spacing

UNITS = {"mm2": "mm²", "mm3": "mm³", "pixels": "px²"}


def read_image(
    folder: Path, result: Result, spacing: Spacing | None = None, questions: Sequence[Question] = ()
) -> ImageReport | VolumeReport:
    """Read one input with its samples."""
    if result.image.slices > 1:
        return _read_volume_report(folder, result, questions)
    original = _read_original(result)
    labels, mean = (maps[:, 0] for maps in read_maps(folder, result))
    spacing = spacing if result.image.spacing_mm is None else result.image.spacing_mm[1:]
    picture, notes = _read_picture(folder, result, original)
    _check_sizes(folder, result, labels, mean, picture.shape[:2])
    samples = Samples(
        torch.from_numpy(labels.astype(np.int64))[None],
        torch.from_numpy(mean.astype(np.float32))[None],
        result.sample_weights(),
        result.options.seed,
        result.evaluations,
        window=result.window,
    )
    return ImageReport(
        folder.resolve().name,
        picture,
        samples,
        result.info,
        spacing,
        notes=(*notes, *result.notes),
        questions=questions,
        calibration=result.usable_calibration,
    )


def read_maps(folder: Path, result: Result) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Read the label maps of all samples, "n s h w", and the mean probabilities, "l s h w", of one input.

    Raises:
        UserError: if a file is damaged or missing.
    """
    image = result.image
    if image.spacing_mm is None:
        pages = {"samples": result.num_samples, "mean": len(result.classes)}
        labels, mean = (_read_tiff(folder / f"{name}.tif", count, image)[:, None] for name, count in pages.items())
    else:
        labels, mean = (np.moveaxis(_read_volume(folder, image, name), -1, 0) for name in ("samples", "mean"))
    return labels, mean


def _read_volume_report(folder: Path, result: Result, questions: Sequence[Question]) -> VolumeReport:
    image, original = result.image, _read_original(result)
    labels, mean = read_maps(folder, result)
    _check_sizes(folder, result, labels, mean, None if original is None else original.shape[:3])
    maps = torch.from_numpy(np.ascontiguousarray(labels, dtype=np.uint8 if len(mean) <= 256 else np.int64))
    view = marked_view([maps], image.spacing_mm, image.planes)
    _, second, third = view.names
    notes = [f"{image.last_slice} is on top of the {second} and {third} planes."] if image.affine is not None else []
    if original is None:
        notes.append(f"{result.source} is missing or has changed, so the pictures show outlines only.")
        original = np.zeros((image.slices, image.height, image.width), np.float32)
    window, weights = result.window, result.sample_weights()[0].double()
    return VolumeReport(
        folder.resolve().name,
        intensities_to_rgb(original[view.window], 3),
        ImageSamples(maps[(slice(None), *view.window)], weights / weights.sum(), result.info),
        result.info,
        view.crop(mean).astype(np.float32),
        view,
        image.slices,
        result.coupling,
        image.spacing_mm,
        volumes=read_sizes(result),
        labeled=window if window is None or len(window) == 3 else ((0, image.slices), *window),
        notes=(*notes, *result.notes),
        questions=questions,
        calibration=result.usable_calibration,
    )


def _check_sizes(
    folder: Path, result: Result, labels: npt.NDArray[Any], mean: npt.NDArray[Any], picture: tuple[int, ...] | None
) -> None:
    """Raise a UserError unless samples "n *space", mean "l *space" and the size of the picture are those expected."""
    image = result.image
    size = (image.slices, image.height, image.width)[-(labels.ndim - 1) :]
    expected, got = (result.num_samples, len(result.classes), *size), (len(labels), len(mean), *labels.shape[1:])
    if got != expected or mean.shape[1:] != size or picture not in (None, size):
        raise UserError(
            f"{folder}: {RESULT} describes {expected} samples, classes and pixels per axis, but its files have {got}; "
            f"{REMEDY}"
        )


def read_sizes(result: Result) -> dict[int, Measurement]:
    """Volume, or area of a single slice, of each foreground class by its label, as `predict` measured it."""
    weights = result.sample_weights()[0].double()
    weights = weights / weights.sum()
    unit = UNITS.get(result.unit, result.unit)
    what = "volume" if result.image.slices > 1 else "area"
    foreground = (c for c in result.classes if c.label > 0)
    return {c.label: Measurement(f"{what} of {c.name}", np.array(c.samples), weights.numpy(), unit) for c in foreground}


def _read_tiff(file: Path, pages: int, image: Geometry) -> npt.NDArray[Any]:
    """Read a TIFF as "pages h w". Of more pages than expected one is read: a damaged file may have no end."""
    try:
        with tifffile.TiffFile(file) as tiff:
            found = list(islice(tiff.pages, pages + 1))
            if {page.shape for page in found} != {(image.height, image.width)}:
                raise ValueError(f"its pages have {found[0].shape} pixels, expected {image.height}×{image.width}")
            check_memory(sum(page.nbytes for page in found), str(file))
            return np.stack([page.asarray() for page in found])
    except Exception as error:  # decoders raise anything for a damaged file
        raise UserError(f"{file} cannot be read ({str(error) or type(error).__name__}); {REMEDY}") from None


def _read_volume(folder: Path, image: Geometry, name: str) -> npt.NDArray[Any]:
    """Read a NIfTI file as slices, "s h w …"."""
    file = folder / f"{name}.nii.gz"
    nibabel = require("nibabel", "medical", str(file))
    try:
        return image.slicing.cut(np.asarray(nibabel.load(file).dataobj))
    except Exception as error:  # decoders raise anything for a damaged file
        raise UserError(f"{file} cannot be read ({str(error) or type(error).__name__}); {REMEDY}") from None


def _read_original(result: Result) -> npt.NDArray[Any] | None:
    """Read the intensities that were segmented, "s h w" or "s h w c"; None if the files changed or are missing."""
    files = [Path(one.file) for one in result.inputs]
    try:
        if any(sha256(file) != one.sha256 for file, one in zip(files, result.inputs, strict=True)):
            return None
        return _part(read_stack(files, result.image.slicing).values, result)
    except (OSError, UserError):
        return None


def _part(values: npt.NDArray[Any], result: Result) -> npt.NDArray[Any]:
    """The part of a scan around a lesion; without one, all of it."""
    if result.lesion is None:
        return values
    s, h, w = result.lesion.part.start
    image = result.image
    return values[s : s + image.slices, h : h + image.height, w : w + image.width]


def _read_picture(
    folder: Path, result: Result, original: npt.NDArray[Any] | None
) -> tuple[FloatArray, tuple[str, ...]]:
    """The image "h w 3" in 0..1, and a note if only the overlay of `predict` is left."""
    if original is not None:
        return intensities_to_rgb(original[0]), ()
    try:
        with Image.open(folder / "overlay.png") as picture:
            size = (result.image.width, result.image.height)
            overlay = np.asarray(picture.convert("RGB").resize(size, Image.Resampling.NEAREST)) / 255
    except OSError as error:
        raise UserError(f"{folder / 'overlay.png'} cannot be read ({error}); {REMEDY}") from None
    return overlay, (f"{result.source} is missing or has changed, so the outlines are drawn on the overlay.",)
