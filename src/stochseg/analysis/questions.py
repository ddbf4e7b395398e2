"""Questions with a yes or a no for every sample, such as "longest diameter > 6 mm"."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from stochseg.analysis.measures import COMPARISONS, MEASURES, VOLUME, Measurement
from stochseg.analysis.readings import share_interval
from stochseg.errors import UserError

_FORM = re.compile(r"\s*(?P<what>.+?)\s*(?P<sign>>=|<=|>|<|==)\s*(?P<number>\S+?)\s*(?P<unit>(?:mm|px)[²³23]?)?\s*")


@dataclass(frozen=True)
class Answer:
    """probability: share of the samples for which it holds; interval: where the share would settle with more."""

    probability: float
    interval: tuple[float, float]

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.probability:.0%} ({low:.0%} – {high:.0%})"


@dataclass(frozen=True)
class Question:
    """what: a measure; label: a class by its name, "" for all foreground; unit: "" if the question names none."""

    what: str
    label: str
    comparison: str
    threshold: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> Question:
        """Read MEASURE [of CLASS] COMPARISON NUMBER [UNIT], e.g. "longest diameter of nodule > 6 mm"."""
        form = _FORM.fullmatch(text)
        what, _, label = form["what"].partition(" of ") if form else ("", "", "")
        try:
            threshold = float(form["number"]) if form else float("nan")
        except ValueError:
            form = None
        if form is None or not math.isfinite(threshold) or what.strip() not in (*MEASURES, VOLUME):
            raise UserError(
                f'question {text!r}: expected a measure ({", ".join((*MEASURES, VOLUME))}), " of CLASS" if it is about '
                f'one class, one of {" ".join(COMPARISONS)}, and a number, e.g. "longest diameter > 6 mm"'
            )
        unit = (form["unit"] or "").replace("2", "²").replace("3", "³")
        return cls(what.strip(), label.strip(), form["sign"], threshold, unit)

    def __str__(self) -> str:
        of = f" of {self.label}" if self.label else ""
        return f"{self.what}{of} {self.comparison} {self.threshold:g} {self.unit}".rstrip()

    def answer(self, measured: Measurement) -> Answer:
        """From the measurement that the question is about."""
        if self.unit and self.unit != measured.unit:
            known = "" if "mm" in measured.unit else "; give the size of a pixel with --spacing ROW,COLUMN"
            raise UserError(
                f"question {str(self)!r} is in {self.unit}, but what was measured is in {measured.unit or 'no unit'}"
                f"{known or '; ask in that unit'}"
            )
        share = measured.probability(self.comparison, self.threshold)
        return Answer(share, share_interval(share, 1 / float((measured.weights**2).sum())))
