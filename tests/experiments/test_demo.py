"""The demo, made tiny: everything it promises to write is there, and it can be stopped and resumed."""

import io
import json
import re

import pytest
from PIL import Image
from rich.console import Console

import stochseg.experiments.demo as demo
from tests.support.runs import evaluations, saved_progress, stop_at

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


@pytest.fixture(autouse=True)
def _few_samples(monkeypatch):
    monkeypatch.setattr(demo, "IMAGES", 2)
    monkeypatch.setattr(demo, "SAMPLES", 16)


def test_demo(tmp_path):
    text = io.StringIO()
    result = demo.run_demo(tmp_path / "run", Console(file=text, width=200), overrides=TINY)
    page = (tmp_path / "run/index.html").read_text()
    assert page.count("data:image/") >= 5
    assert f"{result.metrics['ged_16']:.4f}" in page
    (folder,) = evaluations(tmp_path / "run")
    scores = json.loads((folder / "metrics.json").read_text())
    assert scores["ged_16"] == pytest.approx(result.metrics["ged_16"])
    assert (scores["settings"]["images"], scores["settings"]["split"]) == (2, "test")
    pictures = [*folder.glob("*.png"), *(tmp_path / "run/images").glob("*.png")]
    assert len(pictures) >= 4
    for file in pictures:
        with Image.open(file) as picture:
            picture.load()
    assert str(tmp_path / "run/index.html") in text.getvalue()


def test_a_stopped_demo_says_how_to_resume_and_resumes(tmp_path, monkeypatch):
    out, text = tmp_path / "my [run]", io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(demo, "evaluate", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            demo.run_demo(out, Console(file=text, width=200), minutes=7.5, overrides=TINY)
    (advice,) = re.findall(r"resume with: (.*)", text.getvalue())
    assert advice == f"stochseg demo --out '{out}' --minutes 7.5"
    assert "2 steps or 7.5 min" in text.getvalue()
    again = io.StringIO()
    demo.run_demo(out, Console(file=again, width=200), overrides=TINY)
    assert "complete at step 2 of 2" in again.getvalue()


def test_the_time_limit_ends_training_and_the_page_says_so(tmp_path):
    text = io.StringIO()
    console = Console(file=text, width=200)
    demo.run_demo(tmp_path / "run", console, minutes=1e-6, overrides=(*TINY, "steps=1000"))
    assert saved_progress(tmp_path / "run")["step"] == 1
    for said in (text.getvalue(), (tmp_path / "run/index.html").read_text()):
        assert f"1 of 1000 steps; stochseg demo --out {tmp_path / 'run'} trains the rest" in said


def test_ctrl_c_in_training_says_from_which_step_it_resumes(tmp_path, monkeypatch):
    text = io.StringIO()
    with monkeypatch.context() as patch:
        stop_at(patch, 2, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            demo.run_demo(tmp_path / "run", Console(file=text, width=200), overrides=TINY)
    assert "a resumed run continues from step 1 of 2" in text.getvalue()
    demo.run_demo(tmp_path / "run", console := Console(file=io.StringIO(), width=200), overrides=TINY)
    assert "resuming at step 1 of 2" in console.file.getvalue()
