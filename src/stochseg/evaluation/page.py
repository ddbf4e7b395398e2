"""One self-contained HTML page: text, tables and pictures, no network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment

from stochseg.evaluation.evaluate import Evaluation, metric_rows


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


def evaluation_page(result: Evaluation, folder: Path) -> Path:
    """A page of one evaluation: its numbers, and the pictures that were written beside it."""
    s = result.settings
    captions = {
        "samples.png": ("Images, raters and samples", "Mean and entropy are over all samples of an image."),
        "steps.png": ("Quality against network evaluations", ""),
    }
    pictures = [
        Section(heading, text, folder / name) for name, (heading, text) in captions.items() if (folder / name).exists()
    ]
    numbers = Section("Numbers", rows=[(name, value) for _, name, value in metric_rows(result)])
    return write_page(
        folder / "index.html",
        f"{s['model']} on {s['data']}",
        f"{s['images']} images, {s['samples']} samples each, {s['steps']} network evaluations a sample.",
        [*pictures, numbers],
    )
