"""`predict_lesions`: points and boxes in scans, with one result folder per scan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stochseg.analysis import measurements
from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.files import replaced_folder
from stochseg.inference.jobs import Job, describe, orientation_notices
from stochseg.inference.lesions import Segmented, WatchLesion, declared_preparation, locate_lesion, segment_lesion
from stochseg.inference.pipeline import (
    LOST,
    Outcome,
    Progress,
    Report,
    Reporter,
    attempt,
    hash_files,
    make_outcome,
    open_results,
    plan_on,
    shown_path,
)
from stochseg.inference.plan import Plan, PredictOptions
from stochseg.inference.points import Lesion, check_unique, describe_place, file_index
from stochseg.inference.result_folder import (
    LESIONS,
    describe_geometry,
    is_complete,
    is_result,
    write_files,
    write_record,
)
from stochseg.inference.sources import Found, Source, find_sources, read_stack
from stochseg.inference.stacks import Stack
from stochseg.inference.writers import Prediction
from stochseg.inference.writers.dicom_seg import check_headers
from stochseg.inference.writers.lesion_maps import write_lesion_maps
from stochseg.locks import Claim
from stochseg.models import StochasticSegmenter
from stochseg.parts import ALL, Part
from stochseg.types import DatasetInfo, Samples, Spacing
from stochseg.workers import Pool


def predict_lesions(
    model: StochasticSegmenter,
    inputs: str | Path | Iterable[str | Path],
    lesions: Sequence[Lesion],
    out: str | Path,
    options: PredictOptions | None = None,
    *,
    mm: bool = False,
    overwrite: bool = False,
    origin: str = "",
    report: Report | None = None,
    progress: Progress | None = None,
    part: Part = ALL,
    pool: Pool | None = None,
    watch: WatchLesion | None = None,
) -> list[Outcome]:
    """Segment lesions in scans, each given by a point or a box.

    The part around a lesion is cut, resampled and scaled as the model declares (`model.info.preparation`), and the
    results are pasted back into the geometry of the scan.

    Args:
        model: The model.
        inputs: NIfTI files and DICOM series: files, folders and globs.
        lesions: Points and boxes; `read_lesions` reads a table of them.
        out: Folder of the results, one folder per scan.
        options: How to predict; the model's defaults if None.
        mm: Whether coordinates are millimeters, not voxels: see `Lesion`.
        overwrite: Replace results that exist. Without it a complete result of the same scan, lesions, model and
            options is kept, and a result of others is an error.
        origin: The path or name of the model, for the record.
        report: Called with the outcome of each scan, once it is known.
        progress: Called with (scans done, fractions included; scans in total).
        part: Of the scans. Several processes may write their parts to the same folder at the same time.
        pool: Workers that load the model from `origin`, for one scan at a time; the results are the same as without.
        watch: Called with samples of the lesions as soon as they are drawn, in this process only.

    Returns:
        One outcome per scan, and one per notice about a folder.

    Raises:
        UserError: The model does not declare a preparation, a lesion is not in its scan or has no scan, or the only
            scan cannot be read. A scan that fails among several is reported, and the others are processed.

    >>> import tempfile, nibabel, numpy as np, stochseg
    >>> scan = np.random.default_rng(0).normal(-800, 50, (160, 160, 9)).astype(np.int16)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     nibabel.Nifti1Image(scan, np.diag([-0.7, -0.7, 2.5, 1])).to_filename(f"{folder}/ct.nii.gz")
    ...     lesion = Lesion("left", ((80, 75, 4),))
    ...     (outcome,) = predict_lesions(
    ...         stochseg.load("lidc"), f"{folder}/ct.nii.gz", [lesion], f"{folder}/out", PredictOptions(n=2)
    ...     )
    ...     print(outcome.status, sorted(file.name for file in outcome.folder.iterdir()))
    done ['foreground.nii.gz', 'fused.nii.gz', 'lesions', 'lesions.nii.gz', 'result.json']
    """
    out = Path(out)
    plan, runner = plan_on(pool, model, options or PredictOptions(), origin)
    declared_preparation(model)
    check_unique(lesions)
    found = find_sources([inputs] if isinstance(inputs, (str, Path)) else inputs, plan.options.axis)
    only = len(found.problems) + len(found.sources) == 1
    if only and found.problems:
        raise UserError(": ".join(found.problems[0]))
    chosen = _assign(lesions, found)
    chunks = part.select([[_Scan(source, chosen[source.name])] for source in found.sources if source.name in chosen])
    reporter = Reporter(len(found.problems) + len(chunks), report, progress)
    without = [
        f"{shown_path(source)}: skipped, the table has no lesion in it"
        for source in found.sources
        if source.name not in chosen
    ]
    for notice in (*found.notices, *without):
        reporter.add(Outcome("", "note", notices=(notice,)))
    for where, problem in found.problems:
        reporter.add(Outcome(where, "failed", problem=problem))
    if not chunks:
        return reporter.outcomes
    with open_results(out, part) as claim:
        work = _Work(out, overwrite, claim, mm, watch)
        act = work if pool is not None else partial(work, advance=reporter.advance)
        with closing(runner(act, chunks, work.lost)) as outcomes:
            for outcome in outcomes:
                if outcome.status == "failed" and only:
                    raise UserError(f"{outcome.source}: {outcome.problem}")
                reporter.add(outcome)
    return reporter.outcomes


def _assign(lesions: Sequence[Lesion], found: Found) -> dict[str, list[Lesion]]:
    """Find the scan of every lesion. Returns lesions by the name of their source."""
    names = ", ".join(repr(source.name) for source in found.sources)
    chosen: dict[str, list[Lesion]] = {}
    for lesion in lesions:
        matches = [source for source in found.sources if not lesion.input or _is_named(source, lesion.input)]
        if len(matches) != 1:
            got = f"input {lesion.input!r}" if lesion.input else "no input"
            raise UserError(
                f"{lesion}: expected the scan that it is in, one of {names or 'none'}, got {got}; pass one scan, or a "
                "table (--points) with a column `input` that has its path or this name"
            )
        chosen.setdefault(matches[0].name, []).append(lesion)
    for each in chosen.values():
        check_unique([Lesion(lesion.id, lesion.corners, where=lesion.where) for lesion in each])
    return chosen


def _is_named(source: Source, name: str) -> bool:
    return name == source.name or Path(name).resolve() in (source.given, *(file.resolve() for file in source.files))


@dataclass(frozen=True)
class _Scan:
    """A scan with its lesions."""

    source: Source
    lesions: Sequence[Lesion]


@dataclass(frozen=True)
class _Work:
    """What is done with a scan, in this process or in a worker."""

    out: Path
    overwrite: bool
    claim: Claim
    mm: bool
    watch: WatchLesion | None = None

    def __call__(
        self, plan: Plan, scans: Sequence[_Scan], advance: Callable[[float], None] = lambda inputs: None
    ) -> Iterator[Outcome]:
        """Read, segment and write scans; yield their outcomes."""
        for scan in scans:
            task = _Task(scan, plan, self.out / scan.source.name, mm=self.mm, watch=self.watch)
            yield task.run(self.overwrite, self.claim, advance)

    def lost(self, scan: _Scan) -> Outcome:
        """The outcome of a scan that ended its workers."""
        return make_outcome(scan.source, LOST, self.out / scan.source.name)


class _Task:
    """One scan on the way to a result folder."""

    def __init__(self, scan: _Scan, plan: Plan, folder: Path, *, mm: bool, watch: WatchLesion | None):
        self.source, self.lesions, self.plan, self.folder, self.mm = scan.source, scan.lesions, plan, folder, mm
        self.watch = watch

    def run(self, overwrite: bool, claim: Claim, advance: Callable[[float], None]) -> Outcome:
        """Read, segment and write the scan."""
        scan, problem = attempt(partial(self._read, overwrite))
        if scan is None and not problem:
            return Outcome(shown_path(self.source), "kept", self.folder)
        notices: tuple[str, ...] = ()
        if scan is not None:
            segmented, problem = attempt(partial(self._segment, scan, advance))
            if segmented is not None:
                notices = (*scan.notices, *_named_notices(segmented))
                claim.check()
                _, problem = attempt(partial(self._write, scan, segmented))
        return make_outcome(self.source, problem, self.folder, notices)

    def _read(self, overwrite: bool) -> Job | None:
        """Read the scan unless its result is complete; raise a `UserError` if a lesion cannot be segmented in it."""
        files = hash_files(self.source)
        if not overwrite and is_complete(self.folder, files, self.plan, self._asked()):
            return None
        stack = read_stack(self.source.files, self.source.axis)
        notices = orientation_notices(stack)
        for lesion in self.lesions:
            locate_lesion(lesion, stack, self.plan, mm=self.mm)
        if stack.headers:
            require("highdicom", "medical", "writing DICOM SEG")
            try:
                check_headers(stack.headers, self.plan.model.info, (stack.values.shape[1], stack.values.shape[2]))
            except UserError as error:
                stack = Stack(stack.values, stack.lattice)
                notices.append(f"without lesions.dcm: {error}")
        return Job(self.source, stack, torch.empty(0), files, tuple(notices))

    def _segment(self, scan: Job, advance: Callable[[float], None]) -> list[Segmented]:
        done = []
        for number, lesion in enumerate(self.lesions):

            def report(part: float, number: int = number) -> None:
                advance((number + part) / len(self.lesions))

            place = locate_lesion(lesion, scan.stack, self.plan, mm=self.mm)
            done.append(segment_lesion(lesion, place, scan, self.plan, report, self.watch))
        return done

    def _write(self, scan: Job, segmented: Sequence[Segmented]) -> None:
        model, options = self.plan.model, self.plan.options
        with replaced_folder(self.folder, ours=is_result, kind="a result of stochseg predict") as scratch:
            entries, files = [], []
            for number, each in enumerate(segmented, start=1):
                inside = f"{LESIONS}/{each.lesion.id}"
                (scratch / inside).mkdir(parents=True)
                shown = each.result, each.job.stack, model.info, model.name, options.overview
                prediction = Prediction(*shown, calibration=self.plan.calibration)
                about = _describe_lesion(each, number, scan.stack)
                facts = {**describe(each.job, self.plan, each.result), "lesion": about}
                names, sizes = write_files(scratch / inside, prediction, facts)
                measures = _measure(each, model.info)
                notes = list(each.job.notices)
                entries.append({**about, "folder": inside, **sizes, "measures": measures, "notices": notes})
                files += [f"{inside}/{name}" for name in names]
            files += write_lesion_maps(scratch, scan.stack, segmented, model)
            notices = (*scan.notices, *_named_notices(segmented))
            whole = replace(segmented[0].job, notices=notices, seconds=sum(each.job.seconds for each in segmented))
            facts = {**describe(whole, self.plan, segmented[0].result), "window": None}
            s, h, w = scan.stack.values.shape[:3]
            place = {"image": describe_geometry((s, h, w), scan.stack.lattice)}
            write_record(scratch, {**facts, **place, "asked": self._asked(), "lesions": entries, "files": files})

    def _asked(self) -> dict[str, Any]:
        """Everything about lesions on which a result depends, as JSON values."""
        lesions = [{"id": each.id, "corners": [list(corner) for corner in each.corners]} for each in self.lesions]
        preparation = declared_preparation(self.plan.model).model_dump(mode="json")
        return {"mm": self.mm, "lesions": lesions, "preparation": preparation}


def _named_notices(segmented: Sequence[Segmented]) -> tuple[str, ...]:
    return tuple(f"lesion {each.lesion.id}: {notice}" for each in segmented for notice in each.job.notices)


def _describe_lesion(segmented: Segmented, number: int, scan: Stack) -> dict[str, Any]:
    """Describe a lesion and the part of the scan that was segmented, as JSON values."""
    last = [part.stop - 1 for part in segmented.part]
    corners = zip(*(file_index(corner, scan) for corner in (segmented.start, last)), strict=True)
    first, final = zip(*(sorted(ends) for ends in corners), strict=True)
    box = None if segmented.place.size is None else list(segmented.place.size)
    return {
        "id": segmented.lesion.id,
        "number": number,
        "point": describe_place(segmented.place, scan),
        "box_size": box,
        "part": {"first_voxel": list(first), "last_voxel": list(final), "start": list(segmented.start)},
        "cut_off": list(segmented.cut_off),
    }


def _measure(segmented: Segmented, info: DatasetInfo) -> list[dict[str, Any]]:
    """Measure a lesion in millimeters, as JSON values; without those whose samples differ in weight between slices."""
    result, lattice = segmented.result, segmented.job.stack.lattice
    assert lattice is not None
    if not np.allclose(result.weights, result.weights[:1], atol=1e-6):
        return []
    labels, mean = (torch.from_numpy(x).movedim(0, 1)[None] for x in (result.labels, result.mean))  # "1 n d h w"
    weights = torch.from_numpy(result.weights[:1])
    spacing: Spacing = lattice.spacing
    if len(result.labels) == 1:
        labels, mean, spacing = labels[:, :, 0], mean[:, :, 0], spacing[1:]
    measured = measurements(Samples(labels.long(), mean, weights, seed=0, info=info), spacing=spacing)
    return [
        {
            "name": each.name,
            "unit": each.unit,
            "mean": round(each.mean, 4),
            "interval_90": [round(end, 4) for end in each.interval()],
            "samples": each.values.round(4).tolist(),
        }
        for each in measured
    ]
