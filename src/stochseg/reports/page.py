"""One self-contained HTML page: text, tables and pictures, no network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment

from stochseg.evaluation.evaluator import Evaluation, metric_rows
from stochseg.files import write_text

DISCLAIMER = "Research software: not a medical device."


@dataclass(frozen=True)
class Picture:
    """A picture inside the page. uri: "data:…"; name: what it shows, in bold; caption: what to see in it."""

    uri: str
    name: str
    caption: str = ""
    wide: bool = False


@dataclass(frozen=True)
class Table:
    """links: the place in the page that the first cell of each row leads to."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    links: Sequence[str] = ()


@dataclass(frozen=True)
class Section:
    """A part of the page; whatever is empty is left out.

    picture_file: a PNG file to embed over the whole width; rows: a table of two columns without a head; width: of the
    narrowest picture, in letters; anchor: the place that links lead to; folded: shown when the reader opens it;
    parts: sections inside this one.
    """

    heading: str
    text: str = ""
    picture_file: Path | None = None
    rows: Sequence[tuple[str, str]] = ()
    code: str = ""
    pictures: Sequence[Picture] = ()
    width: float = 17.0
    table: Table | None = None
    anchor: str = ""
    folded: bool = False
    parts: Sequence[Section] = ()

    @property
    def picture(self) -> str:
        """The PNG as base64."""
        return base64.b64encode(self.picture_file.read_bytes()).decode() if self.picture_file else ""


def write_page(file: Path, title: str, lead: str, sections: Sequence[Section], foot: str = "") -> Path:
    source = (files("stochseg.reports") / "templates" / "page.html").read_text()
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    text = environment.from_string(source).render(title=title, lead=lead, sections=sections, foot=foot)
    return write_text(file, text)


def evaluation_page(result: Evaluation, folder: Path, *, samples: Path, curve: Path | None = None) -> Path:
    """A page of one evaluation: its numbers, the picture of its samples, the curve over steps if there is one."""
    s = result.settings
    pictures = [Section("Images, raters and samples", "Mean and entropy are over all samples of an image.", samples)]
    if curve is not None:
        pictures.append(Section("Quality against network evaluations", picture_file=curve))
    numbers = Section("Numbers", rows=[(name, value) for _, name, value in metric_rows(result)])
    return write_page(
        folder / "index.html",
        f"{s['model']} on {s['data']}",
        f"{s['images']} images, {s['n']} samples each, {result.calls} a sample.",
        [*pictures, numbers],
    )
