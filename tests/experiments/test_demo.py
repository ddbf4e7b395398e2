"""The demo, made tiny: everything it promises to write is there."""

import io
import json

import pytest
from PIL import Image
from rich.console import Console

import stochseg.experiments.demo as demo

TINY = (
    *("steps=2", "batch_size=2", "data.options.size=16", "data.train.count=4", "data.val.count=4"),
    *(
        "model.options.tower=[8,8]",
        "model.options.light=[8,8]",
        "model.options.num_timesteps=8",
        "model.options.evaluations=2",
    ),
    *("validation.images=1", "validation.num_samples=2"),
)


def test_demo(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "IMAGES", 2)
    monkeypatch.setattr(demo, "SAMPLES", 16)
    text = io.StringIO()
    result = demo.run_demo(tmp_path / "run", Console(file=text, width=200), overrides=TINY)
    page = (tmp_path / "run/index.html").read_text()
    assert page.count("data:image/") >= 5
    assert f"{result.metrics['ged_16']:.4f}" in page
    scores = json.loads((tmp_path / "run/evaluation/metrics.json").read_text())
    assert scores["ged_16"] == pytest.approx(result.metrics["ged_16"])
    assert scores["settings"]["images"] == 2
    pictures = [*(tmp_path / "run/evaluation").glob("*.png"), *(tmp_path / "run/images").glob("*.png")]
    assert len(pictures) >= 4
    for file in pictures:
        with Image.open(file) as picture:
            picture.load()
    assert str(tmp_path / "run/index.html") in text.getvalue()
