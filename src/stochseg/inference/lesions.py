"""One lesion of a scan: the part around it is cut as the model declares, sampled, and pasted back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from stochseg.errors import UserError
from stochseg.inference.grids import Grid, GridAxis, cut, paste, scale, steps
from stochseg.inference.jobs import SLICES, Job, sample_batch
from stochseg.inference.plan import Plan
from stochseg.inference.points import Lesion, Place, locate
from stochseg.inference.result import FloatArray, StackResult
from stochseg.inference.sources import Source
from stochseg.inference.stacks import Stack
from stochseg.models import StochasticSegmenter
from stochseg.models.intensities import check_intensities, describe_unusual
from stochseg.types import Preparation

DEFAULT_SLICES = 16
"""Slices around a point at first, if the model does not declare them."""
DOUBLINGS = 3
"""How often the number of slices is doubled at most; a lesion that is longer counts as cut off."""
ENDS = (("first slice", "last slice"), ("top", "bottom"), ("left", "right"))

Advance = Callable[[float], None]
"""Called with the part of a lesion that is done."""


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
    if plan.takes_volumes and len(stack.values) < 2:
        raise UserError("the scan has one slice, but the model segments volumes; pass all slices, or a model of slices")
    return place


def segment_lesion(lesion: Lesion, place: Place, scan: Job, plan: Plan, advance: Advance) -> Segmented:
    """Sample a lesion.

    A model of images labels the slice of a point, or every slice of a box. A model of volumes labels the slices of a
    box; around a point it takes the slices that it declares, and twice as many as long as the foreground of any sample
    reaches the first or the last of them.

    Args:
        lesion: The lesion.
        place: Its voxels.
        scan: The whole scan.
        plan: The model and its options.
        advance: Called with the part that is done.
    """
    start_time, stack = time.perf_counter(), scan.stack
    preparation = declared_preparation(plan.model)
    dims, size = plan.model.info.spatial_dims, stack.values.shape[:3]
    grids = _grids(lesion, place, stack, preparation, dims)
    for number, grid in enumerate(grids):
        job, drawn = _draw(cut(stack.values, grid), scan.source, preparation, plan, advance)
        ends = _reached_ends(drawn, grid, size)
        if not {*ENDS[0]}.intersection(ends) or grid == grids[min(number + 1, len(grids) - 1)]:
            break
    if len(grids) == 1:  # these slices were asked for
        ends = [end for end in ends if end not in ENDS[0]]
    s, h, w = (axis.voxels[0] for axis in grid)
    result = paste(drawn, grid)
    slices, _, height, width = result.labels.shape
    job.stack, job.files, job.result = stack.part((s, h, w), (slices, height, width)), scan.files, result
    job.notices += tuple(_notices(place, grid, drawn, ends, size))
    job.seconds = time.perf_counter() - start_time
    return Segmented(lesion, place, job, (s, h, w), tuple(ends))


def _grids(lesion: Lesion, place: Place, stack: Stack, preparation: Preparation, dims: int) -> list[Grid]:
    """The part that the model sees; for a point in a model of volumes, parts of more and more slices, the last of which
    may be equal because the scan has no more."""
    assert stack.lattice is not None
    depth, *plane = stack.values.shape[:3]
    step = steps(preparation, stack.lattice.spacing)
    sides = zip(place.center[1:], preparation.crop, plane, step[1:], strict=True)
    rows, columns = (GridAxis.around(*side) for side in sides)
    if dims == 2 or lesion.is_box:
        return [(GridAxis.within(*place.slices, step[0] if dims == 3 else 1.0), rows, columns)]
    first = preparation.slices or DEFAULT_SLICES
    counts = (first * 2**i for i in range(DOUBLINGS + 1))
    return [(GridAxis.inside(place.center[0], count, depth, step[0]), rows, columns) for count in counts]


# --- sampling -------------------------------------------------------------------------------------------


def _draw(
    values: FloatArray, source: Source, preparation: Preparation, plan: Plan, advance: Advance
) -> tuple[Job, StackResult]:
    """Scale a part of a scan, check it, and draw its samples."""
    if not np.isfinite(values).all():
        raise UserError("the scan has values that are NaN or infinite near the point; replace them")
    model, scaled = plan.model, scale(values, preparation)
    parts = [scaled] if plan.takes_volumes else list(scaled)
    images = torch.cat([model.prepare(part, allow_unusual_input=True) for part in parts])
    seen = images[0] if plan.takes_volumes else images.transpose(0, 1)  # as a whole: a slice may be empty
    if not plan.options.allow_unusual_input:
        check_intensities(seen, model.info)
    problem = describe_unusual(seen, model.info)
    notices: tuple[str, ...] = (problem,) if problem else ()
    if len(images) > 1:
        notices += (SLICES[plan.options.slices or "shared"],)
    job = Job(source, Stack(scaled), images, [], notices)
    sample_batch([job], plan, advance)
    job.notices = notices  # what is cut off is noticed in terms of the scan
    assert job.result is not None
    return job, job.result


# --- what was cut off -----------------------------------------------------------------------------------


def _reached_ends(result: StackResult, grid: Grid, size: tuple[int, ...]) -> list[str]:
    """Ends of the labeled part, inside the scan, that the foreground of any sample reaches."""
    marked = torch.from_numpy((result.labels != 0).any(1))  # "s h w"
    window = ((0, grid[0].length), *(result.window or ((0, grid[1].length), (0, grid[2].length))))
    reached = []
    for axis, (names, (first, stop)) in enumerate(zip(ENDS, window, strict=True)):
        positions = grid[axis].positions
        inside = (positions[first] > 0.5, positions[stop - 1] < size[axis] - 1.5)
        for name, index, open_ in zip(names, (first, stop - 1), inside, strict=True):
            if open_ and bool(marked.select(axis, index).any()):
                reached.append(name)
    return reached


def _notices(place: Place, grid: Grid, result: StackResult, ends: list[str], size: tuple[int, ...]) -> Iterator[str]:
    if any(axis.is_padded(length) for axis, length in zip(grid, size, strict=True)):
        yield (
            "the part that the model sees reaches beyond the border of the scan: the edge of the scan is repeated "
            "there, and only voxels of the scan are labeled"
        )
    across = [end for end in ends if end in ENDS[0]]
    if across:
        yield (
            f"WARNING: the lesion is cut off: it reaches the {' and the '.join(across)} of the {grid[0].length} slices "
            "that were segmented, so its volume is too small; pass its extent with --box"
        )
    labeled = result.window or ((0, grid[1].length), (0, grid[2].length))
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
