"""The page about a run, with all parts or few."""

import json

import pytest

from stochseg.data import Phantoms
from stochseg.evaluation import evaluate
from stochseg.models.sampling import SamplingOptions
from stochseg.reports import RunFacts, RunPage
from stochseg.reports.page import Section
from stochseg.reports.run import Curve, read_facts
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
    assert headings(least) == ["One image in detail", "Scores", "Images, raters and samples", "Known truth"]
    curve = Curve("ancestral", {1: result.metrics, 2: result.metrics}, 2)
    facts = RunFacts("tiny", log=[{"step": 1, "train/loss": 1.0}])
    more = RunPage(facts, result, DATA.info, curve=curve, extra=[Section("Next commands")])
    assert headings(more) == [*headings(least), "Quality against network evaluations", "Training", "Next commands"]


def test_scores_are_shown_next_to_published_and_earlier_ones(result, tmp_path):
    earlier = {"ged_2": 0.25, "settings": {"images": 9, "n": 2}}
    facts = RunFacts("tiny", published={"ged_2": 0.125}, earlier=earlier)
    page = Page(RunPage(facts, result, DATA.info).write(tmp_path / "page.html")).check()
    assert f"GED, n = 2 {result.metrics['ged_2']:.4f} 0.2500 0.1250 lower" in page.text


def test_facts_of_a_run_folder(tmp_path):
    assert not read_facts(tmp_path / "none", {}, "log.jsonl").log
    (tmp_path / "evaluation").mkdir()
    (tmp_path / "evaluation/metrics.json").write_text(json.dumps({"ged_2": 0.5}))
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    facts = read_facts(tmp_path, {"ged_2": 0.4}, "log.jsonl")
    assert (len(facts.log), facts.earlier, facts.published) == (2, {"ged_2": 0.5}, {"ged_2": 0.4})
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n[2]\n{')
    assert read_facts(tmp_path, {}, "log.jsonl").log == [{"step": 1}]
