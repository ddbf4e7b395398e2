"""The section of a page about a volume."""

import numpy as np
import pytest
import torch

from stochseg.analysis import Question
from stochseg.evaluation import evaluate
from stochseg.models.sampling import SamplingOptions
from stochseg.plotting.slides import slide
from stochseg.reports import RunFacts, RunPage
from stochseg.reports.agreement import Agreement
from stochseg.reports.cases import Case, check_questions, draw_case, pick_cases
from stochseg.reports.page import write_page
from stochseg.reports.volume import MAX_SLIDES, VolumeReport
from stochseg.types import DatasetInfo
from tests.support.pages import Page
from tests.support.samples import as_samples
from tests.support.volumes import INFO, SPACING, Balls, Smaller, ball_samples, ellipsoid


def report(samples, info=INFO, **options):
    shape = samples.labels.shape[2:]
    raw = np.random.default_rng(0).normal(-800, 50, shape)
    return VolumeReport.of_samples("scan", raw, samples, info, spacing=SPACING, **options)


def test_page_of_a_volume(tmp_path):
    samples = ball_samples([0, 5, 5.2, 9, 9.2], shape=(14, 40, 44))
    question = Question.parse("volume of nodule > 1 ml")
    scan = report(samples, raters=samples.labels[0, 1:3], rater_names=("ann", "ben"), questions=[question])
    page = Page(write_page(tmp_path / "page.html", "t", "", [scan.section()])).check()
    volumes = (samples.labels[0] > 0).flatten(1).sum(1) * 2.5
    assert f"P(volume of nodule > 1000 mm³) = {(volumes > 1000).float().mean():.0%}" in page.text
    assert "3 readings of the whole volume" in page.text
    assert {"larger nodule", "smaller nodule", "nothing"} == {r.name for r in scan.readings}
    titles = [title for title, _ in page.images]
    assert {"2 raters.", "Outlines of 5 samples.", "Mean probability of foreground."} <= set(titles)
    ((low, high, first),) = page.sliders
    slides = [title for title in titles if title.startswith("slice ")]
    assert (low, high) == (0, len(slides) - 1)
    assert slides[first] == "slice 8 of 14", "through the center of the balls"
    assert {"ann", "ben"} <= set(" ".join(page.words).split())
    assert (tmp_path / "page.html").stat().st_size < 1_500_000


def test_the_part_that_is_shown_contains_everything_that_is_marked():
    samples = ball_samples([3, 4], shape=(30, 90, 80), center=(24, 12, 60))
    scan = report(samples)
    assert scan.image.labels.sum() == samples.labels.sum()
    assert scan.picture.shape[:3] == scan.mean.shape[1:] == scan.image.labels.shape[1:]
    assert scan.picture[..., 0].size < samples.labels[0, 0].numel() / 5
    assert scan.view.center == (24, 12, 60)
    sides = [scan.view.sides(plane) for plane in range(3)]
    assert max(max(each) for each in sides) < 1.3 * min(min(each) for each in sides), "about a cube"


def test_lesions_have_a_table_and_classes_their_maps():
    info = DatasetInfo(num_classes=3, image_channels=1, spatial_dims=3, class_names=("background", "nodule", "cyst"))
    maps = ball_samples([6, 6, 6, 6], shape=(16, 50, 50), center=(8, 14, 14)).labels
    maps[:, 0] += 2 * torch.from_numpy(ellipsoid((4, 4, 4), SPACING, (16, 50, 50), (8, 38, 38))).long()
    section = report(as_samples(maps, 3), info).section()
    (table,) = [part.table for part in section.parts if part.heading == "2 lesions"]
    assert [row[:2] for row in table.rows] == [["lesion 1", "9, 15, 15"], ["lesion 2", "9, 39, 39"]]
    assert [row[2].split()[0] for row in table.rows] == ["100%", "25%"]
    assert [picture.title for picture in section.parts[0].pictures] == ["nodule.", "cyst."]


def test_nothing_and_many_slices_are_stated(tmp_path):
    section = report(ball_samples([0, 0], shape=(3, 9, 8))).section()
    assert "nothing to measure" in section.parts[-1].text
    maps = torch.zeros(1, 2, 300, 30, 30, dtype=torch.long)
    maps[:, :, 2:298, 10:20, 10:20] = 1
    section = report(as_samples(maps)).section()
    assert len(section.slides.uris) == MAX_SLIDES
    assert f"{MAX_SLIDES} of 300 slices, evenly spaced" in section.slides.caption
    assert write_page(tmp_path / "page.html", "t", "", [section]).stat().st_size < 1_500_000


@pytest.mark.parametrize("side", [20, 700])
def test_slides_are_small(side):
    picture = np.random.default_rng(0).random((side, side, 3))
    maps = np.zeros((3, side, side), np.uint8)
    maps[1:, side // 4 : side // 2, side // 4 : side // 2] = 1
    assert len(slide(picture, maps, np.full(3, 1 / 3), maps.mean(0), INFO)) < 120_000


def test_page_of_a_run_on_volumes(tmp_path):
    data, model, options = Balls(), Smaller(), SamplingOptions(n=4)
    agreement, question = Agreement(2), Question.parse("volume > 0.5 ml")
    check_questions(data, None, [question])
    result = evaluate(model, data, options=options, keep=2, on_image=agreement)
    kind, row = pick_cases(result)[0]
    case = Case(kind, row, draw_case(model, data, row, options, None, [question]))
    file = RunPage(RunFacts("volumes"), result, INFO, agreement=agreement, cases=[case]).write(tmp_path / "page.html")
    page = Page(file).check()
    assert "readings of the whole volume" in page.text
    assert "P(volume > 500 mm³) = " in page.text
    assert len(page.sliders) == 1
