"""What to segment: files, folders and globs become sources, each with a name and a stack of slices to read."""

from __future__ import annotations

import glob
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from stochseg.data import dicom, nifti
from stochseg.data.trees import Tree
from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.inference.series import NOT_IMAGES, read_header, read_series
from stochseg.inference.stacks import Stack, read_nifti, read_picture

RESULT = "result.json"
FORMAT = "stochseg-prediction"
PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp")


@dataclass(frozen=True)
class Source:
    """One thing to segment, and the name of its result."""

    name: str
    files: tuple[Path, ...]
    read: Callable[[], Stack] = field(repr=False, compare=False)
    given: Path = Path()
    """The file or folder that was asked for, from the root."""


@dataclass(frozen=True)
class Found:
    """sources; problems: (input, what is wrong with it); notices: what was passed over."""

    sources: tuple[Source, ...]
    problems: tuple[tuple[str, str], ...]
    notices: tuple[str, ...]


def find_sources(inputs: Iterable[str | Path], axis: int | None = None) -> Found:
    """Files, folders (searched to the bottom) and globs. Of a folder, the DICOM files of one series make one volume; a
    DICOM file that is named itself is a slice of its own. axis: along which NIfTI volumes are cut."""
    sources: list[Source] = []
    problems: list[tuple[str, str]] = []
    notices: list[str] = []
    for given in inputs:
        for path in _expanded(str(given), problems):
            try:
                found = _in_folder(path, axis, notices) if path.is_dir() else [_file(path, path.name, axis)]
            except UserError as error:
                problems.append((str(path), str(error)))
                continue
            sources += [replace(source, given=path.resolve()) for source in found]
    unique = list({tuple(file.resolve() for file in source.files): source for source in sources}.values())
    return Found(tuple(_named_apart(unique)), tuple(problems), tuple(notices))


def read_stack(files: Sequence[Path], axis: int | None = None) -> Stack:
    """Read the file of a picture or a volume, or the files of a DICOM series."""
    if files[0].name.lower().endswith(nifti.SUFFIXES):
        return read_nifti(files[0], axis)
    if len(files) > 1 or _is_dicom(files[0]):
        return read_series(files)
    return read_picture(files[0])


def _is_dicom(file: Path) -> bool:
    try:
        return dicom.is_dicom_file(file)
    except OSError:  # reported when the file is read
        return False


def is_result(folder: Path) -> bool:
    """Whether a folder is the result of a prediction."""
    try:
        return bool(json.loads((folder / RESULT).read_text()).get("format") == FORMAT)
    except (OSError, ValueError, AttributeError):
        return False


def stem(name: str) -> str:
    """A file's name without its suffix, .nii.gz as one."""
    for suffix in (*nifti.SUFFIXES, *PICTURES, *dicom.SUFFIXES):
        if name.lower().endswith(suffix) and len(name) > len(suffix):
            return name[: -len(suffix)]
    return name


def _expanded(given: str, problems: list[tuple[str, str]]) -> list[Path]:
    path = Path(given)
    if path.exists():
        return [path]
    if not glob.has_magic(given):
        problems.append((given, "no such file or folder"))
        return []
    found = [Path(name) for name in sorted(glob.glob(given, recursive=True))]
    results = {folder for folder in {path.parent for path in found} if is_result(folder)}
    found = [path for path in found if path.parent not in results]
    if not found:
        problems.append((given, "no file fits this pattern"))
    return found


def _named_apart(sources: Sequence[Source]) -> list[Source]:
    """Names that several sources share get the suffix of their file, and then the folders above; what is the same
    even so is refused."""
    named = list(sources)
    for depth in range(max((len(s.given.parents) for s in sources), default=0) + 1):
        often = Counter(s.name for s in named)
        named = [s if often[s.name] == 1 else replace(s, name=_longer(s, depth)) for s in named]
    twice = [name for name, count in Counter(s.name for s in named).items() if count > 1]
    if twice:
        same = [str(s.files[0]) for s in named if s.name == twice[0]]
        raise UserError(
            f"several inputs would be written to the folder {twice[0]!r}: {', '.join(same[:3])}; predict them one "
            "after the other with another --out"
        )
    return named


def _longer(source: Source, depth: int) -> str:
    file = source.files[0].name
    if depth == 0:
        return source.name + file[len(stem(file)) :]
    above = source.given.parents[depth - 1 : depth]
    return f"{above[0].name}-{source.name}" if above and above[0].name else source.name


def _file(path: Path, name: str, axis: int | None) -> Source:
    """name: relative to what was given; its folders become part of the result's name."""
    return Source(stem(name).replace("/", "-"), (path,), partial(read_stack, (path,), axis))


def _in_folder(folder: Path, axis: int | None, notices: list[str]) -> list[Source]:
    paths = {name: folder / name for name in Tree(folder).names}
    results = {path.parent for path in paths.values() if path.name == RESULT and is_result(path.parent)}
    sources, dicom, others = [], [], 0
    for name, path in paths.items():
        if results.intersection(path.parents):
            continue
        if path.name.lower().endswith((*PICTURES, *nifti.SUFFIXES)):
            sources.append(_file(path, name, axis))
        elif _is_dicom(path):
            dicom.append(path)
        else:
            others += 1
    if dicom:
        sources += _series(folder, dicom, notices)
    if not sources:
        raise UserError("the folder holds no image that is known here: PNG, JPEG, TIFF, NIfTI (.nii, .nii.gz) or DICOM")
    if others:
        notices.append(f"{folder}: {others} file(s) that are no images were passed over")
    return sources


def _should_be_image(header: Any) -> bool:
    """By the class of the object, which stands at the beginning of the file."""
    uid = header.file_meta.get("MediaStorageSOPClassUID") or header.get("SOPClassUID") or ""
    return "Image Storage" in getattr(uid, "name", "")


def _series(folder: Path, files: Sequence[Path], notices: list[str]) -> list[Source]:
    """The images among DICOM files, by folder and series. What cannot be read is a source of its own, so that it is
    reported and the others are done."""
    require("pydicom", "medical", str(folder))
    groups: dict[tuple[Path, str], list[Path]] = defaultdict(list)
    labels: dict[tuple[Path, str], str] = {}
    broken, passed = [], 0
    for file in files:
        try:
            header = read_header(file)
        except UserError:
            broken.append(file)
            continue
        if str(header.get("Modality", "")) in NOT_IMAGES or not ("Rows" in header or _should_be_image(header)):
            passed += 1
            continue
        if "Rows" not in header:  # cut short: to pass over it would be to lose a slice
            broken.append(file)
            continue
        key = (file.parent, str(header.get("SeriesInstanceUID", "")))
        groups[key].append(file)
        labels[key] = str(header.get("SeriesNumber") or key[1])
    if passed:
        notices.append(f"{folder}: {passed} DICOM file(s) without an image (segmentations, reports …) were passed over")
    shared = Counter(parent for parent, _ in groups)
    same = Counter((parent, labels[parent, uid]) for parent, uid in groups)
    sources = []
    for (parent, uid), members in groups.items():
        label = labels[parent, uid] if same[parent, labels[parent, uid]] == 1 else uid
        name = "-".join([folder.resolve().name, *parent.relative_to(folder).parts])
        name = name if shared[parent] == 1 else f"{name}-series-{label}"
        sources.append(Source(name, tuple(members), partial(read_series, tuple(members))))
    return sources + [_file(file, file.relative_to(folder).as_posix(), None) for file in broken]
