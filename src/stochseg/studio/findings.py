"""Everything that the page says about a finished prediction: readings, measurements, scores, contours, maps.

It is computed once from the folder that `predict` wrote and stored next to it, so that the server only sends files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stochseg.analysis import calibrated_interval, hypotheses, measure
from stochseg.analysis.image_samples import ImageSamples, class_names
from stochseg.analysis.measurement import Measurement
from stochseg.analysis.measures import measure_names
from stochseg.metrics import ged, hm_iou
from stochseg.reports.page import number
from stochseg.reports.saved_prediction import read_maps
from stochseg.reports.saved_result import Result, find_results, read_result
from stochseg.studio.maps import (
    Array,
    contours_of,
    display_affine,
    nifti_bytes,
    png_bytes,
    spaced_affine,
    write_bytes,
    write_json,
)
from stochseg.studio.store import Json
from stochseg.types import DatasetInfo, Spacing

LEVEL = 0.9
"""Of the intervals of measurements."""
CROP_MARGIN = 1


@dataclass(frozen=True)
class Findings:
    """A saved prediction with what is derived from it.

    result: of result.json; labels: "n s h w"; mean: "l s h w"; flat: whether the input is a picture; spacing:
    millimeters per voxel (slice, row, column) or None; raters: "k s h w" of the same part of the input.
    """

    result: Result
    labels: Array
    mean: Array
    flat: bool
    spacing: Spacing | None
    raters: Array | None = None
    rater_names: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path, facts: Json, raters: Array | None) -> Findings:
        """Read the only result below a folder. facts: of the input; raters: of the whole input."""
        (found,) = find_results(folder)
        result = read_result(found)
        labels, mean = read_maps(found, result)
        spacing: Spacing | None = result.image.spacing_mm
        if spacing is None and facts["spacing"] is not None:
            spacing = (1.0, *facts["spacing"])
        if raters is not None:
            s, h, w = cls.offset_of(result)
            d, height, width = labels.shape[1:]
            raters = raters[:, s : s + d, h : h + height, w : w + width]
        return cls(result, labels, mean, facts["spatial_dims"] == 2, spacing, raters, tuple(facts["rater_names"]))

    @staticmethod
    def offset_of(result: Result) -> tuple[int, int, int]:
        """The first voxel of the part that was segmented, in the whole input."""
        return (0, 0, 0) if result.lesion is None else result.lesion.part.start

    @property
    def info(self) -> DatasetInfo:
        """Names and colors of the classes."""
        return self.result.info

    # --- analysis ---

    @cached_property
    def window(self) -> tuple[slice, ...]:
        """The part in which samples or raters mark anything: the rest only costs time."""
        marked = (self.labels != 0).any(0)
        if self.raters is not None:
            marked |= (self.raters != 0).any(0)
        ends = []
        for axis in range(3):
            others = tuple(i for i in range(3) if i != axis)
            found = np.flatnonzero(marked.any(others))
            first, last = (int(found[0]), int(found[-1])) if len(found) else (0, min(7, marked.shape[axis] - 1))
            ends.append(slice(max(0, first - CROP_MARGIN), last + 1 + CROP_MARGIN))
        return tuple(ends)

    def _images(self, maps: Array, weights: torch.Tensor) -> ImageSamples:
        """Label maps as samples of an image, or of a volume if there are several slices."""
        if self.labels.shape[1] == 1:
            part = maps[:, 0][(slice(None), *self.window[1:])]
        else:
            part = maps[(slice(None), *self.window)]
        kind = np.uint8 if self.info.num_classes <= 256 else np.int64
        return ImageSamples(torch.from_numpy(np.ascontiguousarray(part, kind)), weights, self.info)

    @cached_property
    def samples(self) -> ImageSamples:
        """The samples inside `window`."""
        weights = self.result.sample_weights()[0].double()
        return self._images(self.labels, weights / weights.sum())

    @cached_property
    def rated(self) -> ImageSamples | None:
        """The raters inside `window`; None without them, or if they use other classes."""
        if self.raters is None or int(self.raters.max()) >= self.info.num_classes:
            return None
        count = len(self.raters)
        return self._images(self.raters, torch.full((count,), 1 / count, dtype=torch.float64))

    def _measured(self, samples: ImageSamples) -> dict[tuple[str, int], Measurement]:
        spacing = None if self.spacing is None else self.spacing[-samples.axes :]
        names = measure_names(samples.axes)
        classes = range(1, self.info.num_classes)
        own = partial(
            measure,
            samples,
            spacing=spacing,
            calibration=self.result.usable_calibration if samples is self.samples else None,
        )
        found = {(what, c): own(what, label=c) for what in names for c in classes}
        ratios = {what: own(what) for what in self.info.measures if samples.axes == 2}
        last = self.info.num_classes - 1  # whose color a ratio has
        shown = {(what, last): each for what, each in ratios.items() if each.undefined == 0}
        return {**shown, **found}

    def _scores(self) -> Json | None:
        if self.rated is None:
            return None
        classes = self.info.num_classes
        pair = self.samples.labels[None].long(), self.rated.labels[None].long()
        weights = self.samples.weights[None]
        return {
            "ged": float(ged(*pair, classes, weights=weights)[0]),
            "hm_iou": float(hm_iou(*pair, classes, weights=weights)[0]),
        }

    # --- documents ---

    def document(self) -> Json:
        """The answer of GET …/result, without the list of files."""
        result, names = self.result, class_names(self.info)
        calibration = result.usable_calibration
        measured = self._measured(self.samples)
        rated = {} if self.rated is None else self._measured(self.rated)
        readings = hypotheses(self.samples)
        of_sample = {int(i): k for k, reading in enumerate(readings) for i in reading.members}
        weights = self.samples.weights.tolist()
        dims = 2 if self.flat else 3
        warnings = [notice for notice in result.notices if notice.startswith(("WARNING", "in "))]
        return {
            "spatial_dims": dims,
            "shape": list(self.labels.shape[1:])[-dims:],
            "offset": list(self.offset_of(result))[-dims:],
            "spacing": None if self.spacing is None else list(self.spacing)[-dims:],
            "classes": [{"index": c, "name": name, "color": self.info.colors[c]} for c, name in enumerate(names)],
            "samples": [
                {
                    "weight": weight,
                    "hypothesis": of_sample.get(i),
                    "measures": {_key(*key): float(each.values[i]) for key, each in measured.items()},
                }
                for i, weight in enumerate(weights)
            ],
            "hypotheses": [
                {
                    "name": reading.name,
                    "probability": reading.probability,
                    "interval": list(reading.interval),
                    "medoid": reading.medoid_index,
                    "members": reading.members.tolist(),
                }
                for reading in readings
            ],
            "measures": [self._describe(key, each) for key, each in measured.items()],
            "scores": self._scores(),
            "raters": None
            if self.rated is None
            else {
                "names": list(self.rater_names),
                "measures": {_key(*key): each.values.tolist() for key, each in rated.items()},
            },
            "warnings": warnings,
            "calibration": None if calibration is None else calibration.basis,
            "notes": [notice for notice in result.notices if notice not in warnings],
            "coupling": result.coupling,
            "evaluations": result.evaluations,
            "seed": result.options.seed,
            "drawn_as": result.drawn_as,
        }

    def _describe(self, key: tuple[str, int], measured: Measurement) -> Json:
        (what, label), (low, high) = key, measured.interval(LEVEL)
        median = measured.quantile(0.5)
        unit = f" {measured.unit}" if measured.unit else ""
        return {
            "key": _key(what, label),
            "title": what[:1].upper() + what[1:],
            "unit": measured.unit,
            "class": label,
            "interval": [low, high],
            "level": LEVEL,
            "calibrated": calibrated_interval(measured, LEVEL),
            "median": median,
            "mean": measured.mean,
            "statement": f"{measured.name}: median {number(median)}{unit}, "
            f"{LEVEL:.0%} of the samples from {number(low)} to {number(high)}{unit}",
        }

    def contours(self) -> Json:
        """Outlines of every class in every sample, slice by slice, in pixels of the maps."""
        return contours_of(self.labels)

    # --- maps ---

    @cached_property
    def _affine(self) -> Array:
        image = self.result.image
        size = (image.slices, image.height, image.width)
        if image.affine is None:
            return spaced_affine(self.spacing)
        return display_affine(image.affine, image.slicing, size)

    def map_bytes(self, stack: Array) -> bytes:
        """A map "s h w" of 8 bits as the page reads it."""
        return png_bytes(stack[0]) if self.flat else nifti_bytes(stack, self._affine)

    def write(self, folder: Path, **facts: Any) -> None:
        """Write all documents and maps into a folder that exists. facts: more entries of result.json."""
        suffix = "png" if self.flat else "nii.gz"
        for i, labels in enumerate(self.labels):
            write_bytes(folder / f"sample-{i:05d}.{suffix}", self.map_bytes(labels.astype(np.uint8)))
        if not self.flat:
            write_bytes(folder / "samples.nii.gz", nifti_bytes(self.labels.astype(np.uint8), self._affine))
        for c, probability in enumerate(self.mean):
            content = self.map_bytes((probability.clip(0, 1) * 255).round().astype(np.uint8))
            write_bytes(folder / f"probability-{c:05d}.{suffix}", content)
        mean = torch.from_numpy(np.ascontiguousarray(self.mean))
        entropy = (-torch.xlogy(mean, mean).sum(0) / np.log(len(mean))).clamp(0, 1).numpy()
        write_bytes(folder / f"entropy.{suffix}", self.map_bytes((entropy * 255).round().astype(np.uint8)))
        write_json(folder / "contours.json", self.contours())
        write_json(folder / "result.json", {**self.document(), **facts})  # last: it says that all is there


def _key(what: str, label: int) -> str:
    return f"{what.replace(' ', '-')}-{label}"
