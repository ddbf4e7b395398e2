"""Pages name files that exist; the page on the architecture names the layers that import-linter checks."""

from __future__ import annotations

import re

import pytest

from tests.docs.blocks import PAGES, ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
NAMED = re.compile(r"(?<![\w/.])((?:src|tests|benchmarks|docs)/[\w/]+(?:\.py|/)(?=[`\s;,:]))")
FILES = sorted(
    {(page.relative_to(ROOT).as_posix(), file) for page in PAGES for file in NAMED.findall(page.read_text())}
)
SOURCE = ROOT / "src" / "stochseg"


def blocks() -> list[str]:
    return re.findall(r"```\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("page", "file"), FILES)
def test_named_file_exists(page, file):
    assert (ROOT / file).exists()


def test_layers_are_those_of_the_import_linter():
    contract = (ROOT / "pyproject.toml").read_text().split("layers = [\n")[1].split("]")[0]
    layers = re.findall(r'"(.+)"', contract)
    assert any(block.splitlines() == layers for block in blocks())


def test_tree_lists_every_package_and_module_of_the_top():
    tree = next(block for block in blocks() if block.startswith("src/stochseg/"))
    packages = [f"{path.parent.name}/" for path in SOURCE.glob("*/__init__.py")]
    modules = [path.name for path in SOURCE.glob("[a-z]*.py")]
    missing = [name for name in packages + modules if not re.search(rf"(?<!\S){re.escape(name)}(?!\S)", tree)]
    assert not missing
