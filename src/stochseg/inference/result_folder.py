"""The folder that `predict` writes per input."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stochseg.errors import UserError
from stochseg.files import replaced_folder
from stochseg.inference.calibrated import describe_intervals
from stochseg.inference.plan import Plan, PredictOptions
from stochseg.inference.stacks import Lattice
from stochseg.inference.writers import WRITERS, Prediction
from stochseg.models.io import read_json

RESULT = "result.json"
FORMAT = "stochseg-prediction"
LESIONS = "lesions"
"""Folder in the result of a scan, with one result per lesion."""


def is_result(folder: Path) -> bool:
    """Whether a folder is the result of a prediction."""
    try:
        return bool(read_json(folder / RESULT).get("format") == FORMAT)
    except (OSError, UserError):
        return False


def write_result(folder: Path, prediction: Prediction, facts: Mapping[str, Any]) -> Path:
    """Write everything about one input, all or nothing; a result that exists there is replaced.

    The files are those of `WRITERS` that apply to the prediction, and result.json with `facts`, the sizes of the
    classes and the list of files.
    """
    with replaced_folder(folder, ours=is_result, kind="a result of stochseg predict") as scratch:
        write_files(scratch, prediction, facts)
    return folder


def write_files(folder: Path, prediction: Prediction, facts: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Write the files of one prediction into a folder that exists.

    Returns:
        The names of the files without result.json, and the sizes of the classes.
    """
    files = [name for name, writer in WRITERS.items() if writer.applies(prediction)]
    for name in files:
        WRITERS[name].write(prediction, folder / name)
    sizes = measure_sizes(prediction)
    intervals = {} if prediction.calibration is None else {"intervals": describe_intervals(prediction)}
    write_record(folder, {**facts, **sizes, **intervals, "overlay_slice": prediction.shown_slice, "files": files})
    return files, sizes


def write_record(folder: Path, content: Mapping[str, Any]) -> None:
    """Write result.json."""
    (folder / RESULT).write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def is_complete(
    folder: Path, files: Sequence[Mapping[str, str]], plan: Plan, lesions: Mapping[str, Any] | None = None
) -> bool:
    """Whether a folder contains the complete result of this plan for these files, given by their checksums.

    Args:
        folder: The folder of the result.
        files: The files of the input.
        plan: The model and its options.
        lesions: Record of the lesions to segment, as JSON values; None for a prediction of the whole input.

    Raises:
        UserError: The folder contains a result of another input, another model, other lesions or other options.
    """
    if not is_result(folder):
        return False
    record = read_json(folder / RESULT)
    written = record.get("files")
    if not written or not all((folder / str(name)).is_file() for name in written):
        return False
    if plan.options.overview and not any(Path(str(name)).name == "overview.png" for name in written):
        return False
    if not set(plan.options.also) <= set(record.get("options", {}).get("also", ())):
        return False
    # Older names are read, too, and older results have independent slices.
    before = PredictOptions.parse({"slices": "independent", **record.get("options", {})}, where=str(folder / RESULT))
    single = record.get("image", {}).get("slices") == 1
    unused = {"also", "overview", "allow_unusual_input"} | ({"slices"} if single else set())
    now = plan.options.model_dump(exclude=unused)
    changed = [key for key, value in now.items() if getattr(before, key) != value]
    if not plan.is_model_of(record.get("model", {})):
        changed.append("model")
    if [file["sha256"] for file in record.get("inputs", [])] != [file["sha256"] for file in files]:
        changed.append("input")
    if record.get("calibration") != plan.calibration_record:
        changed.append("calibration")
    if record.get("asked") != lesions:
        changed.append("choice of lesions")
    if changed:
        raise UserError(
            f"{folder} contains a result of another {', '.join(changed)}; replace it with --overwrite, or choose "
            "another --out"
        )
    return True


# --- sizes of the classes -------------------------------------------------------------------------------


def measure_sizes(prediction: Prediction) -> dict[str, Any]:
    """Measure the classes of a prediction: areas for a single slice, volumes for more, pixels for a picture.

    Returns:
        JSON values: "image" with the size and the geometry, "unit", "classes" with the size of each class in the fused
        map and in every sample and its confidence, "confidence" of the whole, the lowest of its structures, and
        "weights" of the samples unless they are equal.
    """
    result, info, lattice = prediction.result, prediction.info, prediction.stack.lattice
    s, n, height, width = result.labels.shape
    unit, size = "pixels", 1.0
    if lattice is not None:
        unit, size = ("mm2", lattice.spacing[1] * lattice.spacing[2]) if s == 1 else ("mm3", lattice.voxel)
    counts, confidence = _count_labels(prediction), estimate_confidence(prediction)
    fused = np.bincount(result.fused.ravel(), minlength=info.num_classes)
    return {
        "image": describe_geometry((s, height, width), lattice),
        "unit": unit,
        "classes": [
            {
                "label": label,
                "name": name,
                "color": info.colors[label],
                "fused": _nine_digits(float(fused[label]) * size),
                "confidence": confidence[label],
                "samples": [_nine_digits(float(count) * size) for count in counts[:, label]],
            }
            for label, name in enumerate(info.names)
        ],
        "confidence": min(confidence[1:]),
        "weights": None if np.allclose(result.weights, 1 / n) else result.weights.round(6).tolist(),
    }


def describe_geometry(size: tuple[int, int, int], lattice: Lattice | None) -> dict[str, Any]:
    """Describe the slices, height and width of an input, and its place in space, as JSON values."""
    slices, height, width = size
    return {
        "slices": slices,
        "height": height,
        "width": width,
        "spacing_mm": None if lattice is None else [_nine_digits(v) for v in lattice.spacing],
        "affine": None if lattice is None else np.round(lattice.affine, 9).tolist(),
        "slice_axis": None if lattice is None else lattice.slicing.axis,
        "transposed": lattice is not None and lattice.slicing.transposed,
        "flipped": [] if lattice is None else list(lattice.slicing.flipped),
    }


def _count_labels(prediction: Prediction) -> npt.NDArray[np.int64]:
    """Count the pixels of each class in each sample, "n l"."""
    labels, classes = prediction.result.labels, prediction.info.num_classes
    counts = np.zeros((labels.shape[1], classes), np.int64)
    for part in labels:  # slice by slice, because bincount makes 64-bit copies
        counts += np.stack([np.bincount(one.ravel(), minlength=classes) for one in part])
    return counts


def estimate_confidence(prediction: Prediction) -> list[float]:
    """Estimate how well the fused map fits the truth: the mean Dice of each class between it and the samples.

    If the truth is as likely to be one sample as another, this is the expected Dice of the fused map. It is 1 for a
    class that is neither in the fused map nor in a sample. Weights of slices are those of the whole.
    """
    result, classes = prediction.result, prediction.info.num_classes
    both = np.zeros((result.labels.shape[1], classes), np.int64)
    for labels, fused in zip(result.labels, result.fused, strict=True):
        both += np.stack([np.bincount(one[one == fused], minlength=classes) for one in labels])
    total = _count_labels(prediction) + np.bincount(result.fused.ravel(), minlength=classes)
    dice = np.divide(2 * both, total, out=np.ones(both.shape), where=total > 0)
    weights = result.weights.mean(0, dtype=np.float64)
    return [round(float(value), 6) for value in weights @ dice / weights.sum()]


def _nine_digits(value: float) -> float:
    """Round to nine significant digits, so that kilometers and microns keep the same precision."""
    return float(f"{value:.9g}")
