"""DICOM Segmentation objects that refer to the slices of their input."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stochseg._version import __version__
from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.inference.result import StackResult, label_type
from stochseg.inference.writers.base import Prediction
from stochseg.plotting.pictures import rgb_bytes
from stochseg.types import DatasetInfo, Samples

CODING_SCHEME = "99STOCHSEG"
"""Private scheme of classes with a name whose code in a public dictionary is unknown."""

LONGEST_TEXT = 64
"""Characters that a DICOM text of type LO holds."""

_EMPTY_IF_UNKNOWN = (
    *("PatientID", "PatientName", "PatientBirthDate", "PatientSex"),
    *("AccessionNumber", "StudyID", "StudyDate", "StudyTime"),
)
"""Tags that the standard requires in every object, with an empty value where it is unknown."""


def to_dicom_seg(samples: Samples, headers: Sequence[Any], info: DatasetInfo, algorithm: str = "stochseg") -> Any:
    """Convert the fused map of samples to a DICOM Segmentation with one binary segment per class.

    Args:
        samples: Of one volume, or of a batch of images that are the slices of one series.
        headers: pydicom headers of the source images, one per slice, in the order of the slices.
        info: Names and colors of the classes; the first class is the background and gets no segment.
        algorithm: Name of the model.

    Returns:
        A `highdicom.seg.Segmentation`, which is a pydicom dataset: write it with `save_as`.

    Raises:
        UserError: The number of headers differs from that of the slices, a header lacks what a segmentation must refer
            to, or highdicom is not installed.
    """
    fused = StackResult.from_samples(samples).fused
    return segmentation(fused, headers, class_segments(info), samples.labels.shape[1], algorithm)


@dataclass(frozen=True)
class Segment:
    """A segment. label: its name; kind and kind_name: number and name of its class; color: "#rrggbb"; lesion: the
    lesion that it belongs to, if it was segmented alone; code: of its class, see `DatasetInfo.codes`."""

    label: str
    kind: int
    kind_name: str
    color: str
    lesion: str = ""
    code: str = ""


def class_segments(info: DatasetInfo, lesion: str = "") -> list[Segment]:
    """One segment per class except the first, of a whole image or of one lesion, whose id becomes their label."""
    segments = []
    for kind in range(1, info.num_classes):
        name = info.names[kind].strip() or f"class {kind}"
        label = (lesion if info.num_classes == 2 else f"{lesion}: {name}") if lesion else name
        code = info.codes[kind] if info.codes else ""
        segments.append(Segment(label[:LONGEST_TEXT], kind, name[:LONGEST_TEXT], info.colors[kind], lesion, code))
    return segments


def segmentation(
    fused: npt.NDArray[Any],
    headers: Sequence[Any],
    segments: Sequence[Segment],
    num_samples: int,
    algorithm: str = "stochseg",
) -> Any:
    """Build the segmentation of a map "s h w" with the numbers of the segments, from 1, or of "s h w m" with one mask
    per segment, which may overlap; floats "s h w m" are probabilities of the segments, stored in 255 steps."""
    highdicom = require("highdicom", "medical", "writing DICOM SEG")
    soft = fused.dtype.kind == "f"
    kinds, what = highdicom.seg.SegmentationTypeValues, "mean probabilities" if soft else "fused map"
    return derived_object(
        highdicom.seg.Segmentation,
        headers,
        fused,
        algorithm,
        segmentation_type=kinds.FRACTIONAL if soft else kinds.BINARY,
        segment_descriptions=_describe_segments(highdicom, segments, algorithm[:LONGEST_TEXT]),
        content_label="PROBABILITIES" if soft else "SEGMENTATION",
        content_description=f"{what} of {num_samples} samples",
        omit_empty_frames=bool(fused.any()),  # at least one frame is required
    )


def derived_object(kind: Any, headers: Sequence[Any], pixels: npt.NDArray[Any], algorithm: str, **content: Any) -> Any:
    """Build a DICOM object that refers to source images. kind: its class in highdicom; pixels: "s h w …".

    Raises:
        UserError: The headers lack what it must refer to.
    """
    highdicom = require("highdicom", "medical", "writing DICOM")
    if len(headers) != len(pixels):
        raise UserError(f"expected one DICOM header per slice, got {len(headers)} for {len(pixels)} slices")
    algorithm = algorithm[:LONGEST_TEXT]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about empty segmentations and small faults of foreign headers
        try:
            return kind(
                source_images=[_with_required_tags(header) for header in headers],
                pixel_array=pixels,
                series_instance_uid=highdicom.UID(),
                series_number=1000 + int(headers[0].get("SeriesNumber") or 0) % 1000,
                sop_instance_uid=highdicom.UID(),
                instance_number=1,
                manufacturer="stochseg",
                manufacturer_model_name=algorithm,
                software_versions=__version__,
                device_serial_number="0",
                series_description=f"stochseg {algorithm}"[:LONGEST_TEXT],
                specific_character_set="ISO_IR 192",  # UTF-8 whatever the source's: class names are in any script
                **content,
            )
        except (AttributeError, ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"a DICOM object cannot refer to these images ({str(error).rstrip('.')}); fix their headers"
            ) from None


def _describe_segments(highdicom: Any, segments: Sequence[Segment], algorithm: str) -> list[Any]:
    codes = require("pydicom", "medical", "writing DICOM SEG").sr.codedict.codes
    identification = highdicom.AlgorithmIdentificationSequence(
        name=algorithm, family=codes.DCM.ArtificialIntelligence, version=__version__
    )
    return [
        highdicom.seg.SegmentDescription(
            segment_number=number,
            segment_label=segment.label,
            segmented_property_category=codes.SCT.Tissue,
            segmented_property_type=_coded(highdicom, segment),
            algorithm_type=highdicom.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
            algorithm_identification=identification,
            display_color=highdicom.color.CIELabColor.from_rgb(*rgb_bytes(segment.color)),
            tracking_id=segment.lesion or None,
            tracking_uid=highdicom.UID() if segment.lesion else None,
        )
        for number, segment in enumerate(segments, start=1)
    ]


def _coded(highdicom: Any, segment: Segment) -> Any:
    """The class in a public dictionary if its code is known, else in a private scheme."""
    if segment.code:
        scheme, value, meaning = segment.code.split(":", 2)
        return highdicom.sr.CodedConcept(value, scheme, meaning)
    return highdicom.sr.CodedConcept(str(segment.kind), CODING_SCHEME, segment.kind_name)


def _with_required_tags(header: Any) -> Any:
    missing = [tag for tag in _EMPTY_IF_UNKNOWN if tag not in header]
    header = deepcopy(header) if missing else header
    for tag in missing:
        setattr(header, tag, None)
    return header


def check_headers(headers: Sequence[Any], info: DatasetInfo, size: tuple[int, int]) -> None:
    """Raise a `UserError` if no segmentation can refer to images of this height and width with these headers."""
    for tag in ("StudyInstanceUID", "FrameOfReferenceUID"):
        if len({str(header.get(tag)) for header in headers}) > 1:
            raise UserError(f"its slices have different values of {tag}; fix their headers")
    empty = np.zeros((1, *size), label_type(info.num_classes))
    segmentation(empty, headers[:1], class_segments(info), num_samples=1)


def write_dicom_seg(prediction: Prediction, file: Path) -> None:
    """Write the fused map of a DICOM series as a DICOM Segmentation."""
    result = prediction.result
    segments, num_samples = class_segments(prediction.info), result.labels.shape[1]
    segmentation(result.fused, prediction.stack.headers, segments, num_samples, prediction.model).save_as(file)
