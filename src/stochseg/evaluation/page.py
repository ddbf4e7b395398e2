"""One self-contained HTML page: text, tables and pictures, no network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment


@dataclass(frozen=True)
class Section:
    """A part of the page; whatever is empty is left out. `picture` is a PNG file to embed."""

    heading: str
    text: str = ""
    picture_file: Path | None = None
    rows: Sequence[tuple[str, str]] = ()
    code: str = ""

    @property
    def picture(self) -> str:
        """The PNG as base64."""
        return base64.b64encode(self.picture_file.read_bytes()).decode() if self.picture_file else ""


def write_page(file: Path, title: str, lead: str, sections: Sequence[Section]) -> Path:
    source = (files("stochseg.evaluation") / "templates" / "page.html").read_text()
    text = Environment(autoescape=True).from_string(source).render(title=title, lead=lead, sections=sections)
    scratch = file.with_name(f".{file.name}.part")
    scratch.write_text(text)
    scratch.replace(file)
    return file
