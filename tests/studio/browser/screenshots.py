"""Pictures of the page for README and docs: `python -m tests.studio.browser.screenshots` writes them to docs/images."""

import io
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from stochseg.studio import Client
from tests.support.browser import ARGUMENTS, CHROMIUM, Visit, visiting
from tests.support.studio import Server

IMAGES = Path(__file__).resolve().parents[3] / "docs" / "images"
DESK = {"viewport": {"width": 1360, "height": 850}}
NUMBER = 13  # of a phantom that is read in two ways


def save(visit: Visit, name: str) -> None:
    """Save what a page shows."""
    visit.page.mouse.move(0, 0)
    visit.settle()
    Image.open(io.BytesIO(visit.page.screenshot())).convert("RGB").save(IMAGES / name, optimize=True)


def show_slice(browser: Browser, url: str) -> None:
    """Readings of a phantom slice, in dark colors."""
    client = Client(url)
    job = client.wait(client.submit(client.example("phantom", NUMBER)["id"], "lidc")["id"])
    with visiting(browser, url, color_scheme="dark", **DESK) as visit:
        visit.open(f"#studio/{job['id']}")
        visit.finished()
        save(visit, "studio.png")


def show_scan(browser: Browser, url: str) -> None:
    """A clicked nodule in three planes, in light colors."""
    with visiting(browser, url, color_scheme="light", **DESK) as visit:
        page = visit.example("Phantom volume")
        page.set_default_timeout(600_000)
        page.wait_for_selector("#studio-bench .armed")
        page.locator("#studio-bench .stage").first.click()
        visit.finished()
        page.click("#studio-bench .segmented >> text=Three planes")
        save(visit, "studio-volume.png")


def main() -> None:
    """Write all pictures."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        server = Server(Path(folder))
        server.wait_until_ready()
        browser = play.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        try:
            for show in (show_slice, show_scan):
                show(browser, server.url)
        finally:
            browser.close()
            server.stop()


if __name__ == "__main__":
    main()
