"""Files of predictions by case and member, each with the image that it is about."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stochseg.data.readers import arrays, itk, nifti
from stochseg.data.readers.pictures import SUFFIXES as PICTURES
from stochseg.errors import UserError
from stochseg.inference.gathering.options import GatherOptions
from stochseg.inference.result_folder import is_result
from stochseg.inference.sources import Found, Source, find_sources, stem

SUFFIXES = (*nifti.SUFFIXES, *itk.SUFFIXES, *arrays.SUFFIXES, *PICTURES)
CHANNEL = re.compile(r"_\d{4}$")
"""End of the names of nnU-Net's images: one file per channel."""
FIRST = "_0000"


@dataclass(frozen=True)
class Member:
    """A prediction of one case. file: label map or probabilities; archive: the probabilities that nnU-Net wrote next
    to a label map."""

    name: str
    file: Path
    archive: Path | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """All its files."""
        return (self.file,) if self.archive is None else (self.file, self.archive)


@dataclass(frozen=True)
class Case:
    """Predictions of one image. image: None if no images were given; problem: why it cannot be gathered."""

    name: str
    members: tuple[Member, ...]
    image: Source | None = None
    problem: str = ""

    @property
    def where(self) -> str:
        """The image, or the first prediction, for messages."""
        files = self.members[0].files if self.image is None else self.image.files
        return str(files[0] if len(files) == 1 or self.image is None else files[0].parent)


def find_cases(inputs: Iterable[str | Path], images: Sequence[str | Path], options: GatherOptions) -> list[Case]:
    """Find the cases among folders of members, folders of cases, or the files of one case.

    Args:
        inputs: Folders, or files. A single folder without predictions of its own stands for the folders in it.
        images: Files, folders and globs of the images; without, the predictions state the geometry themselves.
        options: With the layout.

    Raises:
        UserError: There is no prediction, or files and folders are mixed.
    """
    paths = [Path(each) for each in inputs]
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise UserError(f"no such file or folder: {', '.join(missing[:5])}")
    files = [path for path in paths if path.is_file()]
    if files and len(files) < len(paths):
        raise UserError("expected either folders of predictions or the files of one case, got both")
    found = find_sources(images, options.axis) if images else None
    if files:
        strange = [str(file) for file in files if not file.name.lower().endswith(SUFFIXES)]
        if strange:
            raise UserError(f"{strange[0]}: expected a prediction, one of {', '.join(SUFFIXES)}")
        only = found.sources[0].name if found and len(found.sources) == 1 else stem(files[0].name)
        return _with_images([Case(only.removesuffix(FIRST), _as_members(files))], found)
    folders = _folders(paths)
    named = {folder: _predictions(folder) for folder in folders}
    if options.layout == "cases":
        cases = [Case(folder.resolve().name, tuple(found_in.values())) for folder, found_in in named.items()]
        return _with_images(cases, found)
    return _with_images(_by_case(_unique_names(folders), list(named.values())), found)


def _folders(paths: Sequence[Path]) -> list[Path]:
    """The folders of members or cases; those below a single one that has no predictions itself."""
    if len(paths) == 1 and not _predictions(paths[0]):
        paths = sorted(path for path in paths[0].iterdir() if path.is_dir() and not path.name.startswith("."))
        paths = [path for path in paths if not is_result(path)]  # of an earlier call with this --out
    found = [path for path in paths if _predictions(path)]
    if not found:
        raise UserError(
            f"expected folders with predictions ({', '.join(SUFFIXES[:8])} …), found none; pass one folder per member, "
            "with one file per case"
        )
    empty = [path for path in paths if path not in found]
    if empty:
        raise UserError(f"{empty[0]}: expected predictions, found none")
    return found


def _predictions(folder: Path) -> dict[str, Member]:
    """The predictions directly in a folder, by their names without suffix. A label map and the archive of its
    probabilities are one."""
    files: dict[str, list[Path]] = {}
    for file in sorted(folder.iterdir()):
        if file.is_file() and not file.name.startswith(".") and file.name.lower().endswith(SUFFIXES):
            files.setdefault(_stem(file), []).append(file)
    found = {}
    for name, same in files.items():
        archives = [file for file in same if file.suffix.lower() == ".npz"]
        maps = [file for file in same if file not in archives]
        if len(maps) > 1 or len(archives) > 1:
            raise UserError(f"{folder}: several predictions are named {name}: {', '.join(f.name for f in same)}")
        found[name] = Member(name, (maps or archives)[0], archives[0] if maps and archives else None)
    return found


def _stem(file: Path) -> str:
    suffix = next(suffix for suffix in SUFFIXES if file.name.lower().endswith(suffix))
    return file.name[: -len(suffix)]


def _as_members(files: Sequence[Path]) -> tuple[Member, ...]:
    names = _unique_names([file.with_name(_stem(file)) for file in files])
    return tuple(Member(name, file) for name, file in zip(names, files, strict=True))


def _unique_names(paths: Sequence[Path]) -> list[str]:
    """The last part of each path that differs; the whole path if none alone does."""
    whole = [path.resolve() for path in paths]
    for depth in range(1, max(len(path.parts) for path in whole)):
        names = ["/".join(path.parts[-depth:]) for path in whole]
        if len(set(names)) == len(names):
            return names
    raise UserError(f"a prediction is given twice: {paths[0]}")


def _by_case(members: Sequence[str], found: Sequence[dict[str, Member]]) -> list[Case]:
    cases = []
    for case in sorted(set().union(*found)):
        lacking = [member for member, files in zip(members, found, strict=True) if case not in files]
        problem = f"no prediction in {', '.join(lacking)}; add it, or leave that member out" if lacking else ""
        of_case = (replace(files[case], name=m) for m, files in zip(members, found, strict=True) if case in files)
        cases.append(Case(case, tuple(of_case), problem=problem))
    return cases


def _with_images(cases: list[Case], found: Found | None) -> list[Case]:
    """Add the images by name; those of nnU-Net by the name of their first channel. One image is that of one case."""
    if found is None:
        return cases
    firsts = [s for s in found.sources if not CHANNEL.search(s.name) or s.name.endswith(FIRST)] or found.sources
    series = [source for source in found.sources if len(source.files) > 1]
    parents = Counter(source.files[0].parent.name for source in series)
    by_name = {name: s for s in series if parents[name := s.files[0].parent.name] == 1}
    by_name |= {source.name.removesuffix(FIRST): source for source in firsts}
    by_name |= {source.name: source for source in found.sources}  # a number may be part of a name, too
    if len(cases) == len(firsts) == 1:
        by_name.setdefault(cases[0].name, firsts[0])
    return [
        replace(case, image=by_name[case.name])
        if case.name in by_name
        else replace(case, problem=_no_image(case.name, parents[case.name]))
        for case in cases
    ]


def _no_image(case: str, series: int) -> str:
    if series > 1:
        return f"expected one DICOM series in a folder named {case}, got {series}; move the others out of --images"
    return f"no image is named {case}; add it to --images, or leave out --images"
