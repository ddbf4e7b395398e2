"""Metadata that depends on where the repository is hosted: project URLs, and a README whose links are absolute.

No address is written into the source. The variable STOCHSEG_REPOSITORY states it, as the release workflow does, and the
wheel that is built from a source distribution has that one's metadata. Without one, links to files of the repository
become plain text, because a package index cannot resolve them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

VARIABLE = "STOCHSEG_REPOSITORY"
PAPER = "https://doi.org/10.1109/ICCV51070.2023.00109"
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?!https?:|mailto:|#)(?P<path>[^)\s]+)\)")
"""A Markdown link or picture with a relative path."""


class Metadata(MetadataHookInterface):
    """Set the fields `readme` and `urls`."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in the dynamic fields."""
        root = Path(self.root)
        repository, version = find_repository(), read_version(root)
        text = (root / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": index_readme(text, repository, version)}
        metadata["urls"] = project_urls(repository, version)


def find_repository() -> str | None:
    """Address of the repository, from the environment."""
    stated = os.environ.get(VARIABLE, "").rstrip("/")
    if stated and not stated.startswith("https://"):
        raise ValueError(f"{VARIABLE}: expected an address such as https://github.com/OWNER/NAME, got {stated!r}")
    return stated or None


def read_version(root: Path) -> str:
    """The version, as the package states it."""
    text = (root / "src/stochseg/_version.py").read_text(encoding="utf-8")
    found = re.search(r'__version__ = "(.+)"', text)
    if found is None:
        raise ValueError("src/stochseg/_version.py: expected __version__")
    return found[1]


def project_urls(repository: str | None, version: str) -> dict[str, str]:
    """Links next to the package on an index."""
    if repository is None:
        return {"Paper": PAPER}
    files = f"{repository}/blob/v{version}"
    return {
        "Repository": repository,
        "Documentation": f"{files}/docs/guide/install.md",
        "Changelog": f"{files}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
        "Paper": PAPER,
    }


def index_readme(text: str, repository: str | None, version: str) -> str:
    """The README as a package index shows it: absolute links, and the install by name."""

    def absolute(found: re.Match[str]) -> str:
        picture, label, path = found["picture"], found["text"], found["path"]
        if repository is None:
            return "" if picture else label
        return f"{picture}[{label}]({repository}/{'raw' if picture else 'blob'}/v{version}/{path})"

    text = re.sub(r"pip install -e '\.(\[[^\]]+\])'", r"pip install 'stochseg\1'", text)
    return LINK.sub(absolute, re.sub(r"pip install -e \. ", "pip install stochseg ", text))
