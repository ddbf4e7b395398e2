"""The section of a page about one volume: three planes, a slider, readings, lesions, measurements, answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from stochseg.analysis.image_samples import ImageSamples, select_image
from stochseg.analysis.measurement import Measurement
from stochseg.analysis.measures import MEASURES, VOLUME, measure
from stochseg.analysis.questions import Question
from stochseg.analysis.readings import Hypotheses, hypotheses
from stochseg.analysis.separation import Lesion, lesions
from stochseg.data import spread
from stochseg.models import Calibration
from stochseg.plotting import report_figures as figures
from stochseg.plotting.outlines import Legend, class_legend, draw_labels, draw_raters, draw_samples, rater_legend
from stochseg.plotting.output import embed_picture
from stochseg.plotting.pictures import FloatArray, LabelArray, intensities_to_rgb
from stochseg.plotting.planes import VolumeView, marked_view, plane_figure, plane_maps
from stochseg.plotting.slides import slide
from stochseg.reports.page import Picture, Section, Slides, Table, mean_and_interval, plural
from stochseg.reports.statements import LARGEST, MAX_READINGS, Statements
from stochseg.types import DatasetInfo, Samples, Spacing, Window

Coupling = Literal["independent", "shared", "joint"]
"""How slices belong together in a sample: drawn independently, with the same noise, or as one volume."""

WIDE, NARROW = 8.4, 4.4  # inches of three planes
DPI, READING_DPI = 110, 100
MAX_SLIDES = 48  # slices behind the slider
MAX_LESIONS = 20  # in the table
DRAWN_MEASURES = (VOLUME, "longest diameter", "surface area")
SLICES_ARE = {
    "independent": "The slices were sampled independently of each other: readings are of {slice} alone, and the true "
    "spread of all that is measured on the whole volume is wider than shown.",
    "shared": "The slices were sampled one by one with the same noise: a sample is one reading of the whole volume as "
    "far as neighboring slices look alike.",
    "joint": "A sample is one reading of the whole volume.",
}


@dataclass(frozen=True, eq=False)
class VolumeReport(Statements):
    """One volume with its samples and everything derived from them. All arrays are of the part inside `view.window`.

    picture: "d h w 3" in 0..1; samples: label maps "n d h w"; mean: "l d h w"; view: the part of the volume, which
    contains everything that is marked; depth: slices of the whole volume; coupling: of the slices; volumes: of classes,
    if known better than from the spacing; labeled: the part of the volume that the model labels; spacing, raters,
    notes: as of an image.
    """

    name: str
    picture: FloatArray
    samples: ImageSamples
    info: DatasetInfo
    mean: FloatArray
    view: VolumeView
    depth: int
    coupling: Coupling = "joint"
    spacing: Spacing | None = None
    raters: Tensor | None = None
    rater_names: tuple[str, ...] = ()
    volumes: dict[int, Measurement] = field(default_factory=dict)
    labeled: Window | None = None
    notes: tuple[str, ...] = ()
    questions: Sequence[Question] = ()
    calibration: Calibration | None = None

    @classmethod
    def of_samples(
        cls,
        name: str,
        raw: npt.NDArray[Any],
        samples: Samples,
        info: DatasetInfo,
        *,
        spacing: Spacing | None = None,
        raters: Tensor | None = None,
        rater_names: tuple[str, ...] = (),
        questions: Sequence[Question] = (),
        calibration: Calibration | None = None,
    ) -> VolumeReport:
        """Cut out the part that samples or raters mark. raw: intensities "d h w c"; raters: "k d h w"."""
        image = select_image(samples, info=info)
        view = marked_view([image.labels] if raters is None else [image.labels, raters], spacing)
        part = (slice(None), *view.window)
        return cls(
            name,
            intensities_to_rgb(raw[view.window], 3),
            replace(image, labels=image.labels[part]),
            info,
            view.crop(samples.mean[0].cpu().numpy()),
            view,
            len(raw),
            spacing=spacing,
            raters=None if raters is None else raters[part],
            rater_names=rater_names,
            labeled=samples.window,
            questions=questions,
            calibration=calibration,
        )

    @property
    def image(self) -> ImageSamples:
        """Label maps of the samples."""
        return self.samples

    # --- analysis ---

    @cached_property
    def readings(self) -> Hypotheses:
        """Readings of the whole volume, or of the disputed slice if the slices of a sample are independent."""
        if self.coupling == "independent":
            return hypotheses(replace(self.image, labels=self.image.labels[:, self._disputed]))
        return hypotheses(self.image)

    @cached_property
    def _disputed(self) -> int:
        """Slice of the window on which the samples disagree most."""
        mean = torch.from_numpy(self.mean)
        return int(torch.xlogy(mean, mean).sum((0, 2, 3)).argmin())  # the highest entropy

    def slice_name(self, index: int) -> str:
        """Name of a slice of the window, such as "slice 12 of 40"."""
        return f"slice {self.view.window[0].start + index + 1} of {self.depth}"

    @cached_property
    def lesions(self) -> list[Lesion]:
        """Lesions of all foreground, the largest first."""
        return lesions(self.image)

    def _measure(self, what: str, label: int | None, maps: Tensor | None = None) -> Measurement:
        """Measure the volume; of what only images have, the largest of all slices."""
        if 3 not in MEASURES[what].axes:
            return self._largest(what, label)
        if what == VOLUME and maps is None and self.volumes:
            stated = self.volumes[label] if label is not None else total_size(list(self.volumes.values()))
            return replace(stated, offsets=super()._measure(what, label).offsets)
        return super()._measure(what, label, maps)

    def _largest(self, what: str, label: int | None) -> Measurement:
        """Largest value of all slices of each sample."""
        spacing = self.spacing and self.spacing[1:]
        slices = [replace(self.image, labels=self.image.labels[:, z]) for z in range(self.image.labels.shape[1])]
        found = [measure(each, what, label=label, spacing=spacing) for each in slices]
        return replace(found[0], name=found[0].name + LARGEST, values=np.max([each.values for each in found], axis=0))

    # --- the section ---

    def section(self, heading: str = "", text: str = "", anchor: str = "") -> Section:
        """Build the section of the page about this volume."""
        where = self.slice_name(self._disputed)
        coupled = SLICES_ARE[self.coupling].format(slice=where)
        whole = f" of {where} alone" if self.coupling == "independent" else " of the whole volume"
        parts = [self._readings(whole), *self._lesion_section()]
        if self.info.num_classes > 2:
            parts.insert(0, self._class_section(self.mean, self._mean_picture, 22.0))
        parts.append(self._measurement_section(DRAWN_MEASURES, "All are of the whole volume."))
        if self.measured:
            parts.append(Section("All measurements", table=self._table(), folded=True))
        return Section(
            heading or self.name,
            f"{self._words(text)} {coupled}".lstrip(),
            pictures=self._pictures(),
            slides=self._slides(),
            anchor=anchor,
            parts=parts,
        )

    def _pictures(self) -> list[Picture]:
        labels, weights, found = self.image.labels.numpy(), self.image.weights.numpy(), []
        if self.raters is not None:
            maps = self.raters.numpy()
            drawn = self._planes(lambda axis, part, plane: draw_raters(axis, part, self.view.cut(maps, plane)))
            legend = rater_legend(self.rater_names, maps)
            found.append(_wide(drawn, f"{plural(len(maps), 'rater')}.", "One color per rater:", legend))
        outlines = self._planes(
            lambda axis, part, plane: draw_samples(
                axis, part, self.view.cut(labels, plane), weights, self.info, self.labels
            )
        )
        shown = self.slice_name(self.view.center[0] - self.view.window[0].start)
        caption = (
            f"Planes through {'the largest lesion' if self.lesions else 'the middle'} ({shown}), to scale; dotted "
            "lines mark the other planes. Each line is one plausible segmentation."
        )
        caption += " The model labels the inside of the dashed box." if self.labeled is not None else ""
        legend = class_legend(self.info, self.labels) if self.info.num_classes > 2 else []
        mean = plane_maps(self.view, 1 - self.mean[0], 1.0, "viridis", "probability", WIDE)
        yellow = "Dark: no sample marks the voxel; yellow: all samples do."
        return [
            *found,
            _wide(outlines, f"Outlines of {plural(len(labels), 'sample')}.", caption, legend),
            _wide(mean, "Mean probability of foreground.", yellow),
        ]

    def _planes(self, draw: Callable[[Axes, FloatArray, int], None], width: float = WIDE, lines: bool = True) -> Figure:
        """Three planes drawn by a function of axes, picture "h w 3" and plane."""

        def one(axis: Axes, plane: int) -> None:
            draw(axis, self.view.cut_picture(self.picture, plane), plane)
            if lines:
                self.view.draw_lines(axis, plane)
                self.view.draw_window(axis, plane, self.labeled)

        return plane_figure(self.view, one, width)

    def _slides(self) -> Slides:
        """One picture per slice of the window; of many slices, evenly spaced ones."""
        count, labels, weights = len(self.picture), self.image.labels.numpy(), self.image.weights.numpy()
        shown = spread(count, MAX_SLIDES)
        aspect = self.view.aspect(0)
        foreground = 1 - self.mean[0]
        uris = [slide(self.picture[z], labels[:, z], weights, foreground[z], self.info, aspect) for z in shown]
        center = self.view.center[0] - self.view.window[0].start
        first = int(np.abs(np.array(shown) - center).argmin())
        caption = "Left: outlines of all samples. Right: mean probability of foreground."
        if len(shown) < count:
            caption += f" {len(shown)} of {count} slices, evenly spaced."
        if count < self.depth:
            caption += " No sample marks any other slice."
        return Slides(uris, [self.slice_name(z) for z in shown], first, caption, class_legend(self.info, self.labels))

    def _mean_picture(self, values: FloatArray) -> str:
        return embed_picture(plane_maps(self.view, values, 1.0, "viridis", "probability", NARROW), READING_DPI)

    def _readings(self, whole: str) -> Section:
        uris = []
        for reading in self.readings[:MAX_READINGS]:
            labels = reading.medoid.numpy()
            if labels.ndim == 2:
                picture = self.picture[self._disputed]
                drawn = figures.overlay(picture, self.view.aspect(0), draw_labels, labels, self.info)
            else:
                drawn = self._planes(partial(self._draw_reading, labels), NARROW, lines=False)
            uris.append(embed_picture(drawn, READING_DPI))
        return self._reading_section(uris, 9.5 if self.coupling == "independent" else 22.0, whole)

    def _draw_reading(self, labels: LabelArray, axis: Axes, picture: FloatArray, plane: int) -> None:
        draw_labels(axis, picture, self.view.cut(labels, plane), self.info)

    def _lesion_section(self) -> list[Section]:
        """Table of the lesions, if there are several."""
        if len(self.lesions) < 2:
            return []
        rows = []
        for lesion in self.lesions[:MAX_LESIONS]:
            found = (measure(lesion.samples, what, spacing=self.spacing) for what in (VOLUME, "longest diameter"))
            place = ", ".join(
                str(side.start + at + 1) for side, at in zip(self.view.window, lesion.center, strict=True)
            )
            rows.append([lesion.name, place, str(lesion.presence), *map(mean_and_interval, found)])
        rest = len(self.lesions) - len(rows)
        more = f" {rest} smaller ones are left out." if rest else ""
        return [
            Section(
                f"{len(self.lesions)} lesions",
                "A lesion is a connected part of all that any sample marks, of any class. Its size is 0 in samples "
                f"that mark nothing there.{more}",
                table=Table(
                    ["lesion", "slice, row, column", "present", "volume, mean (90%)", "longest diameter"], rows
                ),
            )
        ]


def _wide(figure: Figure, title: str, caption: str, legend: Legend = ()) -> Picture:
    return Picture(embed_picture(figure, DPI), title, caption, True, legend)


def total_size(parts: Sequence[Measurement]) -> Measurement:
    """Sum of the volumes, or areas, of all classes."""
    if len(parts) == 1:
        return parts[0]
    name = f"{parts[0].name.partition(' of ')[0]} of foreground"
    return replace(parts[0], name=name, values=np.sum([part.values for part in parts], axis=0))
