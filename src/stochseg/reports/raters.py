"""The page about the raters of a data set."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations_with_replacement
from pathlib import Path

from stochseg._version import __version__
from stochseg.data import open_all
from stochseg.evaluation.raters import Estimate, RaterReport, compare_raters
from stochseg.plotting import contact_sheet
from stochseg.plotting.output import embed_picture
from stochseg.reports.page import DISCLAIMER, Picture, Section, Table, plural, write_page

SHOWN = 6
"""Images on which raters agree least that have a picture."""
KAPPA = (
    "Fleiss' kappa compares the agreement at a pixel with that of raters who guess with the same frequencies: 1 is "
    "perfect, 0 is chance. It counts all pixels, so that large backgrounds raise it."
)


def report_raters(
    path: Path, out: Path, progress: Callable[[int, int], None] = lambda done, total: None
) -> RaterReport:
    """Write a page about the agreement of the raters of a data set.

    Args:
        path: a packed store (.h5) or a folder with dataset.yaml.
        out: the page.
        progress: called with the images done so far and their total.

    Returns:
        The numbers on the page.

    Raises:
        UserError: if no image has two raters.
    """
    report = compare_raters(path, progress)
    people = f"{plural(len(report.raters), 'rater')}" if report.named else "raters without names"
    sections = [_agreement(report), _pairs(report), _each(report), _hardest(report, path)]
    write_page(
        out,
        f"Raters of {report.info.name}",
        f"{plural(report.images, 'image')} of {plural(len(report.groups), 'patient')} with two or more of {people}. "
        "Intervals are 95%, of 1,000 resamples of the patients.",
        [section for section in sections if section is not None],
        f"Written by stochseg {__version__} from {path}. {DISCLAIMER}",
    )
    return report


def agreement_rows(report: RaterReport) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table of agreement, one row per foreground class and one for all."""
    unit = "mm" if report.in_mm else "px"
    head = ["class", "Dice of two raters", "IoU of two raters", f"surface distance ({unit})", "Fleiss' kappa"]
    rows = []
    for label in range(1, report.info.num_classes):
        values = [report.agreement(what, label) for what in ("dice", "iou", "distance")]
        rows.append([report.info.names[label], *map(_text, [*values, report.kappa(label)])])
    return head, [*rows, ["all classes", "", "", "", _text(report.kappa())]]


def _text(estimate: Estimate) -> str:
    if math.isnan(estimate.value):
        return "–"
    if math.isnan(estimate.low):
        return f"{estimate.value:.3f}"
    return f"{estimate.value:.3f} ({estimate.low:.3f} – {estimate.high:.3f})"


def _agreement(report: RaterReport) -> Section:
    text = (
        "Mean over the pairs of raters of an image, then over images; an image counts for a class that one of the two "
        f"marked. The surface distance needs both. {KAPPA}"
    )
    return Section("Agreement", text, table=Table(*agreement_rows(report)))


def _pairs(report: RaterReport) -> Section | None:
    """Dice of every pair of named raters."""
    if not report.named or len(report.raters) < 3:
        return None
    tables = []
    for label in range(1, report.info.num_classes):
        rows = []
        for first, second in combinations_with_replacement(report.raters, 2):
            if first != second:
                pair = (first, second)
                values = (report.agreement(what, label, pair) for what in ("dice", "iou", "distance"))
                rows.append([f"{first}, {second}", *map(_text, values)])
        head = ["raters", "Dice", "IoU", "surface distance"]
        tables.append(Section(report.info.names[label], table=Table(head, rows)))
    return Section("Every pair", parts=tables, folded=len(report.raters) > 4)


def _each(report: RaterReport) -> Section:
    names = report.info.names
    parts = []
    for rater in report.raters:
        confusion = report.confusion_of(rater)
        shares = [["–" if math.isnan(v) else f"{v:.1%}" for v in row] for row in confusion]
        rows = [[name, *row] for name, row in zip(names, shares, strict=True)]
        sizes = ", ".join(f"{names[label]} {_percent(report.bias(rater, label))}" for label in range(1, len(names)))
        head = ["the others say", *(f"{rater}: {name}" for name in names)]
        parts.append(Section(rater, f"Draws, compared with the mean of the others: {sizes}.", table=Table(head, rows)))
    unnamed = (
        ""
        if report.named
        else (" The data do not name raters: these are places in the list of an image, perhaps different people.")
    )
    text = f"Each rater against the majority of the others (the lowest label of a tie).{unnamed}"
    return Section("Each rater", text, parts=parts)


def _percent(estimate: Estimate) -> str:
    if not math.isfinite(estimate.value):  # the others never mark the class
        return "–"
    interval = "" if math.isnan(estimate.low) else f" ({estimate.low:+.0%} to {estimate.high:+.0%})"
    return f"{estimate.value:+.0%}{interval}"


def _hardest(report: RaterReport, path: Path) -> Section | None:
    wanted = report.hardest(SHOWN)
    if not wanted:  # nobody marked anything
        return None
    splits = open_all(path)
    sheet = contact_sheet([splits[split][i] for split, i in (report.places[id] for id in wanted)], report.info)
    picture = Picture(embed_picture(sheet), "Lowest Dice first.", ", ".join(wanted), wide=True)
    return Section("Images with the least agreement", pictures=[picture])
