"""One server and one browser for all tests of the page."""

import sys

import pytest
from PIL import Image

pytest.importorskip("playwright", reason="the tests of the page need playwright; pip install playwright")
pytest.importorskip("fastapi", reason="the studio needs the extra studio")

from playwright.sync_api import sync_playwright

from stochseg import cli
from stochseg.data import Phantoms
from stochseg.training import train
from tests.support.browser import ARGUMENTS, CHROMIUM, visiting
from tests.support.studio import Server


def pytest_collection_modifyitems(items):
    """Skip these tests where there is no browser."""
    for item in items:
        if CHROMIUM is None and "tests/studio/browser" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason="no Chromium here; install the package chromium"))


def command(*arguments: object) -> None:
    """Run the program in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["stochseg", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
    assert not end.value.code


@pytest.fixture(scope="package")
def runs(tmp_path_factory, tiny_run, tiny_models):
    """A folder with an evaluated run and with predictions."""
    folder = tmp_path_factory.mktemp("runs")
    train(tiny_run(), folder / "mine", device="cpu")
    command("evaluate", folder / "mine", "-n", 4, "--limit", 3)
    Image.fromarray(Phantoms("test", size=32, count=1).raw(0)).save(folder / "image.png")
    command("predict", tiny_models[0], folder / "image.png", "-n", 3, "--out", folder / "predicted")
    return folder


@pytest.fixture(scope="package")
def studio(tmp_path_factory, runs, tiny_models):
    """A running server with the bundled models and tiny ones of images."""
    images = ("--model", tiny_models[0], "--model", tiny_models[2])
    server = Server(tmp_path_factory.mktemp("studio"), "--runs", runs, *images)
    server.wait_until_ready()
    yield server
    server.stop()


@pytest.fixture(scope="package")
def browser():
    """A running browser."""
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield started
        started.close()


@pytest.fixture
def visit(browser, studio):
    """A new window; the test fails if its console has errors."""
    with visiting(browser, studio.url) as found:
        yield found
