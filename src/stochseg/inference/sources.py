"""Inputs of `predict`: files, folders and globs become sources, each with a name and a stack of slices to read."""

from __future__ import annotations

import glob
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stochseg.data.folder.config import DESCRIPTION
from stochseg.data.readers import arrays, dicom, itk, nifti
from stochseg.data.readers.pictures import SUFFIXES as PICTURES
from stochseg.data.readers.series import NOT_IMAGES, read_header
from stochseg.data.readers.trees import Tree
from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.inference.result_folder import RESULT, is_result
from stochseg.inference.series import read_series
from stochseg.inference.stacks import Axis, Stack, read_array, read_picture, read_volume

VOLUMES = (*nifti.SUFFIXES, *itk.SUFFIXES)
IMAGE_CLASS = "Image Storage"
"""Part of the names of DICOM classes of images."""


@dataclass(frozen=True)
class Source:
    """One image or volume to segment.

    name: of its result folder; axis: along which a NIfTI volume is sliced; given: the file or folder by which it was
    found, as an absolute path.
    """

    name: str
    files: tuple[Path, ...]
    axis: Axis = None
    given: Path = Path()


@dataclass(frozen=True)
class Found:
    """The sources among the inputs of a call. problems: inputs without one, with reasons; notices: skipped files."""

    sources: list[Source]
    problems: list[tuple[str, str]]
    notices: list[str]


def find_sources(inputs: Iterable[str | Path], axis: Axis = None) -> Found:
    """Find the images and volumes among files, folders and globs.

    Folders are searched recursively; their DICOM files of one series make one volume. A DICOM file that is itself an
    input is a single slice. Results of earlier predictions are skipped.

    Args:
        inputs: Files, folders and glob patterns.
        axis: Along which NIfTI volumes are sliced.

    Raises:
        UserError: There is no source at all, or several would get the same name.
    """
    problems: list[tuple[str, str]] = []
    notices: list[str] = []
    unique: dict[tuple[Path, ...], Source] = {}
    for given in inputs:
        for path in _expand(str(given), problems):
            try:
                found = _in_folder(path, axis, notices) if path.is_dir() else [_single_file(path, path.name, axis)]
            except UserError as error:
                problems.append((str(path), str(error)))
                continue
            for source in found:
                unique[tuple(file.resolve() for file in source.files)] = replace(source, given=path.resolve())
    if problems and not unique:
        raise UserError("; ".join(f"{where}: {problem}" for where, problem in problems))
    return Found(_with_unique_names(list(unique.values())), problems, notices)


def read_stack(files: Sequence[Path], axis: Axis = None) -> Stack:
    """Read the file of a picture or a volume, or the files of a DICOM series."""
    try:
        return _read(files, axis)
    except (UserError, OSError, MemoryError):
        raise
    except Exception as error:  # a damaged file can fail anywhere, and others wait
        raise UserError(
            f"cannot be read ({type(error).__name__}: {error}); it is damaged, copy or export it"
        ) from error


def _read(files: Sequence[Path], axis: Axis) -> Stack:
    name = files[0].name.lower()
    if name.endswith(VOLUMES):
        return read_volume(files[0], axis)
    if name.endswith(arrays.SUFFIXES):
        return read_array(files[0])
    if len(files) > 1 or _is_dicom(files[0]):
        return read_series(files)
    return read_picture(files[0])


def _is_dicom(file: Path) -> bool:
    try:
        return dicom.is_dicom_file(file)
    except OSError:  # reported when the file is read
        return False


def stem(name: str) -> str:
    """Remove the suffix of an image file; .nii.gz counts as one."""
    for suffix in (*VOLUMES, *arrays.SUFFIXES, *PICTURES, *dicom.SUFFIXES):
        if name.lower().endswith(suffix) and len(name) > len(suffix):
            return name[: -len(suffix)]
    return name


def _expand(given: str, problems: list[tuple[str, str]]) -> list[Path]:
    """Return the path itself, or the matches of a glob that are not part of a result."""
    path = Path(given)
    if given and path.exists():  # an empty text would be the current folder
        return [path]
    if not glob.has_magic(given):
        problems.append((given, "no such file or folder"))
        return []
    found = [Path(name) for name in sorted(glob.glob(given, recursive=True))]
    results = {folder for folder in {path.parent for path in found} if is_result(folder)}
    found = [path for path in found if path.parent not in results]
    if not found:
        problems.append((given, "no file matches this pattern"))
    return found


def _with_unique_names(sources: Sequence[Source]) -> list[Source]:
    """Extend names that several sources share, first by the suffix of their file, then by their parent folders."""
    named = list(sources)
    for depth in range(max((len(s.given.parents) for s in sources), default=0) + 1):
        count = Counter(s.name for s in named)
        named = [s if count[s.name] == 1 else replace(s, name=_longer_name(s, depth)) for s in named]
    twice = [name for name, count in Counter(s.name for s in named).items() if count > 1]
    if twice:
        same = [str(s.files[0]) for s in named if s.name == twice[0]]
        raise UserError(
            f"several inputs would be written to the folder {twice[0]!r}: {', '.join(same[:3])}; predict them in "
            "separate calls, each with another --out"
        )
    return named


def _longer_name(source: Source, depth: int) -> str:
    file = source.files[0].name
    if depth == 0:
        return source.name + file[len(stem(file)) :]
    above = source.given.parents[depth - 1 : depth]
    return f"{above[0].name}-{source.name}" if above and above[0].name else source.name


def _single_file(path: Path, name: str, axis: Axis) -> Source:
    """Make a source of one file. name: its path relative to the input, whose folders become part of the result name."""
    return Source(stem(name).replace("/", "-"), (path,), axis)


def _in_folder(folder: Path, axis: Axis, notices: list[str]) -> list[Source]:
    """Find the sources below a folder; of a data set, its images and not its label maps."""
    if (folder / DESCRIPTION).is_file() and (folder / "images").is_dir():
        notices.append(f"{folder} is a data set: its images are segmented, its label maps are not")
        folder /= "images"
    paths = {name: folder / name for name in Tree(folder).names}
    results = {path.parent for path in paths.values() if path.name == RESULT and is_result(path.parent)}
    sources: list[Source] = []
    dicom_files: list[Path] = []
    others = 0
    for name, path in paths.items():
        if results.intersection(path.parents):
            continue
        if path.name.lower().endswith((*PICTURES, *VOLUMES, *arrays.SUFFIXES)):
            sources.append(_single_file(path, name, axis))
        elif _is_dicom(path):
            dicom_files.append(path)
        else:
            others += 1
    if dicom_files:
        sources += _in_dicom_files(folder, dicom_files, notices)
    if not sources:
        raise UserError(
            "the folder contains no image: expected PNG, JPEG, TIFF, NIfTI (.nii, .nii.gz), NRRD, MHA, .npy or DICOM"
        )
    if others:
        notices.append(f"{folder}: skipped {others} file(s) that are not images")
    return sources


def _in_dicom_files(folder: Path, files: Sequence[Path], notices: list[str]) -> list[Source]:
    """Group the images among DICOM files by folder and series.

    A file that cannot be read becomes a source of its own, so that it is reported and the others are processed.
    """
    require("pydicom", "medical", str(folder))
    series: dict[tuple[Path, str], list[Path]] = defaultdict(list)
    numbers: dict[tuple[Path, str], str] = {}
    broken: list[Path] = []
    skipped = 0
    for file in files:
        try:
            header = read_header(file)
        except UserError:
            broken.append(file)
            continue
        kind = _class_name(header)
        if "Rows" not in header and (not kind or IMAGE_CLASS in kind):  # cut short: skipping it would lose a slice
            broken.append(file)
        elif str(header.get("Modality", "")) in NOT_IMAGES or "Rows" not in header:
            skipped += 1
        else:
            key = (file.parent, str(header.get("SeriesInstanceUID", "")))
            series[key].append(file)
            numbers[key] = str(header.get("SeriesNumber") or key[1])
    if skipped:
        notices.append(f"{folder}: skipped {skipped} DICOM file(s) without an image (segmentations, reports …)")
    names = _series_names(folder, numbers)
    sources = [Source(names[key], tuple(files)) for key, files in series.items()]
    return sources + [_single_file(file, file.relative_to(folder).as_posix(), None) for file in broken]


def _class_name(header: Any) -> str:
    """Name of the class of a DICOM object, which its file states first; "" in a damaged file."""
    uid = header.file_meta.get("MediaStorageSOPClassUID") or header.get("SOPClassUID") or ""
    return str(getattr(uid, "name", uid))


def _series_names(folder: Path, numbers: dict[tuple[Path, str], str]) -> dict[tuple[Path, str], str]:
    """Name each series (folder, UID) by its folder, and by its number or UID where a folder contains several."""
    per_folder = Counter(parent for parent, _ in numbers)
    per_number = Counter((parent, number) for (parent, _), number in numbers.items())
    names = {}
    for (parent, uid), number in numbers.items():
        name = "-".join([folder.resolve().name, *parent.relative_to(folder).parts])
        label = number if per_number[parent, number] == 1 else uid
        names[parent, uid] = name if per_folder[parent] == 1 else f"{name}-series-{label}"
    return names
