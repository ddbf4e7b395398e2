"""A self-contained HTML page of text, tables and pictures that needs no network, and numbers as text for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment

from stochseg.analysis.measurement import Measurement
from stochseg.files import write_text

DISCLAIMER = "Research software: not a medical device."


@dataclass(frozen=True)
class Picture:
    """A picture inside the page.

    uri: "data:…"; title: in bold; caption: what to look for; wide: a row of its own; legend: names with colors.
    """

    uri: str
    title: str
    caption: str = ""
    wide: bool = False
    legend: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Table:
    """A table with a head. links: for each row, the anchor on the page that its first cell links to."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    links: Sequence[str] = ()


@dataclass(frozen=True)
class Slides:
    """Pictures of one size, of which a slider shows one.

    uris: "data:…", one per picture; titles: one per picture; first: shown at the start; caption: what to look for.
    """

    uris: Sequence[str]
    titles: Sequence[str]
    first: int
    caption: str
    legend: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Section:
    """A part of the page; empty fields are left out.

    code: commands; width: of the narrowest picture of the gallery, in rem; anchor: target of links; folded: shown when
    the reader opens it; parts: sections inside this one.
    """

    heading: str
    text: str = ""
    code: str = ""
    pictures: Sequence[Picture] = ()
    width: float = 16.0
    slides: Slides | None = None
    table: Table | None = None
    anchor: str = ""
    folded: bool = False
    parts: Sequence[Section] = ()


def write_page(file: Path, title: str, lead: str, sections: Sequence[Section], foot: str = "") -> Path:
    """Write a page, all or nothing, and return the file. All text is escaped."""
    source = (files("stochseg.reports") / "templates" / "page.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    text = environment.from_string(source).render(
        title=title, lead=lead, sections=sections, foot=foot, sliders=any(section.slides for section in sections)
    )
    return write_text(file, text)


def number(value: float) -> str:
    """Format a number with three significant digits, or all digits before the point: "0.0123", "12,346"."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def mean_and_interval(measured: Measurement) -> str:
    """Format the mean of a measurement with its 90% interval and unit; large volumes are in ml."""
    measured = measured.readable()
    low, high = measured.interval(0.9)
    return f"{number(measured.mean)} ({number(low)} – {number(high)}) {measured.unit}".rstrip()


def plural(count: int, noun: str) -> str:
    """Format a count with its noun: "1 sample", "3 samples"."""
    return f"{count} {noun}{'s' * (count != 1)}"
