"""Volumes: slices, planes, surface, and a lesion that is clicked."""

import io

import numpy as np
import pytest
from PIL import Image

from tests.support.browser import visiting

pytestmark = pytest.mark.xdist_group("browser")

BENCH = "#studio-bench"


@pytest.fixture(scope="module")
def ct(browser, studio):
    """A phantom CT whose nodule was clicked."""
    with visiting(browser, studio.url) as found:
        page = found.example("Phantom CT")
        page.wait_for_selector(f"{BENCH} .armed")
        found.parameters(samples=4, evaluations=1)
        page.locator(f"{BENCH} .stage").first.click()
        found.finished()
        yield found


def test_a_clicked_lesion_is_segmented_where_it_is(ct):
    job = ct.api(f"/jobs/{ct.job()}")
    source = ct.api(f"/inputs/{job['input']}")
    [[x, y, z]] = job["parameters"]["points"]
    depth, height, width = source["shape"]

    assert abs(x - width / 2) <= 1
    assert abs(y - height / 2) <= 1
    assert z == depth // 2
    marked = """async ([job, source]) => {
      const { openCase } = await import("/static/js/case.js");
      return (await openCase(`/jobs/${job}`, source)).markedBox();
    }"""
    box = ct.page.evaluate(marked, [ct.job(), source])
    assert all(low <= at <= high for low, at, high in zip(box["low"], (z, y, x), box["high"], strict=True))


def test_slices_move_by_wheel_keys_and_slider_without_the_server(ct):
    page = ct.page

    def position() -> str:
        return str(page.locator(f"{BENCH} .slider:has([aria-label=Slice]) output").inner_text())

    start, picture = position(), ct.picture()
    ct.requests.clear()
    page.locator(f"{BENCH} .stage").first.hover()
    page.mouse.wheel(0, 100)
    assert position() != start
    assert ct.picture() != picture
    page.locator(f"{BENCH} [aria-label=Slice]").fill("3")
    assert position().startswith("4 /")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowUp")
    ct.settle()
    assert position().startswith("5 /")
    assert ct.requests == []


def test_three_planes_share_a_cursor(ct):
    page = ct.page
    page.click(f"{BENCH} .segmented >> text=Three planes")
    stages = page.locator(f"{BENCH} .stage-box:visible .stage")
    assert stages.count() == 3
    before = ct.picture(f"{BENCH} .stage-box:visible .stage >> nth=0")
    box = stages.nth(1).bounding_box()
    stages.nth(1).click(position={"x": box["width"] / 2 + 20, "y": box["height"] / 2 + 6})

    assert ct.picture(f"{BENCH} .stage-box:visible .stage >> nth=0") != before
    page.click(f"{BENCH} .segmented >> text=Slices")


def test_the_surface_is_loaded_when_asked_for(ct):
    page = ct.page
    assert not any("niivue" in url for url in ct.requests)
    page.click(f"{BENCH} .segmented >> text=Surface")
    page.wait_for_selector(f"{BENCH} [data-ready=true]")
    shot = page.locator(f"{BENCH} canvas.surface").screenshot()

    assert any("niivue" in url for url in ct.requests)
    assert colors(shot) > 200
    page.click(f"{BENCH} .segmented >> text=Slices")


def test_a_streamed_volume_looks_as_when_it_is_opened_again(ct):
    def look() -> int:
        ct.page.click(f"{BENCH} .segmented >> text=Contours")
        ct.page.click(f"{BENCH} .toolbar >> text=Fit")
        ct.page.locator(f"{BENCH} .stage").first.click()  # moves the cross there
        ct.page.locator(f"{BENCH} [aria-label=Slice]").fill("9")
        return ct.picture()

    streamed, job = look(), ct.job()
    ct.page.goto("about:blank")
    ct.open(f"#studio/{job}")
    ct.finished()
    assert look() == streamed


def colors(shot: bytes) -> int:
    """How many different colors a picture has."""
    return len(np.unique(np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).reshape(-1, 3), axis=0))
