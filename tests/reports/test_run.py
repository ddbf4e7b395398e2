"""The page about a run, with all parts or few."""

import pytest

from stochseg.data import Phantoms
from stochseg.evaluation import evaluate
from stochseg.models.sampling import SamplingOptions
from stochseg.reports import RunFacts, RunPage
from stochseg.reports.page import Section
from stochseg.reports.run import Curve
from tests.support.pages import Page
from tests.support.predictions import small_model

DATA = Phantoms("val", size=16, count=2)


@pytest.fixture(scope="module")
def result():
    return evaluate(small_model(), DATA, options=SamplingOptions(n=2))


def headings(page):
    return [section.heading for section in page.sections()]


def test_sections_appear_only_with_their_content(result):
    least = RunPage(RunFacts("tiny"), result, DATA.info)
    always = ["One image in detail", "Scores", "Images, raters and samples", "Which images to check by hand"]
    assert headings(least) == [*always, "Known truth"]
    curve = Curve("ancestral", {1: result.metrics, 2: result.metrics}, 2)
    facts = RunFacts("tiny", log=[{"step": 1, "train/loss": 1.0}])
    more = RunPage(facts, result, DATA.info, curve=curve, extra=[Section("Next commands")])
    assert headings(more) == [*headings(least), "Quality against network evaluations", "Training", "Next commands"]


def saved(ged: float, **changes: str) -> dict:
    settings = {"date": "2030-01-01", "split": "val", "data_path": "a.h5", "weights": "best", "images": 9, "n": 2}
    return {"ged_2": ged, "settings": {**settings, **changes}, "folder": f"evaluations/{ged}"}


def test_scores_are_shown_next_to_the_newest_of_the_same_split_and_data(result, tmp_path):
    old = {"ged_2": 0.625, "settings": {"images": 9, "samples": 2}, "folder": "evaluation"}
    earlier = [saved(0.125, split="test"), saved(0.375, data_path="b.h5"), saved(0.25), saved(0.5), old]
    facts = RunFacts("tiny", {"split": "val", "data_path": "a.h5", "weights": "last"}, earlier)
    page = Page(RunPage(facts, result, DATA.info).write(tmp_path / "page.html")).check()
    assert f"GED, n = 2 {result.metrics['ged_2']:.4f} 0.2500 lower" in page.text
    listed = page.text[page.text.index("Earlier evaluations") :]
    assert [f"{each['ged_2']:.4f}" in listed for each in earlier] == [True] * 5
    unlike = RunFacts("tiny", {"split": "train", "data_path": "a.h5", "weights": "last"}, earlier)
    page = Page(RunPage(unlike, result, DATA.info).write(tmp_path / "page.html")).check()
    assert f"GED, n = 2 {result.metrics['ged_2']:.4f} lower" in page.text
