"""One lesion of a scan: the part around it is cut as the model declares, sampled, and pasted back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from stochseg.analysis.regions import label_components
from stochseg.errors import UserError
from stochseg.inference.grids import Grid, GridAxis, cut, paste, paste_labels, scale, steps
from stochseg.inference.jobs import SLICES, Job, calibration_notices, check_channels, sample_batch
from stochseg.inference.plan import Plan
from stochseg.inference.points import Lesion, Place, locate
from stochseg.inference.result import FloatArray, LabelArray, StackResult
from stochseg.inference.stacks import Stack
from stochseg.models import StochasticSegmenter
from stochseg.models.intensities import check_intensities, describe_unusual
from stochseg.types import Preparation

DEFAULT_SLICES = 8
"""Slices around a point at first, if the model does not declare them."""
DOUBLINGS = 3
"""How often the number of slices is doubled at most; a lesion that is longer counts as cut off."""
NEAR = 5.0
"""Millimeters from the point within which samples of a lesion have a voxel, for models of volumes."""
REACHES = 0.5
"""A slice is part of a lesion if that part of the samples marks it, relative to the slice that most samples mark."""
ENDS = (("first slice", "last slice"), ("top", "bottom"), ("left", "right"))

Advance = Callable[[float], None]
"""Called with the part of a lesion that is done."""
WatchLesion = Callable[[int, LabelArray, FloatArray, tuple[int, int, int]], None]
"""A `Watch` of a lesion; the last argument is the first voxel (s, h, w) of the labels in the scan."""


@dataclass(frozen=True)
class Segmented:
    """A lesion with its samples.

    place: its voxels in the scan; job: the part of the scan that was segmented, as an input of its own, with its
    result; start: the first voxel of that part in the scan, (s, h, w); cut_off: ends at which it may go on.
    """

    lesion: Lesion
    place: Place
    job: Job
    start: tuple[int, int, int]
    cut_off: tuple[str, ...] = ()

    @property
    def result(self) -> StackResult:
        """The samples of the part."""
        assert self.job.result is not None
        return self.job.result

    @property
    def part(self) -> tuple[slice, slice, slice]:
        """The part as an index of the scan."""
        s, _, h, w = self.result.labels.shape
        slices, rows, columns = (slice(a, a + n) for a, n in zip(self.start, (s, h, w), strict=True))
        return slices, rows, columns


def declared_preparation(model: StochasticSegmenter) -> Preparation:
    """How the model wants a part of a scan; raise a UserError if it does not say."""
    if model.info.preparation is None:
        raise UserError(
            f"model {model.name!r} does not declare how a part of a scan becomes an image of its data "
            "(`info.preparation`), so points in a scan cannot be segmented; crop and scale the scan yourself, or "
            "declare it in the config.json of the model"
        )
    return model.info.preparation


def locate_lesion(lesion: Lesion, stack: Stack, plan: Plan, *, mm: bool) -> Place:
    """Find a lesion in a scan, and raise a UserError if it is not in it or the model cannot take the scan."""
    place = locate(lesion, stack, mm=mm)
    check_channels(stack, plan.model)
    if plan.takes_volumes and len(stack.values) < 2:
        raise UserError("the scan has one slice, but the model segments volumes; pass all slices, or a model of slices")
    return place


def segment_lesion(
    lesion: Lesion, place: Place, scan: Job, plan: Plan, advance: Advance, watch: WatchLesion | None = None
) -> Segmented:
    """Sample a lesion.

    A model of images labels the slice of a point, or every slice of a box. A model of volumes labels the slices of a
    box; around a point it takes the slices that it declares, and more at the ends that the lesion reaches.

    Args:
        lesion: The lesion.
        place: Its voxels.
        scan: The whole scan.
        plan: The model and its options.
        advance: Called with the part that is done.
        watch: Called with samples as soon as they are drawn, before other objects are left out, and with all of them
            again for every other choice of slices.
    """
    start_time, stack = time.perf_counter(), scan.stack
    draw = _draw_around_point if plan.takes_volumes and not lesion.is_box else _draw_slices
    part = draw(place, scan, plan, advance, watch)
    job, result = part.job, paste(part.samples, part.grid)
    s, h, w = (axis.voxels[0] for axis in part.grid)
    slices, _, height, width = result.labels.shape
    job.stack, job.files, job.result = stack.part((s, h, w), (slices, height, width)), scan.files, result
    job.notices += tuple(_notices(place, part, stack.values.shape[:3]))
    job.seconds = time.perf_counter() - start_time
    return Segmented(lesion, place, job, (s, h, w), tuple(part.ends))


@dataclass(frozen=True)
class _Part:
    """Samples of a part of a scan, on its grid.

    ends: that the lesion reaches; others: number of samples with other objects, which are left out.
    """

    grid: Grid
    job: Job
    samples: StackResult
    ends: list[str]
    others: int = 0


def _draw_slices(place: Place, scan: Job, plan: Plan, advance: Advance, watch: WatchLesion | None) -> _Part:
    """Sample the slices of a point or a box, and no others."""
    step, rows, columns = _in_plane(place, scan.stack, plan)
    grid = (GridAxis.within(*place.slices, step if plan.takes_volumes else 1.0), rows, columns)
    job, samples = _draw(grid, scan, plan, advance, watch)
    ends = _reached_ends(samples, grid, scan.stack.values.shape[:3])
    return _Part(grid, job, samples, [end for end in ends if end not in ENDS[0]])  # these slices were asked for


def _draw_around_point(place: Place, scan: Job, plan: Plan, advance: Advance, watch: WatchLesion | None) -> _Part:
    """Sample as many slices as the model declares, more at the ends that the lesion reaches, then its slices alone.

    Volumes of training data often end with the object. A model that has not seen slices beyond it may mark something
    else there, and find the object less likely. Hence the last step, after which its samples are as likely as in the
    exact extent (docs/experiments.md); with one more slice at both ends they are not.
    """
    size = scan.stack.values.shape[:3]
    step, rows, columns = _in_plane(place, scan.stack, plan)

    def draw(below: int, above: int) -> _Part:
        grid = (GridAxis.inside(place.center[0], below, above, size[0], step), rows, columns)
        job, drawn = _draw(grid, scan, plan, advance, watch)
        samples, others = _keep_near(drawn, _distance(grid, place, scan.stack))
        return _Part(grid, job, samples, _reached_ends(samples, grid, size), others)

    first = declared_preparation(plan.model).slices or DEFAULT_SLICES
    below, above = first // 2, first - 1 - first // 2
    part = draw(below, above)
    while {*ENDS[0]}.intersection(part.ends) and below + above + 1 < first * 2**DOUBLINGS:
        more = max(1, (below + above + 1) // 2)
        below, above = (n + more * (end in part.ends) for n, end in zip((below, above), ENDS[0], strict=True))
        part = draw(below, above)
    own = np.flatnonzero(_is_reached(part.samples))
    if len(own) == 0 or own[-1] - own[0] + 1 == part.grid[0].length:
        return part
    middle = round((place.center[0] - part.grid[0].first) / step)
    alone = draw(max(0, middle - int(own[0])), max(0, int(own[-1]) - middle))
    across, along = (
        [end for end in each.ends if (end in ENDS[0]) == wanted] for each, wanted in ((part, True), (alone, False))
    )
    return replace(alone, ends=across + along)


def _in_plane(place: Place, stack: Stack, plan: Plan) -> tuple[float, GridAxis, GridAxis]:
    """Voxels from a slice that the model sees to the next, and its rows and columns."""
    assert stack.lattice is not None
    preparation = declared_preparation(plan.model)
    between, *step = steps(preparation, stack.lattice.spacing)
    sides = zip(place.center[1:], preparation.crop, stack.values.shape[1:3], step, strict=True)
    rows, columns = (GridAxis.around(*side) for side in sides)
    return between, rows, columns


def _distance(grid: Grid, place: Place, stack: Stack) -> npt.NDArray[np.float64]:
    """Millimeters from the point to every pixel of a grid, "s h w"."""
    assert stack.lattice is not None
    axes = zip(grid, place.center, stack.lattice.spacing, strict=True)
    apart = np.ix_(*((axis.positions - at) * mm for axis, at, mm in axes))
    return np.sqrt(sum(np.square(mm) for mm in apart))


def _keep_near(samples: StackResult, distance: npt.NDArray[np.float64]) -> tuple[StackResult, int]:
    """Return samples of the lesion at a point, without other objects, and the number of samples that have others.

    The connected parts of a sample that are within `NEAR` of the point are the lesion, and so are those of other
    samples that overlap with them.
    """
    parts = [label_components(labels != 0)[0] for labels in samples.labels.swapaxes(0, 1)]  # "s h w" each
    near = distance <= NEAR
    lesion = np.zeros(distance.shape, dtype=bool)
    for each in parts:
        lesion |= _touching(each, near)
    kept = np.stack([_touching(each, lesion) for each in parts], 1)
    others = (samples.labels != 0) & ~kept
    if not others.any():
        return samples, 0
    labels, mean = np.where(others, 0, samples.labels), samples.mean.copy()
    background = np.eye(mean.shape[1], 1, dtype=mean.dtype)
    mean.swapaxes(0, 1)[:, others.any(1) & ~kept.any(1)] = background
    return replace(samples, labels=labels, mean=mean), int(others.any((0, 2, 3)).sum())


def _touching(parts: npt.NDArray[np.int32], place: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The numbered parts "s h w", 0 for none, that have a voxel in a place."""
    chosen = np.zeros(parts.max() + 1, dtype=bool)
    chosen[parts[place]] = True
    chosen[0] = False
    return chosen[parts]


# --- sampling -------------------------------------------------------------------------------------------


def _show(watch: WatchLesion, grid: Grid, first: int, labels: LabelArray, weights: FloatArray) -> None:
    """Show samples "s m h w" of a grid in their place in the scan."""
    slices, rows, columns = (axis.voxels[0] for axis in grid)
    watch(first, paste_labels(labels, grid), weights, (slices, rows, columns))


def _draw(grid: Grid, scan: Job, plan: Plan, advance: Advance, watch: WatchLesion | None) -> tuple[Job, StackResult]:
    """Cut and scale a part of a scan, check it, and draw its samples."""
    values = cut(scan.stack.values, grid)
    if not np.isfinite(values).all():
        raise UserError("the scan has values that are NaN or infinite near the point; replace them")
    model, scaled = plan.model, scale(values, declared_preparation(plan.model))
    parts = [scaled] if plan.takes_volumes else list(scaled)
    images = torch.cat([model.prepare(part, allow_unusual_input=True) for part in parts])
    seen = images[0] if plan.takes_volumes else images.transpose(0, 1)  # as a whole: a slice may be empty
    if not plan.options.allow_unusual_input:
        check_intensities(seen, model.info)
    problem = describe_unusual(seen, model.info)
    notices: tuple[str, ...] = (problem,) if problem else ()
    notices += tuple(calibration_notices(plan, len(images)))
    if len(images) > 1:
        notices += (SLICES[plan.options.slices or "shared"],)
    job = Job(scan.source, Stack(scaled), images, [], notices)
    sample_batch([job], plan, advance, None if watch is None else partial(_show, watch, grid))
    job.notices = notices  # what is cut off is noticed in terms of the scan
    assert job.result is not None
    return job, job.result


# --- what was cut off -----------------------------------------------------------------------------------


def _reached_ends(result: StackResult, grid: Grid, size: tuple[int, ...]) -> list[str]:
    """Ends of the labeled part, inside the scan, that the foreground of any sample reaches; slices: see `REACHES`."""
    marked = (result.labels != 0).any(1)  # "s h w"
    reached = (_is_reached(result), marked.any((0, 2)), marked.any((0, 1)))
    window = ((0, grid[0].length), *(result.window or ((0, grid[1].length), (0, grid[2].length))))
    found = []
    for axis, (names, (first, stop)) in enumerate(zip(ENDS, window, strict=True)):
        positions = grid[axis].positions
        inside = (positions[first] > 0.5, positions[stop - 1] < size[axis] - 1.5)
        for name, index, open_ in zip(names, (first, stop - 1), inside, strict=True):
            if open_ and reached[axis][index]:
                found.append(name)
    return found


def _is_reached(result: StackResult) -> npt.NDArray[np.bool_]:
    """Whether a slice is part of the lesion, "s"."""
    marking = (result.labels != 0).any((2, 3)).mean(1)
    reached: npt.NDArray[np.bool_] = (marking > 0) & (marking >= REACHES * marking.max())
    return reached


def _notices(place: Place, part: _Part, size: tuple[int, ...]) -> Iterator[str]:
    grid, ends = part.grid, part.ends
    if any(axis.is_padded(length) for axis, length in zip(grid, size, strict=True)):
        yield (
            "the part that the model sees reaches beyond the border of the scan: the edge of the scan is repeated "
            "there, and only voxels of the scan are labeled"
        )
    if part.others:
        yield (
            f"in {part.others} of {part.samples.labels.shape[1]} samples, the model marks other objects, more than "
            f"{NEAR:g} mm away from the point and not connected to the lesion; they are left out"
        )
    across = [end for end in ends if end in ENDS[0]]
    if across:
        yield (
            f"WARNING: the lesion is cut off: it reaches the {' and the '.join(across)} of the {grid[0].length} slices "
            "that were segmented, so its volume is too small; pass its extent with --box"
        )
    labeled = part.samples.window or ((0, grid[1].length), (0, grid[2].length))
    sides = "×".join(str(stop - start) for start, stop in labeled)
    along = [end for end in ends if end not in ENDS[0]]
    if along:
        yield (
            f"WARNING: the lesion is cut off: it reaches the border ({', '.join(along)}) of the {sides} pixels that "
            "the model labels; put the point into its center"
        )
    if place.size is not None:
        needed = [length / axis.step for length, axis in zip(place.size[1:], grid[1:], strict=True)]
        if any(length > stop - start for length, (start, stop) in zip(needed, labeled, strict=True)):
            yield f"the box is larger than the {sides} pixels that the model labels; everything outside is background"
