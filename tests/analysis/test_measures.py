"""Measures against analytic shapes and brute force; intervals against fresh raters."""

import math

import numpy as np
import pytest
import torch

import stochseg
from stochseg.analysis import Measurement, coverage, measure, measurements
from stochseg.analysis import measures as m
from stochseg.data import Phantoms
from stochseg.errors import UserError
from stochseg.types import DatasetInfo, Samples

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
    """Connected parts by plain search, neighbors by side or corner."""
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


# --- shapes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spacing", [(1.0, 1.0), ANISOTROPIC, (0.3, 0.3)])
def test_a_disc(spacing):
    radius = 14.0
    region = disc(radius, spacing)
    assert m.area(region, spacing) == pytest.approx(math.pi * radius**2, rel=0.02)
    assert m.equivalent_diameter(region, spacing) == pytest.approx(2 * radius, rel=0.01)
    # Corners of pixels whose centers are inside lie up to half a diagonal beyond the circle, at both ends.
    longest = m.longest_diameter(region, spacing)
    assert 2 * radius <= longest + 2 * max(spacing)
    assert longest <= 2 * radius + math.hypot(*spacing)
    assert m.perimeter(region, spacing) == pytest.approx(2 * math.pi * radius, rel=0.03)
    assert m.components(region, spacing) == 1


@pytest.mark.parametrize("spacing", [(1.0, 1.0), ANISOTROPIC])
def test_a_rectangle(spacing):
    h, w = 9, 21
    region = rectangle(h, w)
    assert m.area(region, spacing) == pytest.approx(h * w * spacing[0] * spacing[1])
    assert m.longest_diameter(region, spacing) == pytest.approx(math.hypot(h * spacing[0], w * spacing[1]))
    around = 2 * (h * spacing[0] + w * spacing[1])
    assert 0.9 * around < m.perimeter(region, spacing) < around


def test_empty_and_single_pixels():
    nothing, pixel = np.zeros((5, 5), dtype=bool), rectangle(1, 1)
    for kind in m.MEASURES.values():
        assert kind.of(nothing, ANISOTROPIC) == 0
    assert m.longest_diameter(pixel, ANISOTROPIC) == pytest.approx(math.hypot(*ANISOTROPIC))
    assert m.longest_diameter(rectangle(1, 7)) == pytest.approx(math.hypot(1, 7))
    full = np.ones((4, 6), dtype=bool)
    assert m.longest_diameter(full) == pytest.approx(math.hypot(4, 6))
    assert m.perimeter(full) == m.perimeter(rectangle(4, 6))


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
    assert m.longest_diameter(region, ANISOTROPIC) == pytest.approx(longest)
    assert m.components(region) == len(parts)


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
    # direction: angle that it stands for, distance of its lines
    along = {
        (0, 1): (slant, row),
        (1, 0): (math.pi / 2 - slant, column),
        (1, 1): (math.pi / 4, row * column / math.hypot(row, column)),
        (1, -1): (math.pi / 4, row * column / math.hypot(row, column)),
    }
    expected = sum(angle * apart * crossings(*step) for step, (angle, apart) in along.items()) / 2
    assert m.perimeter(region, ANISOTROPIC) == pytest.approx(expected)


def test_perimeter_does_not_depend_on_the_frame():
    region = blobs(1)
    assert m.perimeter(np.pad(region, 4)) == pytest.approx(m.perimeter(region))
    assert m.perimeter(region.T, ANISOTROPIC[::-1]) == pytest.approx(m.perimeter(region, ANISOTROPIC))


# --- measuring samples ------------------------------------------------------------------------------------

INFO = DatasetInfo(num_classes=3, image_channels=1, class_names=("background", "core", "halo"))


def samples(labels, weights=None, classes=3):
    b, n, h, w = labels.shape
    weights = torch.full((b, n), 1 / n) if weights is None else weights
    return Samples(labels, torch.full((b, classes, h, w), 1 / classes), weights, 0)


def test_classes_spacing_and_units():
    labels = torch.zeros(2, 3, 8, 8, dtype=torch.long)
    labels[1, :, 2:5, 2:4] = 1
    labels[1, 2, 5, 2:4] = 2
    out = samples(labels)
    whole = measure(out, "area", which=1)
    assert (whole.values.tolist(), whole.unit) == ([6, 6, 8], "px²")
    halo = measure(out, "area", label="halo", spacing=ANISOTROPIC, which=1, info=INFO)
    assert halo.values.tolist() == pytest.approx([0, 0, 0.8])
    assert (halo.name, halo.unit) == ("area of halo", "mm²")
    longest = measure(out, "longest diameter", label=1, spacing=ANISOTROPIC, which=1)
    assert longest.values == pytest.approx(np.full(3, math.hypot(1.5, 1.6)))
    assert longest.unit == "mm"
    parts = measure(out, "components", which=1, spacing=ANISOTROPIC)
    assert parts.unit == ""
    assert [x.name for x in measurements(out, which=1, info=INFO)][5:7] == [
        "area of halo",
        "equivalent diameter of halo",
    ]


def test_void_is_no_class():
    maps = torch.tensor([[[0, 1], [255, 255]]])
    with pytest.raises(UserError, match=r"expected labels 0\.\.2, got 255; give void pixels a label first"):
        measure(maps, "area", info=INFO)


def test_a_function_of_the_users_own():
    maps = torch.arange(12).view(3, 2, 2) % 5

    def brightest(labels):
        return labels.max()

    got = measure(maps, brightest)
    assert got.values.tolist() == [3, 4, 4]
    assert got.name == "brightest"
    with pytest.raises(UserError, match="sample 0 measures nan"):
        measure(maps, lambda labels: math.nan)
    with pytest.raises(UserError, match="whole label map"):
        measure(maps, brightest, label=1)


def test_volume_is_the_sum_over_slices():
    labels = torch.randint(3, (5, 4, 6, 6))
    out = measure(samples(labels), "volume", label=2, spacing=(2.5, 0.5, 0.8))
    expected = [sum(int((labels[z, i] == 2).sum()) for z in range(5)) * 2.5 * 0.5 * 0.8 for i in range(4)]
    assert out.values == pytest.approx(expected)
    assert out.unit == "mm³"
    assert measure(samples(labels), "volume").unit == "px³"
    uneven = torch.rand(5, 4).softmax(1)
    with pytest.raises(UserError, match="sample i must weigh the same"):
        measure(samples(labels, uneven), "volume")
    with pytest.raises(UserError, match="stack the slices"):
        measure(labels[0], "volume")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"what": "girth"}, "unknown measure 'girth'; known: area, components"),
        ({"spacing": (1, 0)}, "2 positive numbers"),
        ({"spacing": (1, 1, 1)}, r"\(row, column\)"),
        ({"label": 3}, "class from 0 to 2"),
        ({"label": "rim"}, "pass info"),
        ({"label": "rim", "info": INFO}, "known: background, core, halo"),
    ],
)
def test_errors_say_what_to_do(options, message):
    with pytest.raises(UserError, match=message):
        measure(samples(torch.zeros(1, 2, 4, 4, dtype=torch.long)), **options)


# --- what the values say ----------------------------------------------------------------------------------


def test_statistics_against_copies():
    """Whole-number weights are the same as copies."""
    rng = np.random.default_rng(0)
    values, copies = rng.integers(0, 6, 10).astype(float), rng.integers(1, 5, 10)
    weighted = Measurement("x", values, copies / copies.sum())
    many = np.repeat(values, copies)
    assert weighted.mean == pytest.approx(many.mean())
    assert weighted.std == pytest.approx(many.std())
    for q in (0, 0.05, 0.25, 0.5, 0.9, 1):
        assert weighted.quantile(q) == np.quantile(many, q, method="inverted_cdf")
    assert weighted.interval(0.8) == (weighted.quantile(0.1), weighted.quantile(0.9))
    for sign, holds in ((">", many > 3), (">=", many >= 3), ("<", many < 3), ("<=", many <= 3), ("==", many == 3)):
        assert weighted.probability(sign, 3) == pytest.approx(holds.mean())


def test_quantiles_are_not_lost_to_rounding():
    tenth = Measurement("x", np.arange(10.0), np.full(10, 0.1))
    assert [tenth.quantile(q / 10) for q in range(1, 11)] == list(range(10))
    zero = Measurement("x", np.array([5.0, 1.0, 9.0]), np.array([1.0, 0.0, 0.0]))
    assert zero.interval() == (5, 5)
    with pytest.raises(UserError, match="unknown comparison '=>'"):
        tenth.probability("=>", 3)
    with pytest.raises(UserError, match="such as 0.9"):
        tenth.interval(90)


def test_shows_itself():
    got = measure(torch.ones(4, 2, 3, dtype=torch.long), "area", spacing=(1, 1), name="a < b")
    assert repr(got) == "a < b: 6 mm², std 0, 90% 6 to 6 mm² (4 samples)"
    assert "a &lt; b" in got._repr_html_()
    table = measurements(samples(torch.randint(3, (1, 4, 8, 8))), info=INFO)
    assert table._repr_html_().count("<tr>") == 1 + 2 * len(m.MEASURES)
    assert len(repr(table).splitlines()) == 2 * len(m.MEASURES)


# --- coverage ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", ["binary", "multiclass"])
def test_perfect_samples_cover_fresh_raters(variant):
    data = Phantoms("val", size=16, variant=variant, count=300)
    ours = [measure(data.draw(i, 40, seed=1), "area", label=1) for i in range(300)]
    fresh = [measure(data.draw(i, 8, seed=2), "area", label=1) for i in range(300)]
    for level in (0.5, 0.9):
        got = coverage(ours, fresh, level)
        assert got.randomized == pytest.approx(level, abs=0.05)
        assert got.closed >= got.randomized
    assert 0.85 <= got.randomized <= 0.95
    assert got.raters == 2400


def test_samples_that_are_too_sure_are_found_out():
    data = Phantoms("val", size=16, count=100)
    sure = [measure(data.draw(i, 1, seed=1).repeat(40, 1, 1), "area") for i in range(100)]
    assert coverage(sure, [measure(data[i].raters, "area") for i in range(100)]).randomized < 0.7


@pytest.mark.parametrize("n", [3, 10, 37])
def test_coverage_is_exact_at_every_n(n):
    """Of n + 1 exchangeable values each is the rater's once: the mean is the level, with and without ties."""
    rng = np.random.default_rng(n)
    for values in (rng.random(n + 1), rng.integers(0, 3, n + 1).astype(float), np.zeros(n + 1)):
        ours = [Measurement("x", np.delete(values, i), np.full(n, 1 / n)) for i in range(n + 1)]
        theirs = [Measurement("x", values[i : i + 1], np.ones(1)) for i in range(n + 1)]
        assert coverage(ours, theirs, 0.9).randomized == pytest.approx(0.9)


def test_coverage_needs_one_unit_and_pairs():
    maps = torch.ones(2, 3, 3, dtype=torch.long)
    plain, metric = measure(maps), measure(maps, spacing=(1, 1))
    with pytest.raises(UserError, match="one unit"):
        coverage([plain], [metric])
    with pytest.raises(UserError, match="got 0 and 1"):
        coverage([plain], [])


def test_is_public():
    assert stochseg.measure is measure
