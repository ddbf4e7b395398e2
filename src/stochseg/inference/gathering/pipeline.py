"""`gather`: predictions of other segmenters become results like those of `predict`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stochseg.analysis.soft_maps import sample_soft_map
from stochseg.errors import UserError
from stochseg.files import sha256
from stochseg.inference.gathering.cases import Case, find_cases
from stochseg.inference.gathering.classes import check_classes, found_info, stated_info, stated_names
from stochseg.inference.gathering.maps import Map, read_map
from stochseg.inference.gathering.options import GatherOptions
from stochseg.inference.jobs import VERSION, versions, with_checked_headers
from stochseg.inference.pipeline import Outcome, Progress, Report, Reporter, attempt
from stochseg.inference.result import FloatArray, StackResult, label_type
from stochseg.inference.result_folder import FORMAT, RESULT, is_result, write_result
from stochseg.inference.sources import read_stack
from stochseg.inference.stacks import Stack
from stochseg.inference.writers import Prediction
from stochseg.locks import locked
from stochseg.models.io import read_json
from stochseg.types import DatasetInfo


def gather(
    inputs: str | Path | Iterable[str | Path],
    out: str | Path,
    images: str | Path | Sequence[str | Path] = (),
    options: GatherOptions | None = None,
    *,
    overwrite: bool = False,
    report: Report | None = None,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Gather several predictions of the same cases into samples, with the results that `predict` writes.

    Label maps are samples as they are. Probabilities of several members give one sample each, the most probable labels,
    and their average is the mean. A case with one probability map is sampled with spatial coherence: see
    `stochseg.analysis.sample_soft_map`. Everything is on the grid of the image; nothing is resampled.

    Args:
        inputs: Folders of members with one file per case (or of cases with one file per member, see
            `GatherOptions.layout`), or the files of one case: NIfTI, NRRD, MetaImage, pictures, .npy, and the .npz
            archives of nnU-Net.
        out: Folder of the results, one folder per case.
        images: Files, folders or globs of the segmented images, for geometry, pictures and DICOM SEG. Without, the
            first prediction of a case states the geometry.
        options: How to gather.
        overwrite: Replace results that exist. Without it a complete result of the same files and options is kept.
        report: Called with the outcome of each case, once it is known.
        progress: Called with (cases done, cases in total).

    Returns:
        One outcome per case.

    Raises:
        UserError: There are no predictions, members have different label sets, or `out` cannot be written.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for member in ("ana", "ben"):
    ...         (Path(folder) / member).mkdir()
    ...         Image.fromarray(np.eye(8, dtype=np.uint8)).save(f"{folder}/{member}/a.png")
    ...     (outcome,) = gather([f"{folder}/ana", f"{folder}/ben"], f"{folder}/out")
    ...     print(outcome.status, sorted(file.name for file in outcome.folder.iterdir()))
    done ['entropy.tif', 'fused.png', 'mean.tif', 'overlay.png', 'result.json', 'samples.tif']
    """
    options, out = options or GatherOptions(), Path(out)
    given = [images] if isinstance(images, (str, Path)) else images
    cases = find_cases([inputs] if isinstance(inputs, (str, Path)) else inputs, given, options)
    names = stated_names(cases, options.classes)
    reporter = Reporter(len(cases), report, progress)
    with locked(out):
        work = _Work(out, options, overwrite, stated_info(names) if names else _scan(cases, options))
        for case in cases:
            reporter.add(work.outcome(case))
    return reporter.outcomes


@dataclass(frozen=True)
class _Work:
    """What is done with each case."""

    out: Path
    options: GatherOptions
    overwrite: bool
    info: DatasetInfo

    def outcome(self, case: Case) -> Outcome:
        """Gather one case, and say what became of it."""
        folder, done = self.out / case.name, None
        problem = case.problem
        if not problem:
            done, problem = attempt(partial(self._gather, case, folder))
        if problem:
            return Outcome(case.where, "failed", problem=" ".join(problem.split()).removeprefix(f"{case.where}: "))
        return Outcome(case.where, "kept", folder) if done is None else Outcome(case.where, "done", folder, "", done)

    def _gather(self, case: Case, folder: Path) -> tuple[str, ...] | None:
        """Write the result; return its notices, or None if it is there already."""
        facts = _describe(case, self.options)
        if not self.overwrite and _is_complete(folder, facts, self.info.class_names):
            return None
        start = time.perf_counter()
        stack, maps = _read(case, self.options)
        check_classes(maps, self.info, case.where)
        result = combine(maps, self.info, stack, self.options)
        stack, notices = with_checked_headers(stack, self.info)
        if case.image is None:
            notices.append("no images were given, so that pictures show the labels of the first member")
        prediction = Prediction(result, stack, self.info, "gather", self.options.overview, self.options.also)
        later = {"notices": notices, "seconds": round(time.perf_counter() - start, 3)}
        write_result(folder, prediction, {**facts, **later})
        return tuple(notices)


def combine(maps: Sequence[Map], info: DatasetInfo, stack: Stack, options: GatherOptions) -> StackResult:
    """Make samples of the predictions of one case.

    Raises:
        UserError: A single label map shows no variation.
    """
    if len(maps) == 1:
        if maps[0].probabilities is None:
            raise UserError(
                "one label map shows no variation; gather several, or a map of probabilities (one of zeros and ones "
                "alone is read as labels without --kind probabilities)"
            )
        return _sample(maps[0].probabilities, info, stack, options)
    n, (slices, *size) = len(maps), stack.values.shape[:3]
    labels = np.empty((slices, n, *size), label_type(info.num_classes))
    mean = np.zeros((slices, info.num_classes, *size), np.float32)
    for i, each in enumerate(maps):
        labels[:, i] = each.most_probable
        for label in range(info.num_classes):
            mean[:, label] += labels[:, i] == label if each.probabilities is None else each.probabilities[label]
    mean /= n
    return StackResult(labels, mean, np.full((slices, n), 1 / n, np.float32))


def _sample(soft: FloatArray, info: DatasetInfo, stack: Stack, options: GatherOptions) -> StackResult:
    """Draw samples of one probability map "l s h w", with the coherence in pixels of each axis."""
    lengths = None
    if options.coherence is not None:
        spacing = (1.0, 1.0, 1.0) if stack.lattice is None else stack.lattice.spacing
        lengths = [options.coherence / each for each in spacing]
    if soft.shape[1] == 1:  # the thickness of a single slice is no axis
        flat = torch.from_numpy(soft[:, 0])
        samples = sample_soft_map(flat, options.n, coherence=lengths and lengths[1:], seed=options.seed, info=info)
        return StackResult.from_samples(samples)
    space = info.model_copy(update={"spatial_dims": 3})
    volume = torch.from_numpy(np.ascontiguousarray(soft))
    return StackResult.from_samples(
        sample_soft_map(volume, options.n, coherence=lengths, seed=options.seed, info=space)
    )


def _read(case: Case, options: GatherOptions) -> tuple[Stack, list[Map]]:
    stack = _read_image(case, options)
    return stack, [read_map(member, stack, options.kind) for member in case.members]


def _read_image(case: Case, options: GatherOptions) -> Stack:
    source = case.image
    if source is not None:
        return read_stack(source.files, source.axis)
    stack = read_stack([case.members[0].file], options.axis)
    return replace(stack, values=stack.values[..., 0]) if stack.values.ndim == 4 else stack


def _scan(cases: Sequence[Case], options: GatherOptions) -> DatasetInfo:
    """Read all maps to find the number of classes, which no file states."""
    found, most = dict[int, str](), 2
    for case in cases:
        maps, _ = attempt(partial(_read, case, options))
        for each in maps[1] if maps is not None else ():  # problems are reported when the case is gathered
            most = max(most, each.num_classes)
            found |= {} if each.labels is None else dict.fromkeys(np.unique(each.labels).tolist(), case.where)
    return found_info(most, found)


# --- the record ----------------------------------------------------------------------------------------


def _describe(case: Case, options: GatherOptions) -> dict[str, Any]:
    """Describe images, members, options and versions as JSON values."""
    inputs = case.members[0].files[:1] if case.image is None else case.image.files
    members = [{"name": m.name, "files": [_hash(file) for file in m.files]} for m in case.members]
    origin = f"{len(members)} members: {', '.join(m.name for m in case.members)}"
    if len(members) == 1:
        origin = f"soft map {case.members[0].name}"
    return {
        "format": FORMAT,
        "version": VERSION,
        "inputs": [_hash(file) for file in inputs],
        "model": {"name": "gather", "origin": origin},
        "members": members,
        "options": options.model_dump(mode="json"),
        "evaluations": 1,
        "window": None,
        "tiled": False,
        "coupling": "joint",
        "versions": versions(),
    }


def _hash(file: Path) -> dict[str, str]:
    return {"file": str(file), "sha256": sha256(file)}


def _is_complete(folder: Path, facts: dict[str, Any], names: Sequence[str]) -> bool:
    """Whether a folder contains the complete result of these files, options and names of classes (empty: not stated);
    raise a `UserError` for another."""
    if not is_result(folder):
        return False
    record = read_json(folder / RESULT)
    if not all((folder / str(name)).is_file() for name in record.get("files", [""])):
        return False
    renamed = names and [each.get("name") for each in record.get("classes", ())] != list(names)
    if renamed or any(record.get(key) != facts[key] for key in ("inputs", "members", "options")):
        raise UserError(
            f"{folder} contains a result of other files, options or classes; replace it with --overwrite, or choose "
            "another --out"
        )
    return True
