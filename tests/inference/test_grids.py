"""Parts of scans: cut, resampled, scaled and pasted back, against brute force."""

import itertools
import math

import numpy as np
import pytest

from stochseg.inference.grids import GridAxis, cut, paste, scale, steps
from stochseg.inference.result import StackResult
from stochseg.types import Preparation

SIZE = (6, 11, 9)
GRIDS = {
    "inside": (GridAxis.around(3, 4, 6), GridAxis.around(5, 6, 11), GridAxis.around(4, 5, 9)),
    "beyond all borders": (GridAxis.around(0, 9, 6), GridAxis.around(10, 6, 11), GridAxis.around(1, 20, 9)),
    "coarser": (GridAxis.inside(3, 4, 4, 6, 1.7), GridAxis.around(5, 4, 11, 2.5), GridAxis.around(0, 4, 9, 1.3)),
    "finer": (GridAxis.within(2, 5, 0.6), GridAxis.around(5, 9, 11, 0.4), GridAxis.around(8, 8, 9, 0.9)),
}


@pytest.fixture(params=GRIDS)
def grid(request):
    return GRIDS[request.param]


def hats(positions, length: int) -> np.ndarray:
    """Weight of each of `length` neighbors at each position, clipped to them: linear interpolation by definition."""
    clipped = np.clip(positions, 0, length - 1)
    return np.array([[max(0.0, 1 - abs(p - i)) for i in range(length)] for p in clipped])


def test_cut_interpolates_between_voxels_and_repeats_the_edge(grid):
    scan = np.random.default_rng(0).normal(0, 100, SIZE)
    places = [[axis.first + i * axis.step for i in range(axis.length)] for axis in grid]
    weights = [hats(place, length) for place, length in zip(places, SIZE, strict=True)]
    expected = np.einsum("as,bh,cw,shw->abc", *weights, scan)
    got = cut(scan, grid)
    assert got.shape == tuple(axis.length for axis in grid)
    assert np.allclose(got, expected, atol=1e-3)


def test_paste_gives_each_voxel_its_nearest_pixel(grid):
    rng = np.random.default_rng(1)
    depth, height, width = (axis.length for axis in grid)
    labels = rng.integers(0, 2, (depth, 3, height, width)).astype(np.uint8)
    mean = rng.random((depth, 2, height, width)).astype(np.float32)
    window = ((1, height - 1), (1, width))
    pasted = paste(StackResult(labels, mean, np.full((depth, 3), 1 / 3, np.float32), 5, window), grid)
    start = [axis.voxels[0] for axis in grid]
    covered = 0
    for voxel in itertools.product(*(range(n) for n in SIZE)):
        pixel = [(v - axis.first) / axis.step for v, axis in zip(voxel, grid, strict=True)]
        allowed = all(axis.limits[0] <= v < axis.limits[1] for v, axis in zip(voxel, grid, strict=True))
        if not allowed or any(not -0.5 <= p < axis.length - 0.5 for p, axis in zip(pixel, grid, strict=True)):
            continue
        covered += 1
        s, h, w = (v - a for v, a in zip(voxel, start, strict=True))
        near = [min(max(math.floor(p + 0.5), 0), axis.length - 1) for p, axis in zip(pixel, grid, strict=True)]
        assert (pasted.labels[s, :, h, w] == labels[near[0], :, near[1], near[2]]).all()
        around = (hats([p], axis.length)[0] for p, axis in zip(pixel, grid, strict=True))
        assert np.allclose(pasted.mean[s, :, h, w], np.einsum("a,b,c,albc->l", *around, mean), atol=1e-5)
        inside = window[0][0] <= near[1] < window[0][1] and window[1][0] <= near[2] < window[1][1]
        (top, bottom), (left, right) = pasted.window
        assert inside == (top <= h < bottom and left <= w < right)
    assert covered == pasted.labels[:, 0].size, "and nothing else"


def test_what_is_cut_is_pasted_where_it_was():
    scan = np.random.default_rng(2).integers(0, 200, SIZE).astype(np.uint8)
    for name in ("inside", "beyond all borders"):
        grid = GRIDS[name]
        part = cut(scan, grid)
        result = StackResult(part[:, None].astype(np.uint8), part[:, None], np.ones((len(part), 1), np.float32))
        pasted = paste(result, grid)
        voxels = tuple(slice(*axis.voxels) for axis in grid)
        assert (pasted.labels[:, 0] == scan[voxels]).all()
        assert (pasted.mean[:, 0] == scan[voxels]).all()


def test_scales():
    values = np.array([[[-1000.0, 24.0], [0.0, 0.0]], [[7.0, 7.0], [7.0, 7.0]]], np.float32)
    min_max = scale(values, Preparation(crop=(2, 2), scale="min-max"))
    assert min_max.tolist() == [[[0, 255], [249, 249]], [[0, 0], [0, 0]]], "slice by slice; a constant slice is black"
    window = scale(values, Preparation(crop=(2, 2), scale="window", window=(-500, 10)))
    assert window.tolist() == [[[0, 255], [250, 250]], [[254, 254], [254, 254]]]
    assert scale(values, Preparation(crop=(2, 2))) is values


def test_a_scan_of_nearly_the_wanted_spacing_is_not_resampled():
    wanted = Preparation(crop=(2, 2), spacing=(2.0, 0.7, 0.7))
    assert steps(wanted, (2.0, 0.7 * 1.001, 0.35)) == (1.0, 1.0, 2.0)
    assert steps(Preparation(crop=(2, 2), spacing=(0.7, 0.7)), (2.0, 0.7, 1.4)) == (1.0, 1.0, 0.5)
    assert steps(Preparation(crop=(2, 2)), (2.0, 0.7, 1.4)) == (1.0, 1.0, 1.0)
