"""Checks of figures."""

import io

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from PIL import Image


def assert_shows_something(figure, dpi=60):
    """Render a figure and check its size and that it is not blank."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    width, height = figure.get_size_inches()
    assert 1 < height < 25
    assert 2 < width < 25
    assert np.asarray(Image.open(buffer).convert("L")).std() > 5


def texts(figure):
    """All text elements of a drawn figure."""
    FigureCanvasAgg(figure).draw()
    return [text for text in figure.findobj(Text) if text.get_text().strip()]
