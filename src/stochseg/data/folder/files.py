"""The files of a folder data set, found by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

from stochseg.data.folder.config import DESCRIPTION
from stochseg.data.readers.trees import Tree
from stochseg.errors import UserError
from stochseg.files import is_junk

SPLITS = "splits.json"
INIT = "stochseg data init"
"""The command that calls `init_folder`."""
_EXTENSION = re.compile(r"(\.nii\.gz|\.[a-z]\w*)$", re.IGNORECASE)
"""A DICOM name such as 1.2.840 has none."""


class FolderFiles:
    """Images by ID, and label maps by rater and ID; the values are names in `tree`."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.images: dict[str, str] = {}
        self.labels: dict[str, dict[str, str]] = {}
        for name in tree.names:
            if not name.startswith(self.top) or is_junk(name.split("/")[-1]):
                continue
            match name.removeprefix(self.top).split("/"):
                case ["images", file]:
                    self._add(self.images, file, name)
                case ["labels", rater, file]:
                    self._add(self.labels.setdefault(rater, {}), file, name)
                case ["labels", file]:
                    raise self._misplaced(name, f"labels/RATER/{file}")
                case ["images", *_, file]:
                    raise self._misplaced(name, f"images/{file}")
                case ["labels", rater, *_, file]:
                    raise self._misplaced(name, f"labels/{rater}/{file}")

    @cached_property
    def top(self) -> str:
        """Prefix of all names: the data set may be in a folder of a zip."""
        if self.tree.path.is_dir():
            return ""
        found = [name for name in self.tree.names if name.split("/")[-1] == DESCRIPTION]
        return min(found, key=len, default="").removesuffix(DESCRIPTION)

    def _add(self, files: dict[str, str], file: str, name: str) -> None:
        id = _EXTENSION.sub("", file)
        if id in files:
            raise UserError(f"{self.tree.where(name)} and {files[id]} have the same ID {id!r}; remove or rename one")
        files[id] = name

    def _misplaced(self, name: str, expected: str) -> UserError:
        return UserError(f"{self.tree.where(name)}: expected it at {expected}; move it there")

    def text(self, file: str, hint: str) -> str:
        """Read dataset.yaml or splits.json; `hint` is for the error if it is missing."""
        if self.top + file not in self.tree.names:
            raise UserError(f"{self.where(file)} is missing; {hint}; write a first one with: {INIT} {self.tree.path}")
        try:
            return self.tree.read(self.top + file).decode()
        except UnicodeDecodeError as error:
            raise UserError(f"{self.where(file)} is not text in UTF-8: {error}") from None

    def where(self, file: str) -> str:
        """Return the place of a file for error messages."""
        return self.tree.where(self.top + file)

    def check(self, ids: Iterable[str]) -> None:
        """Raise `UserError` unless all these images exist and have a label map."""
        if not self.labels:
            raise UserError(f"{self.where('labels')}: expected one folder of label maps per rater, found none")
        for id in ids:
            if id not in self.images:
                raise UserError(f"image {id!r} of {SPLITS} is missing in {self.where('images')}")
            if not self.raters(id):
                raise UserError(
                    f"image {id!r} has no label map in {self.where('labels')}/*/{id}.*; "
                    f"add one, or remove the image from images/ and {SPLITS}"
                )

    def raters(self, id: str) -> dict[str, str]:
        """Return the label maps of an image by rater."""
        return {rater: files[id] for rater, files in self.labels.items() if id in files}
