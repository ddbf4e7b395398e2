"""Figures as files, as data URIs inside a page, and as pictures in notebooks."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image

from stochseg.files import replaced_file

DPI = 180
MAX_PNG = 70_000  # bytes above which an embedded picture becomes a JPEG


class NotebookFigure(Figure):
    """A figure that notebooks show even if pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        return _rendered(self, format="png", dpi=90, facecolor="white")


def write_figure(figure: Figure, file: Path, dpi: int = 130) -> Path:
    """Write a figure as PNG, all or nothing.

    Args:
        figure: the figure.
        file: the file to write; its folder is created.
        dpi: dots per inch.

    Returns:
        The file.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with replaced_file(file) as scratch:
        figure.savefig(scratch, dpi=dpi, format="png", facecolor="white")
    return file


def embed_picture(figure: Figure, dpi: int = DPI) -> str:
    """Render a figure of pixels as the data URI of a PNG, or of a JPEG if the PNG would be large."""
    png = _rendered(figure, format="png", dpi=dpi, facecolor="white", pil_kwargs={"optimize": True})
    if len(png) <= MAX_PNG:
        return data_uri(png, "png")
    buffer = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").save(buffer, "JPEG", quality=82, subsampling=0, optimize=True)
    return data_uri(buffer.getvalue(), "jpeg")


def embed_plot(figure: Figure) -> str:
    """Render a figure of lines as the data URI of an SVG with selectable text; equal figures give equal bytes."""
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "stochseg"}):
        return data_uri(_rendered(figure, format="svg", metadata=no_metadata), "svg+xml")


def data_uri(content: bytes, kind: str) -> str:
    """Encode an image file for use inside HTML."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _rendered(figure: Figure, **options: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, **options)
    return buffer.getvalue()
