"""Pages about runs."""

import json

import numpy as np
import pytest

import stochseg
from stochseg.analysis import Question
from stochseg.data import Phantoms
from stochseg.errors import UserError
from stochseg.evaluation import evaluate
from stochseg.models.sampling import SamplingOptions
from stochseg.reports import RunFacts, report_run
from stochseg.training import train
from tests.support.pages import Page
from tests.support.predictions import small_model


@pytest.fixture(scope="module")
def trained(tiny_run, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "run"
    train(tiny_run("data.options.size=16", "steps=2", "data.val.count=7"), out, device="cpu")
    return out


def test_page_of_a_run(run, trained):
    assert run("evaluate", trained, "-n", 4, "--limit", 2, "--seed", 8)[0] == 0
    code, out, _ = run("report", trained, "-n", 4, "--curve", "1,3", "--curve-images", 2, "--seed", 5)
    assert code == 0
    assert str(trained / "report.html") in out
    page = Page(trained / "report.html").check()
    data = Phantoms("val", size=16, count=7)
    model = stochseg.load(trained)
    result = evaluate(model, data, options=SamplingOptions(n=4, seed=5))
    for key in ("ged_4", "hm_iou_4", "ged_unbiased", "diversity_unbiased", "ece", "brier", "miou", "mode_tv"):
        assert f"{result.metrics[key]:.4f}" in page.text
    earlier = json.loads(next(trained.glob("evaluations/*/metrics.json")).read_text())
    assert f"GED, n = 4 {result.metrics['ged_4']:.4f} {earlier['ged_4']:.4f} lower" in page.text
    assert "2 images, n = 4, best" in page.text
    order = np.argsort([row["ged_4"] for row in result.images], kind="stable")
    for kind, place in (("Best", order[0]), ("Worst", order[-1])):
        assert f"{kind}: {result.images[place]['id']}" in page.words
    for steps in (1, 3):
        part = evaluate(model, data, limit=2, options=SamplingOptions(n=4, evaluations=steps, seed=5))
        assert f"{steps} {part.metrics['ged_4']:.4f} {part.metrics['hm_iou_4']:.4f}" in page.text
    headings = (
        "Agreement with the raters",
        "Known truth",
        "Quality against network evaluations",
        "Training",
    )
    assert all(heading in page.words for heading in headings)
    first = next(i for i, (alt, _) in enumerate(page.images) if data[0].id in alt)
    assert first == 0, "the page begins with the samples of its first image"
    table = page.text[page.text.index("metric value") :]
    assert table.index("GED, n = 4") < table.index("lower") < table.index("HM-IoU, n = 4") < table.index("higher")


def test_page_of_a_model_of_one_evaluation_on_data_with_void(run, folder_root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    info = stochseg.DatasetInfo(num_classes=2, image_channels=1, ignore=255)
    model = stochseg.create("unet-ce", 2, 1, info=info, base=4, multipliers=[1, 2], blocks=1, attention=[])
    stochseg.save(model, tmp_path / "model")
    code, _, _ = run("report", tmp_path / "model", "--data", folder_root, "-n", 2, "--spacing", 0.5)
    assert code == 0
    page = Page(tmp_path / "runs" / f"{tmp_path.name}-model" / "report.html").check()
    assert "Worst: c" in page.words
    assert "mm²" in page.text
    assert "Quality against" not in page.text
    code, _, messages = run("report", tmp_path / "model", "--data", folder_root, "--curve", "5")
    assert code == 2
    assert "unet-ce" in messages
    assert "evaluations" in messages


@pytest.mark.parametrize("text", ["area of moon > 5", "volume > 5", "area > 5 mm"])
def test_questions_are_checked_before_sampling(tmp_path, monkeypatch, text):
    monkeypatch.setattr("stochseg.reports.evaluation.evaluate", lambda *_, **__: pytest.fail("sampling started"))
    data = Phantoms("val", size=16, count=2)
    with pytest.raises(UserError, match="question "):
        report_run(small_model(), data, tmp_path / "page.html", RunFacts("tiny"), questions=[Question.parse(text)])
