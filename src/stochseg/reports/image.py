"""The section of a page about one image: outlines, maps, readings, measurements, answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from stochseg.analysis.image_samples import ImageSamples, select_image
from stochseg.analysis.margins import margin_map
from stochseg.analysis.questions import Question
from stochseg.models import Calibration
from stochseg.plotting import report_figures as figures
from stochseg.plotting.outlines import (
    Legend,
    class_legend,
    draw_labels,
    draw_margins,
    draw_raters,
    draw_samples,
    draw_window,
    rater_legend,
)
from stochseg.plotting.output import embed_picture
from stochseg.plotting.pictures import FloatArray, close_up, shrink
from stochseg.reports.page import Picture, Section, plural
from stochseg.reports.statements import MAX_READINGS, Statements
from stochseg.types import DatasetInfo, Samples, Spacing

READING_DPI = 110
DRAWN_MEASURES = ("area", "longest diameter", "perimeter")


@dataclass(frozen=True, eq=False)
class ImageReport(Statements):
    """One image with its samples and everything derived from them.

    picture: "h w 3" in 0..1; samples: of this image only; spacing: millimeters per pixel (row, column); raters: their
    maps "k h w"; notes: for the reader.
    """

    name: str
    picture: FloatArray
    samples: Samples
    info: DatasetInfo
    spacing: Spacing | None = None
    raters: Tensor | None = None
    rater_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    questions: Sequence[Question] = ()
    calibration: Calibration | None = None

    @cached_property
    def image(self) -> ImageSamples:
        """Label maps of the samples."""
        return select_image(self.samples, info=self.info)

    @cached_property
    def window(self) -> tuple[slice, slice] | None:
        """Rows and columns around everything marked by samples or raters; None to show the whole image."""
        return close_up((torch.cat(self._maps) > 0).any(0).numpy(), self.aspect)

    @property
    def aspect(self) -> float:
        """Height of a pixel divided by its width."""
        return self.spacing[0] / self.spacing[1] if self.spacing else 1.0

    # --- the section ---

    def section(self, heading: str = "", text: str = "", anchor: str = "") -> Section:
        """Build the section of the page about this image."""
        parts = [self._readings(), self._measurement_section(DRAWN_MEASURES)]
        if self.info.num_classes > 2:
            mean = self.samples.mean[0].cpu().numpy()
            parts.insert(0, self._class_section(mean, self._mean_picture, 9.5))
        if self.measured:
            parts.append(Section("All measurements", table=self._table(), folded=True))
        pictures = self._pictures()
        return Section(
            heading or self.name,
            self._words(text),
            pictures=pictures,
            width=12.5 if len(pictures) in (4, 7, 8) else 14.0,  # rows of four, or of three
            anchor=anchor,
            parts=parts,
        )

    def _view(self, *maps: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
        """The picture and maps "… h w" of it inside the window, small enough to draw."""
        rows, columns = self.window or (slice(None), slice(None))
        return shrink(self.picture[rows, columns], *(part[..., rows, columns] for part in maps))

    def _pictures(self) -> list[Picture]:
        mean, entropy = self.samples.mean[0].cpu(), self.samples.entropy[0].cpu()
        picture, maps, foreground, nats = self._view(self.image.labels.numpy(), (1 - mean[0]).numpy(), entropy.numpy())
        found = []
        if self.window is not None:
            whole = figures.locator(self.picture, self.window, self.aspect)
            draw_window(whole.axes[0], self.samples.window, scale=shrink(self.picture)[0].shape[0] / len(self.picture))
            found.append(_pixels(whole, "The whole image.", "The other pictures show the box." + self._dashed))
        if self.raters is not None:
            _, drawn = self._view(self.raters.numpy())
            raters = figures.overlay(picture, self.aspect, draw_raters, drawn)
            legend = rater_legend(self.rater_names, self.raters.numpy())
            found.append(_pixels(raters, f"{plural(len(drawn), 'rater')}.", "One color per rater:", legend))
        weights = self.image.weights.numpy()
        outlines = figures.overlay(picture, self.aspect, draw_samples, maps, weights, self.info, self.labels)
        self._draw_window(outlines, picture)
        mean_map = figures.value_map(foreground, 1.0, "viridis", "prob.", self.aspect)
        entropy_map = figures.value_map(nats, float(np.log(self.info.num_classes)), "magma", "nats", self.aspect)
        certain = "Each line is one plausible segmentation; the border is certain where many coincide."
        certain += self._dashed if self.window is None else ""
        yellow = "Dark: no sample marks the pixel; yellow: all samples do."
        legend = class_legend(self.info, self.labels) if self.info.num_classes > 2 else []
        return [
            *found,
            _pixels(outlines, f"Outlines of {plural(len(maps), 'sample')}.", certain, legend),
            _pixels(mean_map, "Mean probability of foreground.", yellow),
            _pixels(entropy_map, "Entropy.", "Bright where the samples disagree, dark where they agree."),
            *self._margin_picture(),
        ]

    def _margin_picture(self) -> list[Picture]:
        """The calibrated margins of all classes that have one."""
        if self.calibration is None:
            return []
        found = [(c, self.calibration.margin(c, self._confidence)) for c in range(1, self.info.num_classes)]
        depths = {label: each.offset for label, each in found if each is not None and each.offset is not None}
        if not depths:
            return []
        mean = self.samples.mean[0].cpu().numpy()
        picture, maps = self._view(np.stack([margin_map(mean[c], depth, self.spacing) for c, depth in depths.items()]))
        drawn = figures.overlay(picture, self.aspect, draw_margins, maps, [self.info.colors[c] for c in depths])
        text = (
            f"The outline of a rater of a new patient is inside the band with {self._confidence:.0%} per class: "
            f"{self.calibration.basis}."
        )
        legend = class_legend(self.info, list(depths)) if self.info.num_classes > 2 else []
        return [_pixels(drawn, "Calibrated margin.", text, legend)]

    @property
    def _dashed(self) -> str:
        """Caption of the box of `draw_window`."""
        return " The model labels the inside of the dashed box." if self.samples.window is not None else ""

    def _draw_window(self, figure: Figure, picture: FloatArray) -> None:
        """Draw the part that the model labels over a picture of `_view`."""
        rows, columns = self.window or (slice(0, None), slice(0, None))
        scale = len(picture) / len(self.picture[rows])
        draw_window(figure.axes[0], self.samples.window, (rows.start, columns.start), scale)

    def _mean_picture(self, values: FloatArray) -> str:
        _, shown = self._view(values)
        return embed_picture(figures.value_map(shown, 1.0, "viridis", "prob.", self.aspect), READING_DPI)

    def _readings(self) -> Section:
        picture, *medoids = self._view(*(r.medoid.numpy() for r in self.readings[:MAX_READINGS]))
        drawn = (figures.overlay(picture, self.aspect, draw_labels, medoid, self.info) for medoid in medoids)
        return self._reading_section([embed_picture(each, READING_DPI) for each in drawn], width=9.5)


def _pixels(figure: Figure, title: str, caption: str, legend: Legend = ()) -> Picture:
    return Picture(embed_picture(figure), title, caption, legend=legend)
