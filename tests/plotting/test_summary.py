"""The figure of `stochseg.plot`, and samples in notebooks."""

import base64
import io
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import stochseg
from stochseg.data import Phantoms
from stochseg.errors import UserError
from stochseg.types import Samples
from tests.support.figures import assert_shows_something, texts
from tests.support.samples import as_samples
from tests.support.volumes import ball_samples


def perfect(data, index=1, n=12):
    """Samples of a perfect model."""
    return as_samples(data.draw(index, n, seed=0), data.info.num_classes)


def said(figure):
    return [" ".join(text.get_text().split()) for text in texts(figure)]


@pytest.mark.parametrize("variant", ["binary", "multiclass"])
def test_shows_image_readings_and_areas(variant):
    data = Phantoms("val", size=24, variant=variant)
    out = perfect(data)
    figure = stochseg.plot(data[1].image, out, data.info, spacing=data[1].spacing)
    words = said(figure)
    for reading in stochseg.hypotheses(out, info=data.info):
        assert any(text.startswith(f"{reading.probability:.0%} (") for text in words)
        assert reading.name in words
    assert "area (mm²)" in words
    assert_shows_something(figure, dpi=40)


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
def test_accepts_any_image(image):
    assert "area (px²)" in said(stochseg.plot(image, perfect(Phantoms("val", size=16))))


def test_accepts_the_path_of_an_image(tmp_path):
    Image.new("L", (16, 16)).save(tmp_path / "a.png")
    samples = perfect(Phantoms("val", size=16))
    assert "area (px²)" in said(stochseg.plot(tmp_path / "a.png", samples))
    with pytest.raises(UserError, match=r"no such image: .*b\.png"):
        stochseg.plot(str(tmp_path / "b.png"), samples)


def test_empty_samples_and_more_readings_than_shown():
    empty = Samples(torch.zeros(1, 3, 8, 8, dtype=torch.long), torch.ones(1, 2, 8, 8) / 2, torch.ones(1, 3) / 3, 0)
    assert "no sample marks anything" in said(stochseg.plot(np.zeros((8, 8)), empty))
    many = torch.zeros(1, 14, 8, 8, dtype=torch.long)
    for i in range(14):
        many[0, i, i // 2] = 1
    words = said(stochseg.plot(np.zeros((8, 8)), Samples(many, empty.mean, torch.ones(1, 14) / 14, 0)))
    assert any(re.fullmatch(r"7 readings of 14 samples; 2 more have 29% together", text) for text in words)


def test_errors_name_the_sizes():
    out = perfect(Phantoms("val", size=16))
    with pytest.raises(UserError, match="the image is 8 x 8, the samples are 16 x 16"):
        stochseg.plot(np.zeros((8, 8)), out)
    with pytest.raises(UserError, match='"c h w"'):
        stochseg.plot(torch.zeros(16, 16), out)


def test_samples_in_a_notebook():
    labels = torch.randint(3, (3, 2, 6, 9))
    page = Samples(labels, torch.rand(3, 3, 6, 9).softmax(1), torch.full((3, 2), 0.5), 4)._repr_html_()
    assert "<td>6 × 9</td>" in page
    picture = base64.b64decode(re.search('base64,([^"]+)', page)[1])
    assert Image.open(io.BytesIO(picture)).format == "PNG"
    assert len(page) < 200_000


def test_figure_in_a_notebook_without_pyplot():
    figure = stochseg.plot(np.zeros((16, 16)), perfect(Phantoms("val", size=16)))
    assert Image.open(io.BytesIO(figure._repr_png_())).format == "PNG"


def test_repr_of_samples():
    out = Samples(torch.zeros(2, 1, 6, 9, dtype=torch.long), torch.ones(2, 3, 6, 9) / 3, torch.ones(2, 1), 4)
    assert repr(out) == "Samples(2 images of 6×9 pixels, 1 label map each, 3 classes, seed 4, evaluations 1)"


def test_readings_in_a_notebook():
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


def test_types_import_no_upper_layer():
    program = (
        "import sys, stochseg.types; stochseg.types.Samples;"
        "assert not [m for m in sys.modules if 'matplotlib' in m or m.startswith('stochseg.inference')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_each_of_several_classes_has_a_map():
    data = Phantoms("val", size=24, variant="multiclass")
    out = perfect(data)
    words = said(stochseg.plot(data[1].image, out, data.info))
    highest = out.mean[0].flatten(1).amax(1)
    for label, name in enumerate(data.info.names):
        assert (f"P({name})" in words) == (label > 0 and float(highest[label]) >= 0.01)
    binary = Phantoms("val", size=24)
    assert not any(text.startswith("P(") for text in said(stochseg.plot(binary[1].image, perfect(binary), binary.info)))


def test_the_part_that_the_model_labels_is_drawn():
    data = Phantoms("val", size=24)
    out = replace(perfect(data), window=((4, 20), (6, 18)))
    (box,) = stochseg.plot(data[1].image, out, data.info).axes[0].patches
    assert box.get_bbox().extents.tolist() == [5.5, 3.5, 17.5, 19.5]
    assert not stochseg.plot(data[1].image, perfect(data), data.info).axes[0].patches


def test_volumes_are_drawn_in_three_planes():
    spacing = (2.5, 1.0, 1.0)
    out = ball_samples([0, 0, 5, 5.2, 8, 8.2], spacing, (12, 40, 44), (5, 12, 30))
    raw = np.random.default_rng(0).normal(size=(12, 40, 44))
    figure = stochseg.plot(raw, out, spacing=spacing)
    words = said(figure)
    for plane in ("axial", "coronal", "sagittal"):
        assert f"{plane}: 6 samples" in words
    assert "volume (ml)" in words, "more than 1,000 mm³"
    for reading in stochseg.hypotheses(out):
        assert any(text.startswith(f"{reading.probability:.0%} (") for text in words)
    assert_shows_something(figure, dpi=40)
    tensor = torch.from_numpy(raw).float()[None]
    assert "volume (px³)" in said(stochseg.plot(tensor, out))
    with pytest.raises(UserError, match='"d h w"'):
        stochseg.plot(raw[0], out)
    with pytest.raises(UserError, match="12 x 40 x 44"):
        stochseg.plot(raw[:5], out)


def test_notebooks_show_volumes():
    out = ball_samples([3, 5, 8])
    assert "12 × 28 × 32" in out._repr_html_()
    assert "on which the samples" in out._repr_html_()
    assert "voxels" in stochseg.hypotheses(out)._repr_html_()
