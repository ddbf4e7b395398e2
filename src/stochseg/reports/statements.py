"""Statements about the samples of one image or volume: readings, measurements, answers to questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from torch import Tensor

from stochseg.analysis.conformal import calibrated_interval
from stochseg.analysis.image_samples import ImageSamples, class_names
from stochseg.analysis.measurement import Measurement
from stochseg.analysis.measures import measure, measure_names
from stochseg.analysis.questions import Answer, Question
from stochseg.analysis.readings import Hypotheses, hypotheses
from stochseg.errors import UserError
from stochseg.models import Calibration
from stochseg.plotting.curves import histogram
from stochseg.plotting.output import embed_plot
from stochseg.plotting.pictures import FloatArray
from stochseg.reports.page import Picture, Section, Table, mean_and_interval, number, plural
from stochseg.types import DatasetInfo, Spacing

MAX_CLASSES = 4  # with histograms of their own
MAX_READINGS = 6  # with a picture of their own
LEAST_PROBABILITY = 0.01  # of a class with a picture of its own
LARGEST = ", largest of all slices"
"""End of the names of measurements of slices of a volume."""


class Statements:
    """What a page says about the samples of one image or volume, except pictures; each is computed once.

    name: of the image; info: of the classes; spacing: millimeters per pixel; raters: their maps "k *space"; notes: for
    the reader; questions: to answer; calibration: of the model, if it holds for these samples. Subclasses are
    dataclasses with these fields.
    """

    name: str
    info: DatasetInfo
    spacing: Spacing | None
    raters: Tensor | None
    rater_names: tuple[str, ...]
    notes: tuple[str, ...]
    questions: Sequence[Question]
    calibration: Calibration | None

    @property
    def image(self) -> ImageSamples:
        """Label maps of the samples."""
        raise NotImplementedError

    # --- analysis ---

    @cached_property
    def readings(self) -> Hypotheses:
        """Readings of the samples."""
        return hypotheses(self.image)

    @property
    def _maps(self) -> list[Tensor]:
        """Label maps of the samples "n *space" and, if there are raters, theirs "k *space"."""
        return [self.image.labels] if self.raters is None else [self.image.labels, self.raters]

    @cached_property
    def labels(self) -> list[int]:
        """Foreground classes that occur, the largest first."""
        classes = range(1, self.info.num_classes)
        sizes = {c: sum(float((m == c).sum()) / len(m) for m in self._maps) for c in classes}
        return sorted((c for c, size in sizes.items() if size > 0), key=lambda c: -sizes[c])

    @cached_property
    def measured(self) -> dict[tuple[int | None, str], Measurement]:
        """Every named measure of every class that occurs, and (under None) the ratios that the data set names."""
        ratios = self.info.measures if self.image.axes == 2 else ()
        keys: list[tuple[int | None, str]] = [(None, what) for what in ratios]
        keys += [(c, what) for c in self.labels for what in measure_names(self.image.axes)]
        return {(c, what): self._measure(what, c) for c, what in keys}

    @cached_property
    def rater_measured(self) -> dict[tuple[int | None, str], Measurement]:
        """The same measures of the raters; empty without raters."""
        if self.raters is None:
            return {}
        return {(c, what): self._measure(what, c, self.raters) for c, what in self.measured}

    def _measure(self, what: str, label: int | None, maps: Tensor | None = None) -> Measurement:
        """Measure the samples of the image, or other label maps "n *space" of it."""
        if maps is None:
            return measure(self.image, what, label=label, spacing=self.spacing, calibration=self.calibration)
        return measure(maps, what, label=label, spacing=self.spacing, info=self.info)

    @property
    def size(self) -> Measurement:
        """Area or volume of all foreground."""
        return self._measure(measure_names(self.image.axes)[0], None)

    # --- questions ---

    @cached_property
    def answers(self) -> list[Answer | None]:
        """Answers to the questions, in their order; None for those that this image cannot answer."""
        return [None if measured is None else question.answer(measured) for question, measured in self._asked]

    @property
    def answer_texts(self) -> list[str]:
        """Questions with their answers."""
        return [self._answer_text(q, m, a) for (q, m), a in zip(self._asked, self.answers, strict=True)]

    def _answer_text(self, question: Question, measured: Measurement | None, answer: Answer | None) -> str:
        if measured is None:
            return f"P({question}): no answer, {self.problem_of(question)}"
        without = f"; undefined in {measured.undefined:.0%} of the samples, which count as no"
        lost = without if measured.undefined > 0 else ""
        return f"P({question}) = {answer}{lost}" + LARGEST * measured.name.endswith(LARGEST)

    def problem_of(self, question: Question) -> str:
        """Why this image cannot answer a question; "" if it can."""
        return question.problem(volume=self.image.axes == 3, in_mm=self.spacing is not None)

    @cached_property
    def _asked(self) -> list[tuple[Question, Measurement | None]]:
        """The questions, each with the measurement that answers it, if there is one."""
        return [(q, None if self.problem_of(q) else self._measure(q.what, self._label_of(q))) for q in self.questions]

    def _label_of(self, question: Question) -> int | None:
        if not question.label:
            return None
        names = class_names(self.info)
        if question.label not in names[1:]:
            known = ", ".join(names[1:])
            raise UserError(f"question {str(question)!r}: unknown class {question.label!r}; known: {known}")
        return names.index(question.label)

    def _thresholds(self, measured: Measurement) -> list[float]:
        """Thresholds of the questions about this measurement."""
        return [question.threshold for question, asked in self._asked if asked and asked.name == measured.name]

    # --- sections ---

    def _words(self, text: str) -> str:
        """The first text of the section: facts, notes and answers."""
        words = [text, *self.notes, *(f"{answer}." for answer in self.answer_texts)]
        return " ".join(word for word in words if word)

    def _class_section(self, mean: FloatArray, draw: Callable[[FloatArray], str], width: float) -> Section:
        """Mean probability "l *space" of every foreground class. draw: makes a picture of one; width: of it."""
        names = class_names(self.info)
        shown = [c for c in range(1, self.info.num_classes) if mean[c].max() >= LEAST_PROBABILITY]
        pictures = [
            Picture(draw(mean[c]), f"{names[c]}.", f"At most {mean[c].max():.0%}.", legend=[("", self.info.colors[c])])
            for c in shown
        ]
        rest = ", ".join(names[c] for c in range(1, self.info.num_classes) if c not in shown)
        text = f" Below {LEAST_PROBABILITY:.0%} at every pixel: {rest}." if rest else ""
        return Section("Probability of each class", f"Mean of all samples.{text}", pictures=pictures, width=width)

    def _reading_section(self, pictures: Sequence[str], width: float, whole: str = "") -> Section:
        """Readings with their probabilities. pictures: of the first of them; whole: what they are readings of."""
        shown = []
        for reading, uri in zip(self.readings, pictures, strict=False):
            low, high = reading.interval
            caption = f"({low:.0%} – {high:.0%}; {plural(len(reading.members), 'sample')})"
            shown.append(Picture(uri, f"{reading.probability:.0%} {reading.name}", caption))
        rest = self.readings[MAX_READINGS:]
        more = f" {len(rest)} more have {sum(r.probability for r in rest):.0%} together." if rest else ""
        return Section(
            plural(len(self.readings), "reading") + whole,
            "A reading is a group of similar samples, shown by its most typical sample. Its probability is its "
            "fraction of the samples, with the 95% interval for this number of samples in parentheses." + more,
            pictures=shown,
            width=width,
        )

    def _measurement_section(self, kinds: Sequence[str], text: str = "") -> Section:
        """Histograms of these measures of the largest classes. text: what a reader must know about all of them."""
        shown = self.labels[:MAX_CLASSES]
        asked = {m.name: (m, self._label_of(q) or 1, None) for q, m in self._asked if m and m.name.endswith(LARGEST)}
        keys = [key for key, each in self.measured.items() if key[0] is None and each.undefined < 1]
        keys += [(c, what) for c in shown for what in (kinds if len(shown) == 1 else kinds[:2])]
        last = self.info.num_classes - 1  # whose color a ratio has
        found = ((self.measured[key], key[0] or last, self.rater_measured.get(key)) for key in keys)
        drawn = [*asked.values(), *found]
        if not drawn:
            return Section("Measurements", "No sample marks anything, so there is nothing to measure.")
        words = ["Blue line: mean of the samples; gray band: 90% of the samples."]
        if self.raters is not None:
            words.append("Orange triangles: values of the raters.")
        if any(self._calibrated(measured) for measured, _, _ in drawn):
            words.append(f"Dashed green lines: calibrated interval. {self._calibrated_text}")
        if any(self._thresholds(measured) for measured, _, _ in drawn):
            words.append("Dotted red line: threshold of a question.")
        if len(self.labels) > MAX_CLASSES:
            words.append(f"The {MAX_CLASSES} largest of {len(self.labels)} classes are shown; the table below has all.")
        return Section(
            "Measurements", " ".join([*words, text]).rstrip(), pictures=[self._histogram(*each) for each in drawn]
        )

    def _histogram(self, measured: Measurement, label: int, raters: Measurement | None) -> Picture:
        lines, ends = self._thresholds(measured), self._calibrated(measured)
        known = None if raters is None else raters.defined()
        plot = histogram(measured.defined(), self.info.colors[label], raters=known, thresholds=lines, calibrated=ends)
        title = measured.name[:1].upper() + measured.name[1:]
        text = f"{mean_and_interval(measured)}, mean (90% of samples)."
        if measured.undefined > 0:
            text += f" Undefined in {measured.undefined:.0%} of the samples."
        if ends is not None:
            text += (
                f" Calibrated {self._confidence:.0%} interval: {number(ends[0])} – {number(ends[1])} {measured.unit}."
            )
        return Picture(embed_plot(plot), f"{title}:", text)

    # --- calibration ---

    @property
    def _confidence(self) -> float:
        """Of calibrated intervals and margins."""
        return 0.9 if self.calibration is None else self.calibration.main_confidence

    @property
    def _calibrated_text(self) -> str:
        """What calibrated intervals and margins say, and what they assume; "" without a calibration."""
        if self.calibration is None:
            return ""
        return (
            f"It contains the value of a rater of a new patient with {self._confidence:.0%}: {self.calibration.basis}."
        )

    def _calibrated(self, measured: Measurement) -> tuple[float, float] | None:
        return calibrated_interval(measured, self._confidence)

    def _table(self) -> Table:
        head = ["measure", "unit", "mean", "std", "median", "90% of samples"]
        names = f" ({', '.join(self.rater_names)})" if self.rater_names else ""
        calibrated = any(map(self._calibrated, self.measured.values()))
        head += [f"calibrated {self._confidence:.0%}"] if calibrated else []
        head += [f"raters{names}"] if self.rater_measured else []
        rows = []
        for key, m in self.measured.items():
            low, high = m.interval(0.9)
            middle = number(m.quantile(0.5))
            row = [m.name, m.unit, number(m.mean), number(m.std), middle, f"{number(low)} – {number(high)}"]
            if calibrated:
                row.append(" – ".join(map(number, self._calibrated(m) or ())))
            if self.rater_measured:
                row.append(", ".join(number(v) for v in self.rater_measured[key].values))
            rows.append(row)
        return Table(head, rows)
