"""The tabs of runs and of comparisons."""

import pytest

from tests.support.browser import Visit

pytestmark = pytest.mark.xdist_group("browser")

BENCH = "#runs-bench"


def test_a_case_of_a_run_opens_from_its_table(visit: Visit):
    page = visit.open("#runs")
    page.click(".run:has-text('mine')")
    page.wait_for_selector("table.cases")
    scores = [float(text) for text in page.locator("table.cases tbody tr td:nth-child(2)").all_inner_texts()]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert "GED" in page.locator("#runs-detail table").first.inner_text()
    page.click("table.cases .link >> nth=0")

    page.wait_for_selector(f"{BENCH} .card")
    assert page.locator(f"{BENCH} button.frame").count() == 4
    before = visit.picture(f"{BENCH} .stage")
    page.keyboard.press("4")
    assert visit.picture(f"{BENCH} .stage") != before


def test_predictions_open_with_their_samples(visit: Visit):
    page = visit.open("#runs")
    page.click(".run:has-text('predicted')")
    page.click("table.cases .link >> nth=0")

    page.wait_for_selector(f"{BENCH} .card")
    assert page.locator(f"{BENCH} button.frame").count() == 3


def test_models_are_compared_side_by_side(visit: Visit):
    page = visit.open("#compare")
    page.select_option("#compare-source", label="Example: Phantom slice")
    chosen = page.locator("#compare-models input:checked")
    assert chosen.evaluate_all("(boxes) => boxes.map(({ value }) => value)") == ["lidc", "tiny"]
    for model, why in (("papila", "for color images; this one is gray"), ("lidc-3d", "for volumes")):
        assert page.locator(f"#compare-models input[value='{model}']").is_disabled()
        assert why in page.locator(f"#compare-models label:has(input[value='{model}'])").inner_text()
    page.click("#compare-models .primary")
    page.wait_for_function("() => document.querySelectorAll('.tile .fact').length >= 6")

    assert page.locator(".tile figcaption").count() == 2
    assert visit.picture(".tile:nth-child(1) .stage") != visit.picture(".tile:nth-child(2) .stage")


def test_growth_between_two_results(visit: Visit):
    page = visit.open()
    jobs = [""]
    for _ in range(2):
        page.click("#setup .chip:has-text('Phantom slice')")
        page.wait_for_function("(job) => (location.hash.split('/')[1] ?? '') !== job", arg=jobs[-1])
        visit.finished()
        jobs.append(visit.job())
    page.click("#tab-compare")
    page.wait_for_selector(f"#growth-before option[value='{jobs[2]}']", state="attached")
    for place, job in (("#growth-before", jobs[1]), ("#growth-after", jobs[2])):
        page.select_option(place, job)
    page.click("#compare-growth .primary")
    page.wait_for_selector(".growth .statement")

    assert page.locator(".tile").count() == 2
    chances = page.locator(".growth .fact-value").all_inner_texts()
    assert len(chances) >= 3
    assert all("%" in chance for chance in chances)


def test_a_phantom_and_its_later_scan_have_grown(visit: Visit):
    page = visit.open("#compare")
    page.click("text=Try it with two phantom scans")
    page.wait_for_selector(".growth .statement")

    any_growth = page.locator(".growth .fact-value").first.inner_text()
    assert int(any_growth.strip("<>%")) > 50
    sizes = page.locator(".tile .fact:has-text('Longest diameter') .fact-value").all_inner_texts()
    before, after = (float(size.split()[0]) for size in sizes)
    assert after > before
