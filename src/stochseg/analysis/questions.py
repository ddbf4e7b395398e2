"""Questions that every sample answers with yes or no, such as "longest diameter > 6 mm"."""

from __future__ import annotations

import re
from dataclasses import dataclass

from stochseg.analysis.intervals import jeffreys_interval
from stochseg.analysis.measurement import COMPARISONS, MM3_PER_ML, Measurement
from stochseg.analysis.measures import MEASURES, VOLUME
from stochseg.errors import UserError
from stochseg.types import RATIO

_NAMES = tuple(MEASURES)
_RATIO = re.sub("[?]P<[a-z]+>", "", RATIO.pattern)
_FORM = re.compile(
    rf"\s*(?P<what>{'|'.join(_NAMES)}|{_RATIO})(\s+of\s+(?P<label>.+?))?\s*(?P<sign>>=|<=|>|<|==)\s*"
    r"(?P<number>[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?)\s*(?P<unit>(mm|px)[²³23]?|ml)?\s*"
)


@dataclass(frozen=True)
class Answer:
    """probability: weight of the samples that say yes; interval: its 95% interval given the number of samples."""

    probability: float
    interval: tuple[float, float]

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.probability:.0%} ({low:.0%} – {high:.0%})"


@dataclass(frozen=True)
class Question:
    """A comparison of a measure with a threshold.

    what: name of a measure; label: name of a class, "" for all foreground; unit: "" accepts any unit. Milliliters are
    read as mm³.

    >>> import stochseg, torch
    >>> maps = torch.zeros(4, 8, 8, dtype=torch.long)
    >>> maps[1:, 2:5, 2:6] = 1
    >>> question = Question.parse("longest diameter > 2 mm")
    >>> print(question.answer(stochseg.measure(maps, question.what, spacing=(0.5, 0.5))))
    75% (28% – 97%)
    """

    what: str
    label: str
    comparison: str
    threshold: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> Question:
        """Parse MEASURE [of CLASS] COMPARISON NUMBER [UNIT], such as "longest diameter of nodule > 6 mm".

        Raises:
            UserError: for any other text.
        """
        form = _FORM.fullmatch(text)
        if form is None:
            raise UserError(
                f"question {text!r}: expected MEASURE [of CLASS] COMPARISON NUMBER [UNIT] with a measure "
                f"({', '.join(_NAMES)}, or the vertical PART/WHOLE ratio of two classes), "
                f'one of {" ".join(COMPARISONS)} and a number, e.g. "longest diameter > 6 mm"'
            )
        unit, threshold = (form["unit"] or "").replace("2", "²").replace("3", "³"), float(form["number"])
        units = _units(form["what"])
        if unit == "ml" and form["what"] == VOLUME:
            unit, threshold = "mm³", threshold * MM3_PER_ML
        if unit and unit not in units:
            likely = units["px" in unit]
            remedy = f"write {likely}, not {unit}" if likely else f"omit {unit}: it has no unit"
            raise UserError(f"question {text!r}: the {form['what']} cannot be in {unit}; {remedy}")
        return cls(form["what"], form["label"] or "", form["sign"], threshold, unit)

    def problem(self, *, volume: bool, in_mm: bool) -> str:
        """Why an image cannot answer the question, with the remedy; "" if it can.

        volume: whether it is a volume; in_mm: whether its pixel size is known.
        """
        if RATIO.fullmatch(self.what):
            return "it is a volume; ratios are of images" if volume else ""
        if not volume and MEASURES[self.what].axes == (3,):
            return "it is not a volume; ask for an area or a diameter"
        mm, px = _units(self.what)
        if "px" in self.unit and in_mm:
            return f"it is measured in {mm}; ask in {mm}"
        if "mm" in self.unit and not in_mm:
            return f"its pixel size is unknown; pass it with --spacing ROW,COLUMN, or ask in {px}"
        return ""

    def __str__(self) -> str:
        of_class = f" of {self.label}" if self.label else ""
        return f"{self.what}{of_class} {self.comparison} {self.threshold:g} {self.unit}".rstrip()

    def answer(self, measured: Measurement) -> Answer:
        """Answer the question from its measurement.

        Raises:
            UserError: if the measurement has another unit.
        """
        if self.unit and self.unit != measured.unit:
            raise UserError(
                f"question {str(self)!r} is in {self.unit}, but the measurement is in {measured.unit or 'no unit'}; "
                "ask in that unit, or pass the pixel size"
            )
        probability = measured.probability(self.comparison, self.threshold)
        return Answer(probability, jeffreys_interval(probability, measured.effective_count))


def _units(what: str) -> tuple[str, str]:
    """The unit of a measure where the size of pixels is known, and where it is not."""
    unit = "" if RATIO.fullmatch(what) else MEASURES[what].unit
    return unit.format("mm"), unit.format("px")
