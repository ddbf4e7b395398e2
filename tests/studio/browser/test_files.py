"""Files in and out: drop, errors, download; jobs that are cancelled or whose server restarts."""

import io

import pytest
from PIL import Image

from stochseg.data import Phantoms
from tests.support.browser import visiting
from tests.support.oblique import write_volume
from tests.support.scans import ct
from tests.support.studio import Server

pytestmark = pytest.mark.xdist_group("browser")

BENCH = "#studio-bench"


def picture() -> bytes:
    file = io.BytesIO()
    Image.fromarray(Phantoms("test", size=128, count=3).raw(2)).save(file, "png")
    return file.getvalue()


def test_a_dropped_picture_is_segmented(visit):
    page = visit.open()
    visit.parameters(samples=3, evaluations=2)
    visit.drop("chest.png", picture(), "image/png")
    visit.finished()

    assert "chest.png" in page.locator(".current").inner_text()
    assert page.locator(f"{BENCH} button.frame").count() == 3
    with page.expect_download() as download:
        page.click(".files a:has-text('Most probable class')")
    assert Image.open(download.value.path()).size == (128, 128)


def test_samples_are_drawn_as_the_chosen_rater(visit):
    page = visit.open()
    assert page.locator("#rater").is_hidden()  # lidc does not know its raters apart
    page.select_option("#model", "tiny-raters")
    assert page.locator("#rater option").all_inner_texts() == ["Anyone", "ana", "ben"]
    page.select_option("#rater", "ben")
    visit.parameters(samples=2, evaluations=1)
    visit.drop("chest.png", picture(), "image/png")
    visit.finished()

    assert visit.api(f"/jobs/{visit.job()}")["parameters"]["rater"] == "ben"
    assert page.locator(f"{BENCH} .readings p").inner_text() == "Drawn as ben would draw"
    page.wait_for_selector(".recent button:has-text('tiny-raters as ben')")
    page.select_option("#rater", "")
    page.reload()
    visit.finished()
    assert page.locator("#rater").input_value() == "ben"
    page.select_option("#model", "lidc")
    assert page.locator("#rater").is_hidden()


def test_millimeters_per_pixel_turn_pixels_into_millimeters(visit):
    page = visit.open()
    visit.parameters(samples=2, evaluations=1)
    visit.drop("chest.png", picture(), "image/png")
    visit.finished()
    first = visit.job()
    assert visit.api(f"/jobs/{first}/result")["spacing"] is None
    page.fill(".field.inline input", "0.5")
    page.locator(".field.inline input").blur()
    page.wait_for_function("(job) => !location.hash.includes(job)", arg=first)
    visit.finished()

    assert visit.api(f"/jobs/{visit.job()}/result")["spacing"] == [0.5, 0.5]
    assert page.locator(".question .unit").first.inner_text() == "mm"


def test_a_file_that_is_no_image_is_explained(visit):
    page = visit.open()
    visit.drop("notes.txt", b"not an image")
    text = page.locator(".toast").inner_text()

    assert "NIfTI" in text
    assert "notes.txt" in text
    assert visit.problems[:1]  # the browser notes the refused request
    visit.problems.clear()
    page.click(".toast [aria-label=Dismiss]")
    assert page.locator(".toast").count() == 0


def test_a_refused_parameter_shows_what_is_expected(visit):
    page = visit.example("Phantom slice")
    visit.finished()
    visit.parameters(samples=100_000)
    page.click("#setup .primary")

    assert "256" in page.locator(".toast").inner_text()
    visit.problems.clear()


def test_a_job_can_be_cancelled(visit):
    page = visit.open()
    visit.parameters(samples=256, evaluations=250)
    page.click("#setup .chip >> nth=0")
    page.wait_for_selector("#setup progress")
    page.click("#setup .actions .secondary")
    page.wait_for_selector("#setup .primary:enabled")

    assert visit.api(f"/jobs/{visit.job()}")["state"] == "cancelled"


@pytest.fixture
def fragile(tmp_path):
    """A server of its own, to be killed."""
    server = Server(tmp_path)
    server.wait_until_ready()
    yield server
    server.stop()


def test_the_page_survives_a_restarted_server(browser, fragile):
    with visiting(browser, fragile.url) as visit:
        page = visit.open()
        visit.parameters(samples=24, evaluations=10)
        page.click("#setup .chip >> nth=0")
        page.wait_for_selector(f"{BENCH} button.frame")
        fragile.kill()
        page.wait_for_selector("#connection:not([hidden])")
        fragile.start()
        visit.finished()

        assert page.locator("#connection").is_hidden()
        assert page.locator(f"{BENCH} button.frame").count() == 24
        assert all("ERR_" in problem for problem in visit.problems)  # refused connections, and nothing else
        visit.problems.clear()


def test_a_series_becomes_a_segmentation_object(visit, tmp_path):
    pydicom = pytest.importorskip("pydicom")
    pytest.importorskip("highdicom")
    series = write_volume(tmp_path / "series", ct(size=(12, 72, 72), center=(6, 36, 36)))
    page = visit.open()
    visit.drop_from_desktop(series)
    page.wait_for_selector(f"{BENCH} .armed .hint")
    assert page.locator(".current strong").inner_text() == "series"
    assert page.locator("#model").input_value() == "lidc-3d"  # all of the lesion, not one slice of it
    visit.parameters(samples=2, evaluations=1)
    page.locator(f"{BENCH} .stage").first.click()
    visit.finished()

    with page.expect_download() as download:
        page.locator(".files a:has-text('DICOM SEG')").first.click()
    found = pydicom.dcmread(download.value.path())
    assert found.Modality == "SEG"
    assert (
        found.ReferencedSeriesSequence[0].SeriesInstanceUID == pydicom.dcmread(next(series.iterdir())).SeriesInstanceUID
    )
