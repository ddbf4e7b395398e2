"""Pictures and the page: written, legible in size, not blank, and safe to open."""

import base64
import re

import numpy as np
import pytest
import torch
from PIL import Image

from stochseg.core import CategoricalProcess, cosine
from stochseg.data import Phantoms
from stochseg.plotting import figures
from stochseg.reports.page import Section, write_page
from stochseg.types import DatasetInfo, Example, Normalization, Samples


def samples(n=3, classes=2, size=16):
    labels = torch.randint(classes, (1, n, size, size))
    return Samples(labels, torch.rand(1, classes, size, size).softmax(1), torch.full((1, n), 1 / n), 0)


def rows(*raters):
    data = Phantoms("val", size=16)
    examples = [Example(data[i].image, data[i].raters[:k], str(i)) for i, k in enumerate(raters)]
    return [(example, samples()) for example in examples]


INFO = Phantoms("val").info
CURVE = {5: {"ged_16": 0.3, "hm_iou_16": 0.6}, 10: {"ged_16": 0.2, "hm_iou_16": 0.7}}
LOG = [{"step": i, "train/loss": 2.0 / i} for i in range(1, 90)] + [{"step": 50, "val/ged": 0.3}]

FIGURES = {
    "qualitative": lambda: figures.qualitative(rows(4, 1), INFO),
    "qualitative of one": lambda: figures.qualitative(rows(1), INFO),
    "overview": lambda: figures.overview(rows(1)[0][0].image, samples(11), INFO),
    "forward process": lambda: figures.forward_process(
        CategoricalProcess(cosine(50), 2), Phantoms("val", size=16).truth(0).modes[-1], INFO
    ),
    "steps": lambda: figures.quality_against_steps({"ancestral": CURVE}),
    "training": lambda: figures.training_curve(LOG),
    "training, just begun": lambda: figures.training_curve(LOG[:1]),
    "modes": lambda: figures.mode_frequencies(np.eye(3), np.eye(3), ("nothing", "core", "halo")),
}


@pytest.mark.parametrize("name", FIGURES)
def test_pictures_show_something(name, tmp_path):
    file = figures.write_figure(FIGURES[name](), tmp_path / "new" / "picture.png")
    with Image.open(file) as picture:
        assert picture.format == "PNG"
        assert 100 < picture.height < 3000
        assert 300 < picture.width < 3000
        pixels = np.asarray(picture.convert("L"))
    assert pixels.std() > 5
    assert [p.name for p in file.parent.iterdir()] == ["picture.png"]


def test_labels_become_the_colors_of_the_palette_and_void_grey():
    info = DatasetInfo(num_classes=2, image_channels=1, palette=("#000000", "#ff8000"), ignore=255)
    colors = figures.show_labels(torch.tensor([[0, 1, 255]]), info)
    np.testing.assert_allclose(colors, [[[0, 0, 0], [1, 128 / 255, 0], [0.6, 0.6, 0.6]]])
    certain = torch.tensor([[[0.0]], [[1.0]]])
    np.testing.assert_allclose(figures.show_mean(certain, info), [[[1, 128 / 255, 0]]], atol=1e-6)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("scale", [255.0, 4000.0])
def test_images_of_any_range_and_channels_are_shown(channels, scale):
    raw = torch.rand(channels, 5, 6) * scale
    shown = figures.show_image(Normalization()(raw), Normalization())
    assert shown.shape == (5, 6, 3)
    assert shown.min() >= 0
    assert shown.max() <= 1
    if scale == 255 and channels == 3:
        np.testing.assert_allclose(shown, raw.permute(1, 2, 0) / 255, atol=1e-5)


# --- the page ---------------------------------------------------------------------------------------------


def test_the_page_holds_its_sections_and_pictures_and_escapes_text(tmp_path):
    Image.new("RGB", (4, 4), "red").save(tmp_path / "red.png")
    page = write_page(
        tmp_path / "index.html",
        "Title & <b>",
        "Lead",
        [
            Section("First", "text <script>alert(1)</script>", tmp_path / "red.png"),
            Section("Second", rows=[("GED <16>", "0.2")], code="stochseg predict 'a & b'"),
        ],
    )
    text = page.read_text()
    assert text.count("<section>") == 2
    assert [h in text for h in ("First", "Second", "Lead", "0.2")] == [True] * 4
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "GED &lt;16&gt;" in text
    assert "Title &amp; &lt;b&gt;" in text
    (picture,) = re.findall(r'src="data:image/png;base64,([^"]+)"', text)
    assert base64.b64decode(picture) == (tmp_path / "red.png").read_bytes()
    assert not re.findall(r'(?:src|href)="(?!data:)', text), "the page needs nothing from outside"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["index.html", "red.png"]
