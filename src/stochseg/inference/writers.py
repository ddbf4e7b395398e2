"""Samples in the field's own formats: numpy, NIfTI, DICOM SEG, TIFF, and the folder that `predict` writes.

Here the b images of `Samples` are the slices of a volume, first to last; a picture is a volume of one slice.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from matplotlib.colors import to_rgb
from PIL import Image

from stochseg._version import __version__
from stochseg.errors import UserError, unknown_name
from stochseg.extras import require
from stochseg.files import replaced_folder
from stochseg.inference.sources import RESULT, is_result
from stochseg.inference.stacks import Lattice, Stack
from stochseg.types import DatasetInfo, Samples

VOLUMES = {"labels": "samples", "fused": "fused", "mean": "mean", "entropy": "entropy"}
"""What is written of a volume, and the name of its file."""

OPACITY = 0.45
"""Of the colors that the overlay lays over the image."""

CODING_SCHEME = "99STOCHSEG"
"""Private codes of classes: a class has a name, but nobody said which term of a dictionary it is."""


def label_type(num_classes: int) -> type[np.unsignedinteger[Any]]:
    """The smallest type of number that holds the labels."""
    return np.uint8 if num_classes <= 256 else np.uint16


# ---------------------------------------------------------------------- converters


PARTS: dict[str, Callable[[Samples], np.ndarray]] = {
    "labels": lambda s: s.labels.cpu().numpy().astype(label_type(s.num_classes), copy=False),
    "fused": lambda s: s.fused().cpu().numpy().astype(label_type(s.num_classes)),
    "mean": lambda s: s.mean.float().cpu().numpy(),
    "entropy": lambda s: s.entropy.float().cpu().numpy(),
    "weights": lambda s: s.weights.float().cpu().numpy(),
}


def to_numpy(samples: Samples) -> dict[str, np.ndarray]:
    """labels "b n h w" and fused "b h w" in the fewest bits; mean "b l h w", entropy "b h w" and weights "b n" as
    float32."""
    return {name: part(samples) for name, part in PARTS.items()}


def to_nifti(samples: Samples, part: str = "fused", lattice: Lattice | None = None) -> Any:
    """A nibabel image "x y z" of the fused labels or the entropy, or "x y z n" of all samples (part "labels"), or
    "x y z l" of the mean probabilities. lattice: where the voxels lie; without it they are cubes of 1 mm."""
    nibabel = require("nibabel", "medical", "writing NIfTI")
    if part not in VOLUMES:
        raise unknown_name("part", part, VOLUMES)
    lattice = Lattice(np.eye(4)) if lattice is None else lattice
    stack = PARTS[part](samples)
    data = lattice.place(np.moveaxis(stack, 1, -1) if stack.ndim == 4 else stack)
    kind = nibabel.Nifti1Image
    if isinstance(lattice.header, nibabel.Nifti2Header) or max(data.shape) > 32767:
        kind = nibabel.Nifti2Image
    header = None if lattice.header is None else kind.header_class.from_header(lattice.header, check=False)
    image = kind(data, lattice.affine, header, dtype=data.dtype)
    space = image.header.get_xyzt_units()[0]
    image.header.set_xyzt_units("mm" if space == "unknown" else space)
    image.header.set_intent("label" if part in ("labels", "fused") else "none")
    image.header["descrip"] = f"stochseg {__version__} {part}".encode()
    image.header["cal_min"] = image.header["cal_max"] = 0  # the display range of the intensities
    if data.ndim == 4:
        image.header["pixdim"][4] = 1
    return image


def to_dicom_seg(samples: Samples, headers: Sequence[Any], info: DatasetInfo, algorithm: str = "stochseg") -> Any:
    """A DICOM Segmentation (a highdicom object, which is a pydicom dataset) of the fused labels: one binary segment a
    class but the first, which is the background. headers: the source images, one a slice, which it refers to."""
    highdicom = require("highdicom", "medical", "writing DICOM SEG")
    pydicom = require("pydicom", "medical", "writing DICOM SEG")
    fused = PARTS["fused"](samples)
    if len(headers) != len(fused):
        raise UserError(f"expected one DICOM header a slice, got {len(headers)} for {len(fused)} slices")
    names = [name.strip() or f"class {i}" for i, name in enumerate(info.names)]
    identification = highdicom.AlgorithmIdentificationSequence(
        name=algorithm[:64], family=pydicom.sr.codedict.codes.DCM.ArtificialIntelligence, version=__version__
    )
    segments = [
        highdicom.seg.SegmentDescription(
            segment_number=label,
            segment_label=name[:64],
            segmented_property_category=pydicom.sr.codedict.codes.SCT.Tissue,
            segmented_property_type=highdicom.sr.CodedConcept(str(label), CODING_SCHEME, name[:64]),
            algorithm_type=highdicom.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
            algorithm_identification=identification,
            display_color=highdicom.color.CIELabColor.from_rgb(*_rgb(color)),
        )
        for label, (name, color) in enumerate(zip(names, info.colors, strict=True))
        if label > 0
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an empty segmentation and of foreign headers' small faults
        try:
            return highdicom.seg.Segmentation(
                source_images=[_complete(header) for header in headers],
                pixel_array=fused,
                segmentation_type=highdicom.seg.SegmentationTypeValues.BINARY,
                segment_descriptions=segments,
                series_instance_uid=highdicom.UID(),
                series_number=1000 + int(headers[0].get("SeriesNumber") or 0) % 1000,
                sop_instance_uid=highdicom.UID(),
                instance_number=1,
                manufacturer="stochseg",
                manufacturer_model_name=algorithm[:64],
                software_versions=__version__,
                device_serial_number="0",
                content_label="SEGMENTATION",
                content_description=f"fused map of {samples.labels.shape[1]} samples",
                series_description=f"stochseg {algorithm}"[:64],
                omit_empty_frames=bool(fused.any()),  # there must be one
                specific_character_set="ISO_IR 192",  # UTF-8, whatever the source's: names of classes are in any script
            )
        except (AttributeError, ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"a DICOM SEG cannot refer to these images ({str(error).rstrip('.')}); mend their headers"
            ) from None


_EMPTY_IF_UNKNOWN = (
    *("PatientID", "PatientName", "PatientBirthDate", "PatientSex"),
    *("AccessionNumber", "StudyID", "StudyDate", "StudyTime"),
)
"""The standard wants these in every object, though without a value where it is not known."""


def _complete(header: Any) -> Any:
    missing = [tag for tag in _EMPTY_IF_UNKNOWN if tag not in header]
    header = deepcopy(header) if missing else header
    for tag in missing:
        setattr(header, tag, None)
    return header


# ---------------------------------------------------------------------- the folder of a result


def write_result(
    folder: Path, samples: Samples, stack: Stack, info: DatasetInfo, facts: Mapping[str, Any], algorithm: str
) -> Path:
    """Everything about one input, all or nothing; a result there is replaced.

    A picture gives samples.tif (n pages), fused.png (a palette PNG whose indices are the labels), mean.tif (a page a
    class) and entropy.tif; a volume samples.nii.gz (4-D), fused.nii.gz, mean.nii.gz (4-D) and entropy.nii.gz; DICOM
    also fused.dcm, a DICOM SEG. Beside them overlay.png, and result.json with `facts` and what was measured.
    """
    with replaced_folder(folder, ours=is_result, kind="a result of stochseg predict") as scratch:
        files = _write_picture(scratch, samples, stack, info) if stack.lattice is None else []
        if stack.lattice is not None:
            for part, name in VOLUMES.items():
                to_nifti(samples, part, stack.lattice).to_filename(scratch / f"{name}.nii.gz")
                files.append(f"{name}.nii.gz")
        if stack.headers:
            to_dicom_seg(samples, stack.headers, info, algorithm).save_as(scratch / "fused.dcm")
            files.append("fused.dcm")
        fused = PARTS["fused"](samples)
        shown = most_foreground(fused)
        overlay(stack.values[shown], fused[shown], info).save(scratch / "overlay.png")
        measured = measure(samples, stack, info)
        content = {**facts, **measured, "overlay_slice": shown, "files": [*files, "overlay.png"]}
        (scratch / RESULT).write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return folder


def _write_picture(folder: Path, samples: Samples, stack: Stack, info: DatasetInfo) -> list[str]:
    arrays = to_numpy(samples)
    options: dict[str, Any] = {"photometric": "minisblack", "compression": "zlib"}
    if stack.dpi is not None:
        options |= {"resolution": stack.dpi, "resolutionunit": "INCH"}
    tifffile.imwrite(folder / "samples.tif", arrays["labels"][0], metadata={"axes": "QYX"}, **options)
    tifffile.imwrite(folder / "mean.tif", arrays["mean"][0], metadata={"axes": "CYX"}, **options)
    tifffile.imwrite(folder / "entropy.tif", arrays["entropy"][0], metadata={"axes": "YX"}, **options)
    if info.num_classes > 256:  # more than a palette has
        tifffile.imwrite(folder / "fused.tif", arrays["fused"][0], metadata={"axes": "YX"}, **options)
        return ["samples.tif", "fused.tif", "mean.tif", "entropy.tif"]
    picture = Image.fromarray(arrays["fused"][0]).convert("P")
    picture.putpalette([value for color in info.colors for value in _rgb(color)])
    picture.save(folder / "fused.png", **({} if stack.dpi is None else {"dpi": stack.dpi}))
    return ["samples.tif", "fused.png", "mean.tif", "entropy.tif"]


def measure(samples: Samples, stack: Stack, info: DatasetInfo) -> dict[str, Any]:
    """How large each class is in the fused map and in every sample: an area for a single slice, a volume for more."""
    arrays = {part: PARTS[part](samples) for part in ("labels", "fused", "weights")}
    s, n = arrays["labels"].shape[:2]
    unit, size = "pixels", 1.0
    if stack.lattice is not None:
        spacing = stack.lattice.spacing
        unit, size = ("mm2", spacing[1] * spacing[2]) if s == 1 else ("mm3", stack.lattice.voxel)
    counts = np.zeros((n, info.num_classes), np.int64)
    for part in arrays["labels"]:  # slice by slice: bincount makes 64-bit copies
        counts += np.stack([np.bincount(one.ravel(), minlength=info.num_classes) for one in part])
    fused = np.bincount(arrays["fused"].ravel(), minlength=info.num_classes)
    even = bool(np.allclose(arrays["weights"], 1 / n))
    return {
        "image": {
            "slices": s,
            "height": arrays["labels"].shape[2],
            "width": arrays["labels"].shape[3],
            "spacing_mm": None if stack.lattice is None else [_digits(v) for v in stack.lattice.spacing],
            "affine": None if stack.lattice is None else np.round(stack.lattice.affine, 9).tolist(),
            "slice_axis": None if stack.lattice is None else stack.lattice.axis,
        },
        "unit": unit,
        "classes": [
            {
                "label": label,
                "name": name,
                "color": info.colors[label],
                "fused": _digits(float(fused[label]) * size),
                "samples": [_digits(float(count) * size) for count in counts[:, label]],
            }
            for label, name in enumerate(info.names)
        ],
        "weights": None if even else arrays["weights"].round(6).tolist(),
    }


def _digits(value: float) -> float:
    """To nine significant ones, of kilometres and of microns alike."""
    return float(f"{value:.9g}")


def most_foreground(fused: np.ndarray) -> int:
    """The slice of "s h w" that shows most; the middle one if nothing is to be seen."""
    sizes = (fused != 0).reshape(len(fused), -1).sum(1)
    return int(sizes.argmax()) if sizes.any() else len(fused) // 2


def overlay(raw: np.ndarray, fused: np.ndarray, info: DatasetInfo) -> Image.Image:
    """The image "h w" or "h w c" with every class but the background in its color."""
    channels = raw.reshape(*raw.shape[:2], -1)
    gray = eight_bits(channels[..., : 3 if channels.shape[-1] >= 3 else 1])
    colors = np.array([_rgb(color) for color in info.colors], np.float32)[fused]
    mixed = gray + OPACITY * (colors - gray)
    return Image.fromarray(np.where(fused[..., None] == 0, gray, mixed).round().astype(np.uint8))


def eight_bits(raw: np.ndarray) -> np.ndarray:
    """Intensities for the eye, 0..255: as they are if they are such, otherwise from the darkest to the brightest
    hundredth."""
    raw = raw.astype(np.float32)
    if raw.min() >= 0 and 1 < raw.max() <= 255:
        return raw
    low, high = np.percentile(raw, [1, 99])
    return np.clip((raw - low) / max(high - low, 1e-6), 0, 1) * 255


def _rgb(color: str) -> tuple[int, int, int]:
    r, g, b = (round(255 * value) for value in to_rgb(color))
    return r, g, b
