"""Measures of regions against analytic shapes and brute force."""

import math

import numpy as np
import pytest

from stochseg.analysis.measures import MEASURES
from stochseg.analysis.regions import area, components, equivalent_diameter, longest_diameter, perimeter

ANISOTROPIC = (0.5, 0.8)


def disc(radius, spacing=(1.0, 1.0), margin=3):
    """A disc of this radius in millimeters."""
    half = [int(radius / s) + margin for s in spacing]
    y, x = np.mgrid[-half[0] : half[0] + 1, -half[1] : half[1] + 1]
    return (y * spacing[0]) ** 2 + (x * spacing[1]) ** 2 <= radius**2


def rectangle(h, w):
    region = np.zeros((h + 4, w + 5), dtype=bool)
    region[2 : 2 + h, 3 : 3 + w] = True
    return region


def blobs(seed, size=12):
    return np.random.default_rng(seed).random((size, size)) < 0.45


def flood(region):
    """Connected components by flood fill, neighbors by side or corner."""
    left, parts = set(zip(*np.nonzero(region), strict=True)), []
    while left:
        part, edge = set(), [left.pop()]
        while edge:
            y, x = edge.pop()
            part.add((y, x))
            near = {(y + i, x + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} & left
            left -= near
            edge += near
        parts.append(part)
    return parts


@pytest.mark.parametrize("spacing", [(1.0, 1.0), ANISOTROPIC, (0.3, 0.3)])
def test_disc(spacing):
    radius = 14.0
    region = disc(radius, spacing)
    assert area(region, spacing) == pytest.approx(math.pi * radius**2, rel=0.02)
    assert equivalent_diameter(region, spacing) == pytest.approx(2 * radius, rel=0.01)
    # Corners of pixels whose centers are inside lie up to half a diagonal beyond the circle, at both ends.
    longest = longest_diameter(region, spacing)
    assert 2 * radius <= longest + 2 * max(spacing)
    assert longest <= 2 * radius + math.hypot(*spacing)
    assert perimeter(region, spacing) == pytest.approx(2 * math.pi * radius, rel=0.03)
    assert components(region, spacing) == 1


@pytest.mark.parametrize("spacing", [(1.0, 1.0), ANISOTROPIC])
def test_rectangle(spacing):
    h, w = 9, 21
    region = rectangle(h, w)
    assert area(region, spacing) == pytest.approx(h * w * spacing[0] * spacing[1])
    assert longest_diameter(region, spacing) == pytest.approx(math.hypot(h * spacing[0], w * spacing[1]))
    around = 2 * (h * spacing[0] + w * spacing[1])
    assert 0.9 * around < perimeter(region, spacing) < around


def test_empty_and_single_pixels():
    nothing, pixel = np.zeros((5, 5), dtype=bool), rectangle(1, 1)
    for function, _ in MEASURES.values():
        assert function(nothing, ANISOTROPIC) == 0
    assert longest_diameter(pixel, ANISOTROPIC) == pytest.approx(math.hypot(*ANISOTROPIC))
    assert longest_diameter(rectangle(1, 7)) == pytest.approx(math.hypot(1, 7))
    full = np.ones((4, 6), dtype=bool)
    assert longest_diameter(full) == pytest.approx(math.hypot(4, 6))
    assert perimeter(full) == perimeter(rectangle(4, 6))


@pytest.mark.parametrize("seed", range(6))
def test_longest_diameter_and_components_by_brute_force(seed):
    region = blobs(seed)
    parts = flood(region)
    longest = 0.0
    for part in parts:
        corners = {(y + i, x + j) for y, x in part for i in (0, 1) for j in (0, 1)}
        for a in corners:
            for b in corners:
                longest = max(longest, math.hypot((a[0] - b[0]) * 0.5, (a[1] - b[1]) * 0.8))
    assert longest_diameter(region, ANISOTROPIC) == pytest.approx(longest)
    assert components(region) == len(parts)


@pytest.mark.parametrize("seed", range(3))
def test_perimeter_by_counting_crossings(seed):
    region, (row, column) = blobs(seed), ANISOTROPIC
    h, w = region.shape

    def inside(y, x):
        return 0 <= y < h and 0 <= x < w and region[y, x]

    def crossings(down, right):
        cells = [(y, x) for y in range(-2, h + 2) for x in range(-2, w + 2)]
        return sum(inside(y, x) != inside(y + down, x + right) for y, x in cells)

    slant = math.atan2(row, column)
    # direction: its sector, distance between its lines
    along = {
        (0, 1): (slant, row),
        (1, 0): (math.pi / 2 - slant, column),
        (1, 1): (math.pi / 4, row * column / math.hypot(row, column)),
        (1, -1): (math.pi / 4, row * column / math.hypot(row, column)),
    }
    expected = sum(sector * gap * crossings(*step) for step, (sector, gap) in along.items()) / 2
    assert perimeter(region, ANISOTROPIC) == pytest.approx(expected)


def test_perimeter_is_independent_of_padding_and_transposition():
    region = blobs(1)
    assert perimeter(np.pad(region, 4)) == pytest.approx(perimeter(region))
    assert perimeter(region.T, ANISOTROPIC[::-1]) == pytest.approx(perimeter(region, ANISOTROPIC))
