"""The part of a report about one image: outlines, maps, readings, measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from stochseg.analysis.image_samples import class_names, select_image
from stochseg.analysis.measurement import Measurement
from stochseg.analysis.measures import MEASURES, VOLUME, measure
from stochseg.analysis.questions import Answer, Question
from stochseg.analysis.readings import Hypothesis, hypotheses
from stochseg.errors import UserError
from stochseg.plotting import report_figures as figures
from stochseg.plotting.curves import histogram
from stochseg.plotting.output import embed_picture, embed_plot
from stochseg.plotting.pictures import close_up, shrink
from stochseg.reports.page import Picture, Section, Table
from stochseg.types import DatasetInfo, Samples

CLASSES = 4  # with histograms of their own
READINGS = 6  # with a picture of their own
DRAWN = ("area", "longest diameter", "perimeter")
SMALL = 110  # dots an inch of the pictures of readings

LEGEND = "Blue line: mean of the samples; gray band: 90% of them."
LARGEST = "largest of all slices"
RATERS = " Orange triangles: what the raters drew."


def number(value: float) -> str:
    """Three figures, more only where they are whole."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _count(reading: Hypothesis) -> str:
    return f"{len(reading.members)} samples" if len(reading.members) > 1 else "1 sample"


def spread_text(measured: Measurement) -> str:
    """Mean and the interval of 90%."""
    low, high = measured.interval(0.9)
    return f"{number(measured.mean)} ({number(low)} – {number(high)}) {measured.unit}".rstrip()


@dataclass(frozen=True, eq=False)
class ImageReport:
    """All that is said about one image, or about one slice of a volume.

    picture: "h w 3" in [0, 1]; samples: of this image alone; spacing: millimeters a pixel (row, column); raters: their
    maps "k h w", None if there are none; volume: one measurement a class, of the whole volume; slices: reads all its
    samples, "s n h w", for questions; where: "slice 12 of 40", "" for an image; notes: what the reader must know.
    """

    name: str
    picture: np.ndarray
    samples: Samples
    info: DatasetInfo
    spacing: tuple[float, float] | None = None
    raters: Tensor | None = None
    rater_names: tuple[str, ...] = ()
    volume: dict[int, Measurement] = field(default_factory=dict)
    slices: Callable[[], np.ndarray] | None = None
    where: str = ""
    notes: tuple[str, ...] = ()
    questions: Sequence[Question] = ()

    # --- what is found, computed once ---

    @cached_property
    def readings(self) -> list[Hypothesis]:
        return hypotheses(self.samples, info=self._names)

    @property
    def _names(self) -> DatasetInfo | None:
        return self.info if self.info.class_names else None

    @cached_property
    def labels(self) -> list[int]:
        """The foreground classes that occur, by their mean size, the largest first."""
        one = select_image(self.samples)
        maps = [one.labels] if self.raters is None else [one.labels, self.raters]
        sizes = {c: sum(float((m == c).sum()) / len(m) for m in maps) for c in range(1, self.info.num_classes)}
        return sorted((c for c, size in sizes.items() if size > 0), key=lambda c: -sizes[c])

    @cached_property
    def measured(self) -> dict[tuple[int, str], Measurement]:
        """Every named measure of every class that occurs."""
        return {(c, what): self._measure(self.samples, what, c) for c in self.labels for what in MEASURES}

    @cached_property
    def rated(self) -> dict[tuple[int, str], Measurement]:
        """The same of the raters' maps."""
        if self.raters is None:
            return {}
        return {key: self._measure(self.raters, key[1], key[0]) for key in self.measured}

    def _measure(self, samples: Samples | Tensor, what: str, label: int | None) -> Measurement:
        return measure(samples, what, label=label, spacing=self.spacing, info=self.info)

    @property
    def size(self) -> Measurement:
        """Of all foreground: its volume, or its area."""
        if not self.volume:
            return self._measure(self.samples, "area", None)
        parts = list(self.volume.values())
        if len(parts) == 1:
            return parts[0]
        total = np.sum([part.values for part in parts], axis=0)
        return Measurement("volume of foreground", total, parts[0].weights, parts[0].unit)

    @property
    def marked(self) -> float:
        """Share of the samples that mark anything."""
        return self.size.probability(">", 0)

    @cached_property
    def answers(self) -> list[Answer]:
        return [question.answer(asked) for question, asked in zip(self.questions, self._asked, strict=True)]

    @cached_property
    def _asked(self) -> list[Measurement]:
        """What each question is about."""
        return [self._about(question) for question in self.questions]

    def _about(self, question: Question) -> Measurement:
        names = class_names(self.info.num_classes, self.info)
        if question.label and question.label not in names[1:]:
            raise UserError(
                f"question {str(question)!r}: no class is called {question.label!r}; known: {', '.join(names[1:])}"
            )
        label = names.index(question.label) if question.label else None
        if question.what != VOLUME and not self.volume:
            return self._measure(self.samples, question.what, label)
        if question.what != VOLUME:
            return self._largest(question.what, label)
        if not self.volume:
            raise UserError(f"question {str(question)!r}: {self.name} is no volume; ask for its area or diameter")
        return self.size if label is None else self.volume[label]

    @property
    def said(self) -> list[str]:
        """Questions with their answers."""
        pairs = zip(self.questions, self.answers, strict=True)
        return [f"P({q}) = {a}" + f", {LARGEST}" * (bool(self.volume) and q.what != VOLUME) for q, a in pairs]

    def _largest(self, what: str, label: int | None) -> Measurement:
        """Of every sample of a volume, the slice with the most of it."""
        of_shown = self._measure(self.samples, what, label)
        if self.slices is None:
            raise UserError(f"{self.name}: a volume is measured on all its slices, and they are not given")
        values = np.zeros(len(of_shown.values))
        for maps in self.slices():
            found = np.flatnonzero((maps > 0).any((1, 2)))
            if len(found):
                one = torch.from_numpy(maps[found].astype(np.int64))
                values[found] = np.maximum(values[found], self._measure(one, what, label).values)
        return Measurement(f"{of_shown.name}, {LARGEST}", values, of_shown.weights, of_shown.unit)

    @property
    def aspect(self) -> float:
        """Height of a pixel, its width being 1."""
        return self.spacing[0] / self.spacing[1] if self.spacing else 1.0

    @cached_property
    def window(self) -> tuple[slice, slice] | None:
        """Rows and columns around all that anybody marked; None if that is most of the image, or nothing."""
        one = select_image(self.samples)
        marked = (one.labels > 0).any(0).numpy()
        if self.raters is not None:
            marked = marked | (self.raters > 0).any(0).numpy()
        return close_up(marked, self.aspect)

    def _view(self, *maps: np.ndarray) -> tuple[np.ndarray, ...]:
        """The picture and maps "… h w" of it, close up if that helps, and small enough to draw."""
        rows, columns = self.window or (slice(None), slice(None))
        return shrink(self.picture[rows, columns], *(part[..., rows, columns] for part in maps))

    # --- the section ---

    def section(self, heading: str = "", text: str = "", anchor: str = "") -> Section:
        words = [text, *self.notes]
        words += [f"{text}." for text in self.said]
        parts = [self._readings(), self._sizes()]
        if self.measured:
            parts.append(Section("All measurements", table=self._table(), folded=True))
        pictures = self._maps()
        return Section(
            heading or self.name,
            " ".join(word for word in words if word),
            pictures=pictures,
            width=17.0 if len(pictures) == 3 else 14.0,  # all in a row where there is room
            anchor=anchor,
            parts=parts,
        )

    def _maps(self) -> list[Picture]:
        one = select_image(self.samples)
        mean, entropy = self.samples.mean[0].cpu(), self.samples.entropy[0].cpu()
        picture, maps, marked, nats = self._view(one.labels.numpy(), (1 - mean[0]).numpy(), entropy.numpy())
        at = f", {self.where}" if self.where else ""
        found = []
        if self.window is not None:
            whole = embed_picture(figures.locator(self.picture, self.window, self.aspect))
            found.append(Picture(whole, f"The whole image{at}.", "The box is what the other pictures show close up."))
        if self.raters is not None:
            _, raters = self._view(self.raters.numpy())
            names = self.rater_names or tuple(f"rater {i + 1}" for i in range(len(raters)))
            found.append(
                Picture(
                    embed_picture(figures.rater_outlines(picture, raters, names, self.aspect)),
                    f"{len(raters)} raters." if len(raters) > 1 else "The rater.",
                    "What each drew, a color each.",
                )
            )
        drawn = figures.sample_outlines(picture, maps, one.weights.numpy(), self.info, self.labels, self.aspect)
        highest = float(np.log(self.info.num_classes))
        return [
            *found,
            Picture(
                embed_picture(drawn),
                f"Outlines of all {len(maps)} samples{at}.",
                "Each line is one plausible segmentation; where many run together, the border is certain.",
            ),
            Picture(
                embed_picture(figures.value_map(marked, 1.0, "viridis", "prob.", self.aspect)),
                "Mean probability of foreground.",
                "Dark: none of the samples marks it; yellow: all do.",
            ),
            Picture(
                embed_picture(figures.value_map(nats, highest, "magma", "nats", self.aspect)),
                "Entropy.",
                "Bright where the samples contradict each other, dark where they agree.",
            ),
        ]

    def _readings(self) -> Section:
        picture, *medoids = self._view(*(r.medoid.numpy() for r in self.readings[:READINGS]))
        shown = []
        for reading, medoid in zip(self.readings, medoids, strict=False):
            low, high = reading.interval
            name = f"{reading.probability:.0%} {reading.name}"
            caption = f"({low:.0%} – {high:.0%}; {_count(reading)})"
            drawn = figures.label_overlay(picture, medoid, self.info, self.aspect)
            shown.append(Picture(embed_picture(drawn, SMALL), name, caption))
        rest = self.readings[READINGS:]
        left = f" {len(rest)} more share {sum(r.probability for r in rest):.0%}." if rest else ""
        count = "One reading" if len(self.readings) == 1 else f"{len(self.readings)} readings"
        return Section(
            count,
            "Samples that resemble each other are one reading, shown by its most typical sample. The percentage is its "
            "share of the samples; in brackets, where that share would settle (95%) if more samples were drawn." + left,
            pictures=shown,
            width=8.5,
        )

    def _sizes(self) -> Section:
        shown = self.labels[:CLASSES]
        kinds = DRAWN if len(shown) == 1 and not self.volume else DRAWN[:2]
        drawn = [(m, c, None) for c, m in self.volume.items() if m.values.any()][:CLASSES]
        if self.volume:  # what was asked for is of all slices, what follows of one
            names = class_names(self.info.num_classes, self.info)
            about = {m.name: (m, q) for m, q in zip(self._asked, self.questions, strict=True) if q.what != VOLUME}
            drawn += [(m, names.index(q.label) if q.label else 1, None) for m, q in about.values()]
        drawn += [(self.measured[c, what], c, self.rated.get((c, what))) for c in shown for what in kinds]
        if not drawn:
            return Section("Measurements", "No sample marks anything, so there is nothing to measure.")
        text = LEGEND + (RATERS if self.raters is not None else "")
        if any(self._thresholds(m) for m, _, _ in drawn):
            text += " Dotted red line: the threshold that was asked for."
        if self.volume:
            text += (
                f" What is not said to be of the volume or of all slices is of {self.where}. The slices of a volume "
                "are drawn independently of each other, so the true spread of the volume is wider than the one shown."
            )
        if len(self.labels) > len(shown):
            text += f" The {len(shown)} largest of {len(self.labels)} classes are shown; all are in the table below."
        return Section("Measurements", text, pictures=[self._histogram(*each) for each in drawn])

    def _thresholds(self, measured: Measurement) -> list[float]:
        """The values that questions about this measurement ask for."""
        pairs = zip(self.questions, self._asked, strict=True)
        return [q.threshold for q, asked in pairs if asked.name == measured.name]

    def _histogram(self, measured: Measurement, label: int, raters: Measurement | None = None) -> Picture:
        plot = histogram(measured, self.info.colors[label], raters=raters, thresholds=self._thresholds(measured))
        name = measured.name[:1].upper() + measured.name[1:]
        return Picture(embed_plot(plot), f"{name}:", f"{spread_text(measured)}, mean (90% of samples).")

    def _table(self) -> Table:
        head = ["measure", "unit", "mean", "std", "median", "90% of samples"]
        head += ["raters"] if self.rated else []
        rows = []
        for key, m in {**{(c, VOLUME): m for c, m in self.volume.items()}, **self.measured}.items():
            low, high = m.interval(0.9)
            row = [m.name, m.unit, number(m.mean), number(m.std), number(m.quantile(0.5))]
            row.append(f"{number(low)} – {number(high)}")
            if self.rated:
                row.append(", ".join(number(v) for v in self.rated[key].values))
            rows.append(row)
        return Table(head, rows)
