"""The section of a page about one image: outlines, maps, readings, measurements, answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from torch import Tensor

from stochseg.analysis.image_samples import ImageSamples, class_names, select_image
from stochseg.analysis.measurement import Measurement
from stochseg.analysis.measures import MEASURES, VOLUME, measure
from stochseg.analysis.questions import Answer, Question
from stochseg.analysis.readings import Hypotheses, hypotheses
from stochseg.errors import UserError
from stochseg.plotting import report_figures as figures
from stochseg.plotting.curves import histogram
from stochseg.plotting.outlines import (
    Legend,
    class_legend,
    draw_labels,
    draw_raters,
    draw_samples,
    draw_window,
    rater_legend,
)
from stochseg.plotting.output import embed_picture, embed_plot
from stochseg.plotting.pictures import FloatArray, close_up, shrink
from stochseg.reports.page import Picture, Section, Table, mean_and_interval, number, plural
from stochseg.types import DatasetInfo, Samples, Spacing

MAX_CLASSES = 4  # with histograms of their own
MAX_READINGS = 6  # with a picture of their own
READING_DPI = 110
LEAST_PROBABILITY = 0.01  # of a class with a picture of its own
DRAWN_MEASURES = ("area", "longest diameter", "perimeter")
LARGEST = "largest of all slices"


@dataclass(frozen=True, eq=False)
class ImageReport:
    """One image, or one slice of a volume, with its samples and everything derived from them.

    picture: "h w 3" in 0..1; samples: of this image only; spacing: millimeters per pixel (row, column); raters: their
    maps "k h w"; volume: one measurement per class of the whole volume; read_slices: reads all samples of the volume,
    "s n h w"; slice_name: such as "slice 12 of 40", "" for an image; notes: for the reader.
    """

    name: str
    picture: FloatArray
    samples: Samples
    info: DatasetInfo
    spacing: Spacing | None = None
    raters: Tensor | None = None
    rater_names: tuple[str, ...] = ()
    volume: dict[int, Measurement] = field(default_factory=dict)
    read_slices: Callable[[], npt.NDArray[np.integer[Any]]] | None = None
    slice_name: str = ""
    notes: tuple[str, ...] = ()
    questions: Sequence[Question] = ()

    # --- analysis, computed once ---

    @cached_property
    def readings(self) -> Hypotheses:
        """Readings of the samples."""
        return hypotheses(self.samples, info=self.info)

    @cached_property
    def _image(self) -> ImageSamples:
        return select_image(self.samples, info=self.info)

    @property
    def _maps(self) -> list[Tensor]:
        """Label maps of the samples "n h w" and, if there are raters, theirs "k h w"."""
        return [self._image.labels] if self.raters is None else [self._image.labels, self.raters]

    @cached_property
    def labels(self) -> list[int]:
        """Foreground classes that occur, the largest first."""
        classes = range(1, self.info.num_classes)
        sizes = {c: sum(float((m == c).sum()) / len(m) for m in self._maps) for c in classes}
        return sorted((c for c, size in sizes.items() if size > 0), key=lambda c: -sizes[c])

    @cached_property
    def measured(self) -> dict[tuple[int, str], Measurement]:
        """Every named measure of every class that occurs."""
        return {(c, what): self._measure(what, c) for c in self.labels for what in MEASURES}

    @cached_property
    def rater_measured(self) -> dict[tuple[int, str], Measurement]:
        """The same measures of the raters; empty without raters."""
        if self.raters is None:
            return {}
        return {(c, what): self._measure(what, c, self.raters) for c, what in self.measured}

    def _measure(self, what: str, label: int | None, maps: Tensor | None = None) -> Measurement:
        """Measure the samples of the image, or other label maps "n h w" of it."""
        return measure(self.samples if maps is None else maps, what, label=label, spacing=self.spacing, info=self.info)

    @property
    def size(self) -> Measurement:
        """Volume of all foreground, or its area."""
        if not self.volume:
            return self._measure("area", None)
        parts = list(self.volume.values())
        if len(parts) == 1:
            return parts[0]
        total = np.sum([part.values for part in parts], axis=0)
        return Measurement("volume of foreground", total, parts[0].weights, parts[0].unit)

    @cached_property
    def window(self) -> tuple[slice, slice] | None:
        """Rows and columns around everything marked by samples or raters; None to show the whole image."""
        return close_up((torch.cat(self._maps) > 0).any(0).numpy(), self.aspect)

    @property
    def aspect(self) -> float:
        """Height of a pixel divided by its width."""
        return self.spacing[0] / self.spacing[1] if self.spacing else 1.0

    # --- questions ---

    @cached_property
    def answers(self) -> list[Answer | None]:
        """Answers to the questions, in their order; None for those that this image cannot answer."""
        return [None if measured is None else question.answer(measured) for question, measured in self._asked]

    @property
    def answer_texts(self) -> list[str]:
        """Questions with their answers."""
        return [self._answer_text(q, a) for q, a in zip(self.questions, self.answers, strict=True)]

    def _answer_text(self, question: Question, answer: Answer | None) -> str:
        if answer is None:
            return f"P({question}): no answer, {self.problem_of(question)}"
        return f"P({question}) = {answer}" + f", {LARGEST}" * (bool(self.volume) and question.what != VOLUME)

    def problem_of(self, question: Question) -> str:
        """Why this image cannot answer a question; "" if it can."""
        return question.problem(volume=bool(self.volume), in_mm=self.spacing is not None)

    @cached_property
    def _asked(self) -> list[tuple[Question, Measurement | None]]:
        """The questions, each with the measurement that answers it, if there is one."""
        return [(q, None if self.problem_of(q) else self._measurement_of(q)) for q in self.questions]

    def _measurement_of(self, question: Question) -> Measurement:
        label = self._label_of(question)
        if question.what != VOLUME:
            return (self._largest if self.volume else self._measure)(question.what, label)
        return self.size if label is None else self.volume[label]

    def _label_of(self, question: Question) -> int | None:
        if not question.label:
            return None
        names = class_names(self.info)
        if question.label not in names[1:]:
            known = ", ".join(names[1:])
            raise UserError(f"question {str(question)!r}: unknown class {question.label!r}; known: {known}")
        return names.index(question.label)

    def _largest(self, what: str, label: int | None) -> Measurement:
        """Largest value over the slices of each sample of a volume."""
        assert self.read_slices is not None  # volumes have it
        shown = self._measure(what, label)
        values = np.zeros(len(shown.values))
        for maps in self.read_slices():
            marked = np.flatnonzero((maps > 0).any((1, 2)))
            if len(marked):
                part = torch.from_numpy(maps[marked].astype(np.int64))
                values[marked] = np.maximum(values[marked], self._measure(what, label, part).values)
        return Measurement(f"{shown.name}, {LARGEST}", values, shown.weights, shown.unit)

    def _thresholds(self, measured: Measurement) -> list[float]:
        """Thresholds of the questions about this measurement."""
        return [question.threshold for question, asked in self._asked if asked and asked.name == measured.name]

    # --- the section ---

    def section(self, heading: str = "", text: str = "", anchor: str = "") -> Section:
        """Build the section of the page about this image."""
        words = [text, *self.notes, *(f"{answer}." for answer in self.answer_texts)]
        parts = [self._reading_section(), self._measurement_section()]
        if self.info.num_classes > 2:
            parts.insert(0, self._class_section())
        if self.measured:
            parts.append(Section("All measurements", table=self._table(), folded=True))
        pictures = self._pictures()
        return Section(
            heading or self.name,
            " ".join(word for word in words if word),
            pictures=pictures,
            width=12.5 if len(pictures) == 4 else 14.0,  # rows of four, or of three
            anchor=anchor,
            parts=parts,
        )

    def _view(self, *maps: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], ...]:
        """The picture and maps "… h w" of it inside the window, small enough to draw."""
        rows, columns = self.window or (slice(None), slice(None))
        return shrink(self.picture[rows, columns], *(part[..., rows, columns] for part in maps))

    def _pictures(self) -> list[Picture]:
        mean, entropy = self.samples.mean[0].cpu(), self.samples.entropy[0].cpu()
        picture, maps, foreground, nats = self._view(self._image.labels.numpy(), (1 - mean[0]).numpy(), entropy.numpy())
        where = f", {self.slice_name}" if self.slice_name else ""
        found = []
        if self.window is not None:
            whole = figures.locator(self.picture, self.window, self.aspect)
            draw_window(whole.axes[0], self.samples.window, scale=shrink(self.picture)[0].shape[0] / len(self.picture))
            found.append(_pixels(whole, f"The whole image{where}.", "The other pictures show the box." + self._dashed))
        if self.raters is not None:
            _, drawn = self._view(self.raters.numpy())
            raters = figures.overlay(picture, self.aspect, draw_raters, drawn)
            legend = rater_legend(self.rater_names, self.raters.numpy())
            found.append(_pixels(raters, f"{plural(len(drawn), 'rater')}.", "One color per rater:", legend))
        weights = self._image.weights.numpy()
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
            _pixels(outlines, f"Outlines of {plural(len(maps), 'sample')}{where}.", certain, legend),
            _pixels(mean_map, "Mean probability of foreground.", yellow),
            _pixels(entropy_map, "Entropy.", "Bright where the samples disagree, dark where they agree."),
        ]

    @property
    def _dashed(self) -> str:
        """Caption of the box of `draw_window`."""
        return " The model labels the inside of the dashed box." if self.samples.window is not None else ""

    def _draw_window(self, figure: Figure, picture: FloatArray) -> None:
        """Draw the part that the model labels over a picture of `_view`."""
        rows, columns = self.window or (slice(0, None), slice(0, None))
        scale = len(picture) / len(self.picture[rows])
        draw_window(figure.axes[0], self.samples.window, (rows.start, columns.start), scale)

    def _class_section(self) -> Section:
        """Mean probability of every foreground class, for more than two classes."""
        names, mean = class_names(self.info), self.samples.mean[0].cpu().numpy()
        shown = [c for c in range(1, self.info.num_classes) if mean[c].max() >= LEAST_PROBABILITY]
        _, *maps = self._view(*(mean[c] for c in shown))
        pictures = [
            Picture(
                embed_picture(figures.value_map(values, 1.0, "viridis", "prob.", self.aspect), READING_DPI),
                f"{names[c]}.",
                f"At most {values.max():.0%}.",
                legend=[("", self.info.colors[c])],
            )
            for c, values in zip(shown, maps, strict=True)
        ]
        rest = ", ".join(names[c] for c in range(1, self.info.num_classes) if c not in shown)
        text = f" Below {LEAST_PROBABILITY:.0%} at every pixel: {rest}." if rest else ""
        return Section("Probability of each class", f"Mean of all samples.{text}", pictures=pictures, width=9.5)

    def _reading_section(self) -> Section:
        picture, *medoids = self._view(*(r.medoid.numpy() for r in self.readings[:MAX_READINGS]))
        pictures = []
        for reading, medoid in zip(self.readings, medoids, strict=False):
            drawn = figures.overlay(picture, self.aspect, draw_labels, medoid, self.info)
            low, high = reading.interval
            caption = f"({low:.0%} – {high:.0%}; {plural(len(reading.members), 'sample')})"
            title = f"{reading.probability:.0%} {reading.name}"
            pictures.append(Picture(embed_picture(drawn, READING_DPI), title, caption))
        rest = self.readings[MAX_READINGS:]
        more = f" {len(rest)} more have {sum(r.probability for r in rest):.0%} together." if rest else ""
        return Section(
            plural(len(self.readings), "reading"),
            "A reading is a group of similar samples, shown by its most typical sample. Its probability is its "
            "fraction of the samples, with the 95% interval for this number of samples in parentheses." + more,
            pictures=pictures,
            width=9.5,
        )

    def _measurement_section(self) -> Section:
        drawn = self._drawn_measurements()
        if not drawn:
            return Section("Measurements", "No sample marks anything, so there is nothing to measure.")
        text = "Blue line: mean of the samples; gray band: 90% of the samples."
        if self.raters is not None:
            text += " Orange triangles: values of the raters."
        if any(self._thresholds(measured) for measured, _, _ in drawn):
            text += " Dotted red line: threshold of a question."
        if self.volume:
            text += (
                f" Measurements that name neither the volume nor all slices are of {self.slice_name}. The slices of a "
                "volume are sampled independently, so the true spread of the volume is wider than shown."
            )
        if len(self.labels) > MAX_CLASSES:
            text += f" The {MAX_CLASSES} largest of {len(self.labels)} classes are shown; the table below has all."
        return Section("Measurements", text, pictures=[self._histogram(*each) for each in drawn])

    def _drawn_measurements(self) -> list[tuple[Measurement, int, Measurement | None]]:
        """Measurements with a histogram: (samples, class that colors it, raters)."""
        shown = self.labels[:MAX_CLASSES]
        kinds = DRAWN_MEASURES if len(shown) == 1 and not self.volume else DRAWN_MEASURES[:2]
        volumes = [(measured, c, None) for c, measured in self.volume.items() if measured.values.any()]
        drawn: list[tuple[Measurement, int, Measurement | None]] = [*volumes[:MAX_CLASSES]]
        if self.volume:  # questions about a volume refer to all slices, the measurements below to one slice
            asked = {m.name: (m, self._label_of(q) or 1, None) for q, m in self._asked if m and q.what != VOLUME}
            drawn += asked.values()
        of_image = ((c, what) for c in shown for what in kinds)
        return drawn + [(self.measured[key], key[0], self.rater_measured.get(key)) for key in of_image]

    def _histogram(self, measured: Measurement, label: int, raters: Measurement | None) -> Picture:
        plot = histogram(measured, self.info.colors[label], raters=raters, thresholds=self._thresholds(measured))
        title = measured.name[:1].upper() + measured.name[1:]
        return Picture(embed_plot(plot), f"{title}:", f"{mean_and_interval(measured)}, mean (90% of samples).")

    def _table(self) -> Table:
        head = ["measure", "unit", "mean", "std", "median", "90% of samples"]
        names = f" ({', '.join(self.rater_names)})" if self.rater_names else ""
        head += [f"raters{names}"] if self.rater_measured else []
        rows = []
        for key, m in {**{(c, VOLUME): m for c, m in self.volume.items()}, **self.measured}.items():
            low, high = m.interval(0.9)
            middle = number(m.quantile(0.5))
            row = [m.name, m.unit, number(m.mean), number(m.std), middle, f"{number(low)} – {number(high)}"]
            if self.rater_measured:
                row.append(", ".join(number(v) for v in self.rater_measured[key].values))
            rows.append(row)
        return Table(head, rows)


def _pixels(figure: Figure, title: str, caption: str, legend: Legend = ()) -> Picture:
    return Picture(embed_picture(figure), title, caption, legend=legend)
