"""The distributions: what is in them, and metadata that a package index can show."""

from __future__ import annotations

import email
import importlib.util
import re
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from stochseg import __version__

wheels = pytest.importorskip("hatchling.builders.wheel")
sources = pytest.importorskip("hatchling.builders.sdist")
ROOT = Path(__file__).resolve().parents[1]
ADDRESS = "https://code.example/group/stochseg"


def build(builder, root, folder):
    return Path(next(builder(str(root)).build(directory=str(folder), versions=["standard"])))


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The tree without its weights: these take seconds to compress."""
    root = tmp_path_factory.mktemp("tree") / "stochseg"
    root.mkdir()
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"):
        shutil.copy(ROOT / name, root)
    shutil.copy(ROOT / "constraints-cpu.txt", root)
    shutil.copytree(ROOT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__", "niivue.umd.js"))
    for weights in root.rglob("*.safetensors"):
        weights.write_bytes(b"")
    return root


@pytest.fixture(scope="module")
def wheel(copy, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STOCHSEG_REPOSITORY", ADDRESS + "/")
        return zipfile.ZipFile(build(wheels.WheelBuilder, copy, tmp_path_factory.mktemp("wheel")))


def metadata(archive):
    return email.message_from_bytes(archive.read(f"stochseg-{__version__}.dist-info/METADATA"))


def test_wheel_has_page_weights_and_licenses_but_no_tests(wheel):
    names = set(wheel.namelist())
    inside = ("py.typed", "studio/static/index.html", "models/shipped/lidc/model.safetensors", "models/shipped/lidc.md")
    assert {f"stochseg/{name}" for name in (*inside, "reports/templates/page.html")} <= names
    assert {Path(name).name for name in names if "/licenses/" in name} == {
        "LICENSE",
        "niivue.LICENSE",
        "niivue.DEPENDENCIES.LICENSE",
    }
    assert {name.partition("/")[0] for name in names} == {"stochseg", f"stochseg-{__version__}.dist-info"}


def test_links_of_the_description_are_absolute(wheel):
    text = metadata(wheel).get_payload()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert len(links) > 20
    assert all(link.startswith("https://") for link in links)
    assert "![The studio" in text
    assert f"({ADDRESS}/raw/v{__version__}/docs/images/studio.png)" in text
    assert f"[first steps]({ADDRESS}/blob/v{__version__}/docs/notebooks/first_steps.ipynb)" in text
    assert "pip install stochseg " in text
    assert "pip install 'stochseg[studio]'" in text


def test_linked_files_exist(wheel):
    paths = re.findall(rf"\]\({ADDRESS}/(?:raw|blob)/v{__version__}/([^)#]+)", metadata(wheel).get_payload())
    assert paths
    assert not [path for path in paths if not (ROOT / path).is_file()]


def test_project_urls_are_those_of_the_stated_repository(wheel):
    urls = dict(line.split(", ") for line in metadata(wheel).get_all("Project-URL"))
    assert urls["Repository"] == ADDRESS
    assert urls["Issues"] == f"{ADDRESS}/issues"
    assert all(url.startswith(ADDRESS) for name, url in urls.items() if name != "Paper")


def test_extra_all_has_every_extra_of_users(wheel):
    needs = metadata(wheel).get_all("Requires-Dist")
    of = {
        extra: {need.partition(";")[0] for need in needs if need.endswith(f"extra == '{extra}'")}
        for extra in metadata(wheel).get_all("Provides-Extra")
    }
    users = of.keys() - {"all", "dev", "docs"}
    assert of["all"] == set().union(*(of[extra] for extra in users))


def test_source_distribution_builds_the_same_metadata(copy, tmp_path, monkeypatch, wheel):
    monkeypatch.setenv("STOCHSEG_REPOSITORY", ADDRESS)
    with tarfile.open(build(sources.SdistBuilder, copy, tmp_path)) as archive:
        names = archive.getnames()
        archive.extractall(tmp_path, filter="data")
    assert not [name for name in names if "/tests/" in name or "/benchmarks/" in name]
    monkeypatch.delenv("STOCHSEG_REPOSITORY")  # whoever builds from it need not know
    again = build(wheels.WheelBuilder, tmp_path / f"stochseg-{__version__}", tmp_path)
    assert metadata(zipfile.ZipFile(again)).as_bytes() == metadata(wheel).as_bytes()


def test_without_a_repository_no_link_is_broken_and_no_address_invented():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.index_readme("![a](x.png) [b](docs/y.md#z) [c](https://d.example) [e](#f)", None, "1")
    assert text == " b [c](https://d.example) [e](#f)"
    assert list(module.project_urls(None, "1")) == ["Paper"]


def test_a_repository_must_be_an_address(monkeypatch):
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("STOCHSEG_REPOSITORY", "git@code.example:x/y")
    with pytest.raises(ValueError, match="expected an address"):
        module.find_repository()
