"""Light and dark, narrow screens, accessibility."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.support.browser import visiting

pytestmark = pytest.mark.xdist_group("browser")

WIDTH = "() => document.documentElement.scrollWidth"
BACKGROUND = "() => getComputedStyle(document.querySelector('.top')).backgroundColor"


def serious(page) -> list[str]:
    """Serious and critical violations that axe-core finds."""
    found = Axe().run(page).response["violations"]
    return [
        f"{rule['id']}: {node['target']}"
        for rule in found
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]


def test_colors_follow_the_system_until_the_user_chooses(browser, studio):
    with visiting(browser, studio.url, color_scheme="dark") as visit:
        page = visit.open()
        dark = page.evaluate(BACKGROUND)
        page.click("#theme")
        assert page.evaluate(BACKGROUND) != dark
        visit.open()
        assert page.evaluate(BACKGROUND) == "rgb(255, 255, 255)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_violation_of_accessibility(browser, studio, scheme):
    with visiting(browser, studio.url, color_scheme=scheme) as visit:
        page = visit.open()
        assert serious(page) == []
        visit.parameters(samples=3, evaluations=1)
        page.click("#setup .chip >> nth=0")
        visit.finished()
        page.click("#studio-bench summary:has-text('Window')")
        assert serious(page) == []
        for tab in ("runs", "compare"):
            page.click(f"#tab-{tab}")
            assert serious(page) == []


def test_a_phone_shows_everything_in_one_column(browser, studio):
    with visiting(browser, studio.url, viewport={"width": 390, "height": 844}, has_touch=True) as visit:
        page = visit.open()
        assert page.evaluate(WIDTH) <= 390
        visit.parameters(samples=3, evaluations=1)
        page.tap("#setup .chip >> nth=0")
        visit.finished()
        assert page.evaluate(WIDTH) <= 390
        for place in (".stage", ".strip", ".card", ".chart svg", ".files a"):
            box = page.locator(f"#studio-bench {place}").first.bounding_box()
            assert box["width"] > 40
            assert box["x"] >= 0
            assert box["x"] + min(box["width"], 390) <= 391


def test_tabs_and_help_work_by_keyboard(visit):
    page = visit.open()
    page.focus("#tab-studio")
    page.keyboard.press("ArrowRight")
    assert page.locator("#panel-runs").is_visible()
    assert page.evaluate("() => document.activeElement.id") == "tab-runs"
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#help").is_hidden()
