"""The picture of all that samples say, and Samples in a notebook."""

import base64
import io
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from PIL import Image

import stochseg
from stochseg.data import Phantoms
from stochseg.errors import UserError
from stochseg.plotting.summary import close_up
from stochseg.types import Samples
from tests.support.samples import as_samples


def perfect(data, index=1, n=12):
    """Samples of a perfect model."""
    return as_samples(data.draw(index, n, seed=0), data.info.num_classes)


def texts(figure):
    FigureCanvasAgg(figure).draw()
    return [t.get_text() for t in figure.findobj(Text)]


@pytest.mark.parametrize("variant", ["binary", "multiclass"])
def test_shows_image_readings_and_areas(variant):
    data = Phantoms("val", size=24, variant=variant)
    out = perfect(data)
    figure = stochseg.plot(data[1].image, out, data.info, spacing=data[1].spacing)
    said = texts(figure)
    for reading in stochseg.hypotheses(out, info=data.info):
        assert f"{reading.probability:.0%}" in said
        assert any(text.startswith(reading.name) for text in said)
    assert "area (mm²)" in said
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=40)
    assert np.asarray(Image.open(buffer).convert("L")).std() > 20


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((16, 16), dtype=np.uint8),
        np.random.default_rng(0).random((16, 16, 3)),
        np.full((16, 16, 4), 300.0),
        Image.new("RGB", (16, 16)),
        torch.zeros(1, 16, 16),
        torch.zeros(1, 3, 16, 16),
    ],
    ids=["gray", "rgb", "four channels", "pil", "tensor", "batch of one"],
)
def test_takes_any_image(image):
    assert "area (px²)" in texts(stochseg.plot(image, perfect(Phantoms("val", size=16))))


def test_nothing_drawn_and_noise():
    empty = Samples(torch.zeros(1, 3, 8, 8, dtype=torch.long), torch.ones(1, 2, 8, 8) / 2, torch.ones(1, 3) / 3, 0)
    assert "no sample marks anything" in texts(stochseg.plot(np.zeros((8, 8)), empty))
    many = torch.zeros(1, 14, 8, 8, dtype=torch.long)
    for i in range(14):
        many[0, i, i // 2] = 1
    said = texts(stochseg.plot(np.zeros((8, 8)), Samples(many, empty.mean, torch.ones(1, 14) / 14, 0)))
    assert any(re.fullmatch(r"7 readings of 14 samples; 2 more share 29%", text) for text in said)


def test_errors_say_what_to_do():
    out = perfect(Phantoms("val", size=16))
    with pytest.raises(UserError, match="the image is 8 x 8, the samples are 16 x 16"):
        stochseg.plot(np.zeros((8, 8)), out)
    with pytest.raises(UserError, match='"c h w"'):
        stochseg.plot(torch.zeros(16, 16), out)


def test_samples_show_themselves_in_a_notebook():
    labels = torch.randint(3, (3, 2, 6, 9))
    page = Samples(labels, torch.rand(3, 3, 6, 9).softmax(1), torch.full((3, 2), 0.5), 4)._repr_html_()
    assert "<td>6 × 9</td>" in page
    picture = base64.b64decode(re.search('base64,([^"]+)', page)[1])
    assert Image.open(io.BytesIO(picture)).format == "PNG"
    assert len(page) < 200_000


def test_a_plot_shows_itself_without_pyplot():
    figure = stochseg.plot(np.zeros((16, 16)), perfect(Phantoms("val", size=16)))
    assert Image.open(io.BytesIO(figure._repr_png_())).format == "PNG"


def test_samples_are_printed_in_a_line():
    out = Samples(torch.zeros(2, 1, 6, 9, dtype=torch.long), torch.ones(2, 3, 6, 9) / 3, torch.ones(2, 1), 4)
    assert repr(out) == "Samples(2 images of 6×9 pixels, 1 label map each, 3 classes, seed 4, evaluations 1)"


def test_readings_are_a_table():
    data = Phantoms("val", size=24, variant="multiclass")
    readings = stochseg.hypotheses(perfect(data), info=data.info)
    assert len(readings) > 1
    assert repr(readings).splitlines() == [str(reading) for reading in readings]
    page = readings._repr_html_()
    assert page.count("<img ") == len(readings)
    for reading in readings:
        assert f">{reading.name}</td>" in page
        assert f">{reading.probability:.0%}</td>" in page
    assert "<script>" not in type(readings)([replace(readings[0], name="<script>")])._repr_html_()


@pytest.mark.parametrize("aspect", [1.0, 3.0, 0.4])
def test_close_up_holds_all_that_is_marked(aspect):
    marked = np.zeros((200, 300), bool)
    marked[3:9, 290:299] = True
    rows, columns = close_up(marked, aspect)
    assert marked[rows, columns].sum() == marked.sum()
    assert aspect * (rows.stop - rows.start) == pytest.approx(columns.stop - columns.start, abs=max(1, aspect))
    assert close_up(np.zeros_like(marked)) is None
    assert close_up(np.ones_like(marked), aspect) is None


def test_types_load_nothing_from_above():
    program = (
        "import sys, stochseg.types; stochseg.types.Samples;"
        "assert not [m for m in sys.modules if 'matplotlib' in m or m.startswith('stochseg.inference')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
