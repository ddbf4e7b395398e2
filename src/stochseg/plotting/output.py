"""Figures as files, as data URIs inside a page, and as pictures in notebooks."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image

from stochseg.files import replaced_file

DPI = 180
MAX_PNG = 70_000  # bytes above which an embedded picture becomes a JPEG


class NotebookFigure(Figure):
    """A figure that notebooks show even if pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=90, facecolor="white")
        return buffer.getvalue()


def write_figure(figure: Figure, file: Path, dpi: int = 130) -> Path:
    """Write a figure as PNG, all or nothing, and return the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with replaced_file(file) as scratch:
        figure.savefig(scratch, dpi=dpi, format="png", facecolor="white")
    return file


def embed_picture(figure: Figure, dpi: int = DPI) -> str:
    """Render a figure of pixels as the data URI of a PNG, or of a JPEG if the PNG would be large."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, facecolor="white", pil_kwargs={"optimize": True})
    kind = "png"
    if buffer.tell() > MAX_PNG:
        picture, kind = Image.open(buffer).convert("RGB"), "jpeg"
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=82, subsampling=0, optimize=True)
    return _data_uri(buffer, kind)


def embed_plot(figure: Figure) -> str:
    """Render a figure of lines as the data URI of an SVG with selectable text; equal figures give equal bytes."""
    buffer = io.BytesIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "stochseg"}):
        figure.savefig(buffer, format="svg", metadata=no_metadata)
    return _data_uri(buffer, "svg+xml")


def _data_uri(buffer: io.BytesIO, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"
