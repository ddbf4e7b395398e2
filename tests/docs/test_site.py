"""The site builds without warnings, and its pages load nothing from the network."""

from __future__ import annotations

import re

import pytest

from tests.docs.blocks import ROOT

pytest.importorskip("mkdocs")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


def test_pages_load_nothing_from_the_network(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    loads = r"<(?:script|img|iframe|link)[^>]+(?:src|href)=[\"']?(https?://[^\"'> ]+)"
    loaded = {(page.name, url) for page in pages for url in re.findall(loads, page.read_text())}
    assert not loaded


def test_readme_is_the_home_page(site):
    home = (site / "index.html").read_text()
    assert "One image, several plausible segmentations" in home
    assert 'src="images/samples.png"' in home


def test_examples_and_fields_of_configs_are_shown(site):
    assert ">>>" in re.sub("&gt;", ">", (site / "api" / "core.html").read_text())
    training = (site / "api" / "training.html").read_text()
    assert "learning rate at the end of the decay" in training


def test_notebooks_are_pages_with_outputs(site):
    page = (site / "notebooks" / "first_steps.html").read_text()
    assert "data:image/png;base64" in page
    assert 'href="first_steps.ipynb"' in page
    assert (site / "notebooks" / "first_steps.ipynb").is_file()


def test_readme_fits_on_a_screen():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 60
