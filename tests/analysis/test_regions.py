"""Measures of regions against analytic shapes and brute force."""

import itertools
import math

import numpy as np
import pytest

from stochseg.analysis.measures import MEASURES
from stochseg.analysis.regions import (
    bounding_box,
    components,
    equivalent_diameter,
    longest_diameter,
    longest_diameter_in_plane,
    perimeter,
    size,
    surface_area,
)
from tests.support.volumes import box, ellipsoid

PIXEL, ANISOTROPIC = (1.0, 1.0), (0.5, 0.8)
CT = (2.5, 0.7, 0.8)


def disc(radius, spacing=(1.0, 1.0), margin=3):
    """A disc of this radius in millimeters."""
    half = [int(radius / s) + margin for s in spacing]
    y, x = np.mgrid[-half[0] : half[0] + 1, -half[1] : half[1] + 1]
    return (y * spacing[0]) ** 2 + (x * spacing[1]) ** 2 <= radius**2


def rectangle(h, w):
    region = np.zeros((h + 4, w + 5), dtype=bool)
    region[2 : 2 + h, 3 : 3 + w] = True
    return region


def blobs(seed, shape=(12, 12), density=0.45):
    return np.random.default_rng(seed).random(shape) < density


def flood(region):
    """Connected components by flood fill, neighbors by side or corner."""
    left, parts = set(zip(*np.nonzero(region), strict=True)), []
    while left:
        part, edge = set(), [left.pop()]
        while edge:
            place = edge.pop()
            part.add(place)
            steps = itertools.product((-1, 0, 1), repeat=region.ndim)
            near = {tuple(a + b for a, b in zip(place, step, strict=True)) for step in steps} & left
            left -= near
            edge += near
        parts.append(part)
    return parts


@pytest.mark.parametrize("spacing", [(1.0, 1.0), ANISOTROPIC, (0.3, 0.3)])
def test_disc(spacing):
    radius = 14.0
    region = disc(radius, spacing)
    assert size(region, spacing) == pytest.approx(math.pi * radius**2, rel=0.02)
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
    assert size(region, spacing) == pytest.approx(h * w * spacing[0] * spacing[1])
    assert longest_diameter(region, spacing) == pytest.approx(math.hypot(h * spacing[0], w * spacing[1]))
    around = 2 * (h * spacing[0] + w * spacing[1])
    assert 0.9 * around < perimeter(region, spacing) < around


def test_empty_and_single_pixels():
    nothing, pixel = np.zeros((5, 5), dtype=bool), rectangle(1, 1)
    for function, _, axes in MEASURES.values():
        if 2 in axes:
            assert function(nothing, ANISOTROPIC) == 0
        if 3 in axes:
            assert function(np.zeros((3, 4, 5), dtype=bool), CT) == 0
    assert bounding_box(nothing) is None
    assert longest_diameter(pixel, ANISOTROPIC) == pytest.approx(math.hypot(*ANISOTROPIC))
    assert longest_diameter(rectangle(1, 7), PIXEL) == pytest.approx(math.hypot(1, 7))
    full = np.ones((4, 6), dtype=bool)
    assert longest_diameter(full, PIXEL) == pytest.approx(math.hypot(4, 6))
    assert perimeter(full, PIXEL) == perimeter(rectangle(4, 6), PIXEL)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("shape", "density", "spacing"), [((12, 12), 0.45, ANISOTROPIC), ((4, 6, 5), 0.15, CT)])
def test_longest_diameter_and_components_by_brute_force(seed, shape, density, spacing):
    region = blobs(seed, shape, density)
    parts = flood(region)
    longest = 0.0
    for part in parts:
        steps = list(itertools.product((0, 1), repeat=region.ndim))
        corners = {tuple(a + b for a, b in zip(place, step, strict=True)) for place in part for step in steps}
        for one, other in itertools.combinations(corners, 2):
            longest = max(longest, math.dist(np.multiply(one, spacing), np.multiply(other, spacing)))
    assert longest_diameter(region, spacing) == pytest.approx(longest)
    assert components(region, spacing) == len(parts)


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (1.25, 0.7, 0.7), CT])
def test_ball_and_box(spacing):
    radius = 15.0
    region = ellipsoid((radius,) * 3, spacing)
    assert size(region, spacing) == pytest.approx(4 / 3 * math.pi * radius**3, rel=0.01)
    assert equivalent_diameter(region, spacing) == pytest.approx(2 * radius, rel=0.005)
    assert surface_area(region, spacing) == pytest.approx(4 * math.pi * radius**2, rel=0.02)
    for longest, voxel in ((longest_diameter, spacing), (longest_diameter_in_plane, spacing[1:])):
        # Corners of voxels whose centers are inside lie up to half a diagonal beyond the ball, at both ends.
        assert 2 * (radius - max(voxel)) <= longest(region, spacing) <= 2 * radius + math.hypot(*voxel)
    sides = np.array((8, 20, 30)) * spacing
    solid = box((8, 20, 30))
    assert longest_diameter(solid, spacing) == pytest.approx(math.hypot(*sides))
    assert longest_diameter_in_plane(solid, spacing) == pytest.approx(math.hypot(*sides[1:]))
    faces = 2 * (sides[0] * sides[1] + sides[1] * sides[2] + sides[0] * sides[2])
    assert 0.85 * faces < surface_area(solid, spacing) < faces


def test_surface_of_an_ellipsoid_in_any_orientation():
    """Its estimate depends little on the axes, on padding and on the order of the axes."""
    for semi in itertools.permutations((16.0, 12.0, 8.0)):
        pairs = [(a * b) ** 1.6075 for a, b in itertools.combinations(semi, 2)]
        knud_thomsen = 4 * math.pi * (sum(pairs) / 3) ** (1 / 1.6075)  # accurate to 1.1%
        region = ellipsoid(semi, CT)
        assert surface_area(region, CT) == pytest.approx(knud_thomsen, rel=0.04)
    assert surface_area(np.pad(region, 3), CT) == pytest.approx(surface_area(region, CT))
    turned = surface_area(np.moveaxis(region, 0, 2), (*CT[1:], CT[0]))
    assert turned == pytest.approx(surface_area(region, CT))


def test_diameter_in_plane_is_the_largest_of_a_slice():
    """A slanted rod is long in space and short in every slice; two lesions do not add up."""
    rod = np.zeros((6, 8, 8), dtype=bool)
    for z in range(6):
        rod[z, z, z] = True
    assert longest_diameter_in_plane(rod, CT) == pytest.approx(math.hypot(*CT[1:]))
    assert longest_diameter(rod, CT) == pytest.approx(6 * math.hypot(*CT))
    rod[0, 0, 7] = True
    assert longest_diameter_in_plane(rod, CT) == pytest.approx(math.hypot(*CT[1:]))


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
    assert perimeter(np.pad(region, 4), PIXEL) == pytest.approx(perimeter(region, PIXEL))
    assert perimeter(region.T, ANISOTROPIC[::-1]) == pytest.approx(perimeter(region, ANISOTROPIC))
