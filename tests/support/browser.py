"""The studio in a real browser: windows that note what goes wrong in them."""

import base64
import re
import shutil
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = ("--no-sandbox", "--enable-unsafe-swiftshader")
EXPECTED = re.compile("GPU stall|Automatic fallback to software WebGL")
"""Messages of the graphics driver, which are not about the page."""
DROP = """async ([name, type, content]) => {
  const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
  const data = new DataTransfer();
  data.items.add(new File([bytes], name, { type }));
  window.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
}"""


class Visit:
    """A page and what went wrong in it."""

    def __init__(self, page: Page, url: str):
        self.page, self.url = page, url
        self.problems: list[str] = []
        self.requests: list[str] = []
        page.set_default_timeout(180_000)  # a shared machine can be slow
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def _hear(self, message) -> None:
        if message.type in ("error", "warning") and not EXPECTED.search(message.text):
            self.problems.append(message.text)

    def open(self, place: str = "") -> Page:
        """Open the page and wait until it is ready."""
        self.page.goto(self.url + "/" + place)
        self.page.wait_for_selector("html[data-ready]")
        return self.page

    def example(self, title: str) -> Page:
        """Open the page and choose an example."""
        self.open()
        self.page.click(f"#setup .chip:has-text('{title}')")
        return self.page

    def parameters(self, **values: int) -> None:
        """Set samples, evaluations or seed."""
        for name, value in values.items():
            self.page.fill(f"#{name}", str(value))

    def drop(self, name: str, content: bytes, kind: str = "") -> None:
        """Drop a file on the page."""
        self.page.evaluate(DROP, [name, kind, base64.b64encode(content).decode()])

    def drop_from_desktop(self, *paths: Path) -> None:
        """Drop files or folders that are on disk, as the browser receives them from the desktop."""
        session = self.page.context.new_cdp_session(self.page)
        data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            session.send("Input.dispatchDragEvent", {"type": kind, "x": 600, "y": 400, "data": data})

    def finished(self) -> None:
        """Wait for the readings."""
        self.page.wait_for_selector("#studio-bench .card")
        self.settle()

    def settle(self) -> None:
        """Wait until what was changed is drawn."""
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def picture(self, place: str = "#studio-bench .stage") -> int:
        """A number that changes with the pixels of a canvas."""
        self.settle()
        return hash(self.page.locator(place).first.evaluate("(canvas) => canvas.toDataURL()"))

    def job(self) -> str:
        """The id of the job that is shown."""
        return str(self.page.evaluate("() => location.hash.split('/')[1]"))

    def api(self, path: str):
        """An answer of the server to the page."""
        return self.page.evaluate("async (path) => (await fetch('/api/v1' + path)).json()", path)


@contextmanager
def visiting(browser: Browser, url: str, **options):
    """A visit in a window of its own; errors of its console fail the test."""
    context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
    try:
        found = Visit(context.new_page(), url)
        yield found
        assert found.problems == []
    finally:
        context.close()
