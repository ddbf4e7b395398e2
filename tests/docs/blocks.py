"""Code blocks of Markdown pages, and the comments that say how to test them.

Comments in front of a block:

    <!-- prepare: my-data, runs/mine -->   make these files first (anywhere on the page)
    <!-- not run: reason -->               the next block is only parsed
    <!-- test with: OLD -> NEW -->         the next block runs with this replacement, to be fast
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

_PART = re.compile(
    r"<!-- (?P<command>prepare|not run|test with): (?P<argument>.+?) -->"
    r"|^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block. runs: whether the page allows to run it; line: of the page, for messages."""

    language: str
    code: str
    runs: bool
    line: int


@dataclass(frozen=True)
class Page:
    """needs: names of files and folders to make before the first block."""

    path: Path
    needs: tuple[str, ...]
    blocks: tuple[Block, ...]

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()


def read_page(path: Path) -> Page:
    text = path.read_text()
    needs: list[str] = []
    blocks = []
    runs, replacement = True, None
    for part in _PART.finditer(text):
        if part["command"] == "prepare":
            needs += [name.strip() for name in part["argument"].split(",")]
        elif part["command"] == "not run":
            runs = False
        elif part["command"] == "test with":
            replacement = part["argument"].split(" -> ", 1)
        else:
            code = dedent(part["code"])
            if replacement is not None:
                assert replacement[0] in code, f"{path}: no {replacement[0]!r} in the block to replace"
                code = code.replace(*replacement)
            blocks.append(Block(part["language"], code, runs, text.count("\n", 0, part.start()) + 1))
            runs, replacement = True, None
    return Page(path, tuple(needs), tuple(blocks))


def shell_lines(code: str) -> list[str]:
    """Commands of a block, without comments; a backslash continues a line."""
    joined = code.replace("\\\n", " ")
    return [line for line in (re.sub(r"(^|\s)#.*$", "", text).strip() for text in joined.splitlines()) if line]
