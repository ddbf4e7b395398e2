"""From an example to its readings: streaming, views, selection, keyboard."""

import math
import re

import pytest

from tests.support.browser import visiting

pytestmark = pytest.mark.xdist_group("browser")

BENCH = "#studio-bench"


def percent(part: float) -> str:
    """A probability as the page writes it."""
    if 0 < part < 0.01 or 0.99 < part < 1:
        return "<1%" if part < 0.5 else ">99%"
    return f"{math.floor(100 * part + 0.5)}%"


@pytest.fixture(scope="module")
def opened(browser, studio):
    """A phantom slice with its readings, in one window for all tests."""
    with visiting(browser, studio.url) as found:
        found.example("Phantom slice")
        found.finished()
        yield found


@pytest.fixture
def slice_(opened):
    """That window, as it was at first."""
    opened.page.evaluate("document.activeElement.blur()")
    for key in ("Escape", "3", "0"):
        opened.page.keyboard.press(key)
    yield opened
    assert opened.problems == []


def test_the_page_opens_with_examples_and_models(visit):
    page = visit.open()

    assert page.title() == "stochseg studio"
    assert page.locator("#model option").count() >= 2
    assert page.locator(".welcome .chip").count() >= 2
    assert page.locator("#setup .primary").is_disabled()


def test_samples_stream_in_before_the_result(visit):
    visit.open()
    visit.parameters(samples=64)
    page = visit.page
    page.click("#setup .chip >> nth=0")

    # Asked at once: between two questions the rest may have arrived.
    page.wait_for_function(
        "(bench) => [`${bench} button.frame`, '.frame.waiting'].every((each) => document.querySelector(each))"
        " && !document.querySelector(`${bench} .card`)",
        arg=BENCH,
    )
    visit.finished()
    assert page.locator(f"{BENCH} button.frame").count() == 64
    assert page.locator(".frame.waiting").count() == 0


def test_cards_show_the_probabilities_of_the_readings(slice_):
    result = slice_.api(f"/jobs/{slice_.job()}/result")
    shown = [text.strip() for text in slice_.page.locator(f"{BENCH} .card-value").all_inner_texts()]

    assert shown == [percent(reading["probability"]) for reading in result["hypotheses"]]


def test_arrow_keys_flip_through_samples_without_the_server(slice_):
    page = slice_.page
    page.keyboard.press("ArrowRight")
    assert page.locator(f"{BENCH} .caption").inner_text().startswith("Sample 1 of 16")
    slice_.requests.clear()
    pictures = set()
    for _ in range(16):
        page.keyboard.press("ArrowRight")
        pictures.add(slice_.picture())

    assert page.locator(f"{BENCH} .caption").inner_text().startswith("Sample 1 of 16")
    labels = {tuple(sample["measures"].values()) for sample in slice_.api(f"/jobs/{slice_.job()}/result")["samples"]}
    assert len(pictures) >= len(labels) - 1
    assert [url for url in slice_.requests if "/samples" in url] == []


def test_every_view_draws_another_picture_without_the_server(slice_):
    slice_.requests.clear()
    pictures = []
    for key in "12345":
        slice_.page.keyboard.press(key)
        pictures.append(slice_.picture())

    assert len(set(pictures)) == 5
    assert slice_.requests == []


def test_the_threshold_moves_the_outline(slice_):
    page = slice_.page
    page.click(f"{BENCH} .segmented >> text=Probability")
    before = slice_.picture()
    page.locator(f"{BENCH} [aria-label=Threshold]").fill("0.9")

    assert slice_.picture() != before
    assert page.locator(f"{BENCH} .slider:has([aria-label=Threshold]) output").inner_text() == "90%"


def test_the_image_stays_where_it_is_between_views(slice_):
    page = slice_.page
    places = []
    for key in "345":
        page.keyboard.press(key)
        slice_.settle()
        places.append(page.locator(f"{BENCH} .stage").first.bounding_box())
    assert places[0] == places[1] == places[2]


def test_bars_have_the_colors_of_the_readings(slice_):
    readings = slice_.api(f"/jobs/{slice_.job()}/result")["hypotheses"]
    found = slice_.page.evaluate(
        """() => {
          const color = (e) => e.style.getPropertyValue("--reading");
          const sums = {};
          for (const bar of document.querySelectorAll("#studio-bench .chart .bar"))
            sums[color(bar)] = (sums[color(bar)] ?? 0) + Number(bar.getAttribute("height"));
          return [[...document.querySelectorAll("#studio-bench .card")].map(color), sums];
        }"""
    )
    colors, heights = found
    assert set(heights) == set(colors)
    total = sum(heights.values())
    for color, reading in zip(colors, readings, strict=True):
        assert heights[color] / total == pytest.approx(reading["probability"], abs=1e-6)


def test_a_card_selects_its_samples(slice_):
    page = slice_.page
    readings = slice_.api(f"/jobs/{slice_.job()}/result")["hypotheses"]
    assert len(readings) > 1
    page.click(f"{BENCH} .card >> nth=1")

    bright = page.locator(f"{BENCH} .strip .frame:not(.dimmed)")
    assert bright.count() == len(readings[1]["members"])
    page.keyboard.press("Escape")
    assert page.locator(f"{BENCH} .strip .frame.dimmed").count() == 0


def test_a_brushed_range_selects_samples_and_shows_their_probability(slice_):
    page = slice_.page
    result = slice_.api(f"/jobs/{slice_.job()}/result")
    box = page.locator(f"{BENCH} .chart svg").bounding_box()
    y = box["y"] + box["height"] / 3
    page.mouse.move(box["x"] + 0.5 * box["width"], y)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.99 * box["width"], y, steps=4)
    page.mouse.up()
    slice_.settle()

    low, high = (
        float(page.locator(f"{BENCH} [aria-label='{name}']").input_value()) for name in ("Limit", "Upper limit")
    )
    key = page.locator(f"{BENCH} select[aria-label=Measurement]").input_value()
    inside = [sample["weight"] for sample in result["samples"] if low <= sample["measures"][key] <= high]
    assert page.locator(f"{BENCH} .strip .frame:not(.dimmed)").count() == len(inside)
    assert page.locator(f"{BENCH} .answer").inner_text() == percent(sum(inside))
    page.click(f"{BENCH} .question .link")
    assert page.locator(f"{BENCH} .strip .frame.dimmed").count() == 0


def test_a_typed_question_is_answered(slice_):
    page = slice_.page
    result = slice_.api(f"/jobs/{slice_.job()}/result")
    key = next(measure["key"] for measure in result["measures"] if measure["title"] == "Longest diameter")
    for limit in (6, 22):
        page.fill(f"{BENCH} [aria-label=Limit]", str(limit))
        above = sum(sample["weight"] for sample in result["samples"] if sample["measures"][key] > limit)
        assert page.locator(f"{BENCH} .answer").inner_text() == percent(above)
    page.select_option(f"{BENCH} [aria-label=Comparison]", "below")
    assert page.locator(f"{BENCH} .answer").inner_text() == percent(1 - above)


def test_raters_and_their_scores_are_shown(slice_):
    page = slice_.page
    scores = slice_.api(f"/jobs/{slice_.job()}/result")["scores"]
    before = slice_.picture()
    page.keyboard.press("r")

    assert slice_.picture() != before
    text = page.locator(f"{BENCH} .scores").inner_text()
    assert f"{scores['ged']:.3f}" in text
    assert f"{scores['hm_iou']:.3f}" in text


def test_wheel_drag_and_double_click_zoom_pan_and_fit(slice_):
    page = slice_.page
    start = slice_.picture()
    box = page.locator(f"{BENCH} .stage").first.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.wheel(0, -300)
    zoomed = slice_.picture()
    page.mouse.down()
    page.mouse.move(x + 60, y + 30, steps=3)
    page.mouse.up()
    moved = slice_.picture()
    page.mouse.dblclick(x, y)

    assert len({start, zoomed, moved}) == 3
    assert slice_.picture() == start


def test_a_drag_with_shift_changes_the_window(slice_):
    page = slice_.page
    before = slice_.picture()
    box = page.locator(f"{BENCH} .stage").first.bounding_box()
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 200, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 260, box["y"] + 240, steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")

    assert slice_.picture() != before
    page.click(f"{BENCH} summary:has-text('Window')")
    page.click(f"{BENCH} .presets button:has-text('Default')")
    assert slice_.picture() == before


def test_a_job_opens_again_from_its_address_and_from_the_list(slice_):
    page = slice_.page
    job = slice_.job()
    cards = page.locator(f"{BENCH} .card-value").all_inner_texts()
    slice_.open()
    page.click(".recent button >> nth=0")
    slice_.finished()
    assert page.locator(f"{BENCH} .card-value").all_inner_texts() == cards
    slice_.page.goto("about:blank")
    slice_.open(f"#studio/{job}")
    slice_.finished()
    assert page.locator(f"{BENCH} .card-value").all_inner_texts() == cards
    assert re.fullmatch(r"[0-9a-f]+", job)
