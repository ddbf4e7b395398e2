"""Uploads become inputs: files are unpacked and read by the bounded readers of `predict`, in a process of their own."""

from __future__ import annotations

import json
import shutil
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stochseg.data.readers import itk
from stochseg.data.readers.formats import read_picture
from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.files import write_text
from stochseg.inference.sources import Source, find_sources, read_stack, stem
from stochseg.inference.stacks import Stack
from stochseg.plotting.pictures import to_eight_bits
from stochseg.studio.maps import (
    Array,
    compact_volume,
    contours_of,
    display_affine,
    nifti_bytes,
    png_bytes,
    spaced_affine,
    write_bytes,
    write_json,
)
from stochseg.studio.settings import Limits
from stochseg.studio.store import INPUT, SHOWN, Json, safe_name

LUNG_WINDOW = (-1350.0, 150.0)
AIR = -500.0
"""Hounsfield units: a volume with values below is taken for a CT."""


def read_upload(folder: Path, name: str, spacing: Sequence[float] | None, limits: Limits) -> Json:
    """Read the files of an upload and write what the page needs.

    Args:
        folder: of the input, with the uploads in files/ and label maps of raters in raters/.
        name: as the user knows it.
        spacing: millimeters per pixel (row, column) of a picture, which does not state them.
        limits: of inputs.

    Returns:
        The content of input.json, which is written last.

    Raises:
        UserError: The files are no single image or volume, or too large.
    """
    notes: list[str] = []
    _unpack(folder / "files", limits)
    source = _only_source(folder / "files", name, notes)
    stack = read_stack(source.files, source.axis)
    raters = _read_raters(folder, stack)
    return write_input(folder, name, source, stack, spacing, raters, notes, limits)


def write_input(
    folder: Path,
    name: str,
    source: Source,
    stack: Stack,
    spacing: Sequence[float] | None,
    raters: tuple[Array, Sequence[str]] | None,
    notes: Sequence[str],
    limits: Limits,
) -> Json:
    """Write everything about an input that was read; see `read_upload`."""
    slices, height, width = stack.values.shape[:3]
    if slices * height * width > limits.pixels:
        raise UserError(f"expected at most {limits.pixels:,} pixels, got {slices}×{height}×{width}; crop the image")
    lattice, dims = stack.lattice, 2 if slices == 1 else 3
    if lattice is not None:
        mm: list[float] | None = [float(value) for value in lattice.spacing][-dims:]
    else:
        mm = None if spacing is None or dims == 3 else [float(value) for value in spacing]
    (folder / SHOWN).mkdir(exist_ok=True)
    units, window, limits_of_values = _show(folder / SHOWN, stack, dims == 2, None if raters is None else raters[0])
    if raters is not None:
        np.save(folder / "raters.npy", raters[0])
    placed = None if lattice is None else np.asarray(lattice.affine).tolist()
    slicing = None if lattice is None else lattice.slicing
    facts: Json = {
        "id": folder.name,
        "name": name,
        "created": time.time(),
        "spatial_dims": dims,
        "shape": [slices, height, width][-dims:],
        "channels": 1 if stack.values.ndim == 3 else stack.values.shape[3] - stack.alpha,
        "spacing": mm,
        "window": {"low": window[0], "high": window[1]},
        "range": {"low": limits_of_values[0], "high": limits_of_values[1]},
        "units": units,
        "rater_names": [] if raters is None else list(raters[1]),
        "notes": list(notes),
        "files": [str(file.relative_to(folder)) for file in source.files],
        "is_dicom": bool(stack.headers),
        "affine": placed,
        "slicing": None if slicing is None else [slicing.axis, slicing.transposed, list(slicing.flipped)],
    }
    write_text(folder / INPUT, json.dumps(facts, allow_nan=False) + "\n")
    return facts


def _show(
    folder: Path, stack: Stack, flat: bool, raters: Array | None
) -> tuple[str, tuple[float, float], tuple[float, float]]:
    """Write the image and its raters as the page shows them; returns units, display window and range of intensities."""
    values = stack.values[..., :-1] if stack.alpha else stack.values
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    if finite.size == 0:
        raise UserError("the image has no finite value, so there is nothing to show; export it again")
    low, high = float(finite.min()), float(finite.max())
    units = _units(stack, low)
    affine = _affine(stack)
    if flat:
        channels = np.nan_to_num(values[0].reshape(*values.shape[1:3], -1))
        shown = to_eight_bits(channels[..., : 3 if channels.shape[-1] >= 3 else 1]).round().astype(np.uint8)
        write_bytes(folder / "image.png", png_bytes(shown[..., 0] if shown.shape[-1] == 1 else shown))
    else:
        volume = values if values.ndim == 3 else values[..., 0]
        write_bytes(folder / "image.nii.gz", nifti_bytes(compact_volume(volume), affine))
    for i, labels in enumerate(() if raters is None else raters):
        content = png_bytes(labels[0]) if flat else nifti_bytes(labels, affine)
        write_bytes(folder / f"rater-{i:05d}.{'png' if flat else 'nii.gz'}", content)
    if raters is not None:
        write_json(folder / "contours.json", contours_of(raters))
    eight_bits = flat and low >= 0 and 1 < high <= 255
    window = (0.0, 255.0) if eight_bits else LUNG_WINDOW if units == "HU" else _percentiles(finite)
    return units, window, (low, high)


def _affine(stack: Stack) -> Array:
    lattice = stack.lattice
    if lattice is None:
        return spaced_affine(None)
    millimeters = np.diag([lattice.unit] * 3 + [1.0]) @ lattice.affine
    return display_affine(millimeters.tolist(), lattice.slicing, stack.values.shape[:3])


def _percentiles(values: Array) -> tuple[float, float]:
    """The display window of `to_eight_bits`."""
    flat = values.ravel()
    low, high = np.percentile(flat[:: max(1, flat.size // 10**6)], [1, 99])
    return float(low), float(max(high, low + 1e-6))


def _units(stack: Stack, low: float) -> str:
    if stack.headers:
        return "HU" if str(stack.headers[0].get("Modality", "")) == "CT" else ""
    return "HU" if stack.lattice is not None and low <= AIR else ""


# --- files ----------------------------------------------------------------------------------------------


def _unpack(folder: Path, limits: Limits) -> None:
    """Replace an archive by its files, and NRRD and MetaImage by NIfTI."""
    files = sorted(folder.iterdir())
    if len(files) == 1 and files[0].suffix == ".zip":
        _unzip(files[0], folder, limits)
        files[0].unlink()
    for file in sorted(folder.iterdir()):
        if file.name.endswith(itk.SUFFIXES):
            volume = itk.read_volume(file, "the volume")
            nibabel = require("nibabel", "medical", "volumes")
            values = volume.values
            values = values.astype(np.float32) if values.dtype.itemsize > 4 else values
            image = nibabel.Nifti1Image(values, volume.affine, dtype=values.dtype)
            image.header.set_sform(volume.affine, code="scanner")
            image.to_filename(file.with_suffix(".nii"))
            file.unlink()


def _unzip(file: Path, folder: Path, limits: Limits) -> None:
    """Unpack an archive under names of our own, with bounds on the number and the size of its files."""
    budget = int(limits.upload_mb * 10**6)
    try:
        with zipfile.ZipFile(file) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir() and not _is_extra(entry.filename)]
            if not 0 < len(entries) <= limits.files:
                raise UserError(f"expected 1 to {limits.files} files in the archive, got {len(entries)}")
            if sum(entry.file_size for entry in entries) > budget:
                raise UserError(f"the archive unpacks to more than {limits.upload_mb:g} MB; upload a part of it")
            for number, entry in enumerate(entries):
                name = safe_name(number, entry.filename)
                if name.endswith(".zip"):
                    raise UserError("an archive in an archive is not unpacked; upload the inner one")
                budget = _copy_entry(archive, entry, folder / f"z{name}", budget, limits)
    except UserError:
        raise
    except Exception as error:  # damaged archives fail in many ways
        raise UserError(f"the archive cannot be read ({error}); pack it again") from None


def _copy_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path, budget: int, limits: Limits) -> int:
    """Unpack one file; sizes in an archive may lie. Returns the bytes that are left."""
    with archive.open(entry) as source, target.open("wb") as sink:
        while part := source.read(2**20):
            budget -= len(part)
            if budget < 0:
                raise UserError(f"the archive unpacks to more than {limits.upload_mb:g} MB; upload a part of it")
            sink.write(part)
    return budget


def _is_extra(name: str) -> bool:
    base = name.rpartition("/")[2]
    return base.startswith(".") or name.startswith("__MACOSX/") or base in ("Thumbs.db", "DICOMDIR")


def _only_source(folder: Path, name: str, notes: list[str]) -> Source:
    """The image or volume among the files; of several DICOM series, the one with the most slices."""
    try:
        found = find_sources([folder])
    except UserError as error:
        text = str(error).replace(f"{folder}: ", "").replace(str(folder), "the upload")
        raise UserError(text.replace("the folder contains no image", f"{name} contains no image")) from None
    sources = sorted(found.sources, key=lambda source: -len(source.files))
    if len(sources) > 1 and len(sources[0].files) == len(sources[1].files):
        raise UserError(
            f"expected one image or volume, got {len(sources)}; upload one picture, one NIfTI, NRRD or MHA volume, or "
            "the files of one DICOM series"
        )
    if len(sources) > 1:
        notes.append(f"{len(sources)} series were uploaded; the one with the most slices is shown")
    for file in set(folder.iterdir()).difference(sources[0].files):  # the folder is the input now
        file.unlink()
    return sources[0]


# --- raters ---------------------------------------------------------------------------------------------


def _read_raters(folder: Path, stack: Stack) -> tuple[Array, list[str]] | None:
    """Label maps of raters "k s h w", and their names; None without any."""
    files = sorted((folder / "raters").iterdir()) if (folder / "raters").is_dir() else []
    if not files:
        return None
    names = json.loads((folder / "rater_names.json").read_text(encoding="utf-8"))
    maps = []
    for file, name in zip(files, names, strict=True):
        try:
            labels = _read_labels(file, stack)
        except UserError as error:
            raise UserError(f"label map {name!r}: {str(error).replace(str(file), 'the file')}") from None
        if labels.shape != stack.values.shape[:3]:
            size, got = ("×".join(map(str, shape)) for shape in (stack.values.shape[:3], labels.shape))
            raise UserError(f"label map {name!r}: expected {size} pixels, as the image has, got {got}")
        maps.append(labels)
    shutil.rmtree(folder / "raters")
    return np.stack(maps), [stem(name) for name in names]


def _read_labels(file: Path, stack: Stack) -> Array:
    if stack.lattice is None:
        labels = read_picture(file.read_bytes(), file.name, "indices").values[None]
        labels = labels[..., 0] if labels.ndim == 4 else labels
    else:
        labels = read_stack([file], stack.lattice.slicing).values
    whole = labels.dtype.kind in "ui" or bool((labels == np.rint(labels)).all())
    if not whole or labels.min() < 0 or labels.max() > 255:
        raise UserError("expected whole numbers from 0 to 255, one per class")
    labels = labels.astype(np.uint8)
    # A mask that was drawn in black and white means class 1.
    return (labels == 255).astype(np.uint8) if set(np.unique(labels).tolist()) <= {0, 255} else labels
