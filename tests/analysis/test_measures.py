"""Measuring the samples of an image."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import stochseg
from stochseg.analysis import measure, measurements
from stochseg.analysis.measures import measure_names
from stochseg.errors import UserError
from stochseg.types import DatasetInfo
from tests.support.samples import as_samples
from tests.support.volumes import ball_samples

ANISOTROPIC = (0.5, 0.8)
INFO = DatasetInfo(num_classes=3, image_channels=1, class_names=("background", "core", "halo"))


def test_classes_spacing_and_units():
    labels = torch.zeros(2, 3, 8, 8, dtype=torch.long)
    labels[1, :, 2:5, 2:4] = 1
    labels[1, 2, 5, 2:4] = 2
    out = as_samples(labels, 3)
    whole = measure(out, "area", index=1)
    assert (whole.values.tolist(), whole.unit) == ([6, 6, 8], "px²")
    halo = measure(out, "area", label="halo", spacing=ANISOTROPIC, index=1, info=INFO)
    assert halo.values.tolist() == pytest.approx([0, 0, 0.8])
    assert (halo.name, halo.unit) == ("area of halo", "mm²")
    longest = measure(out, "longest diameter", label=1, spacing=ANISOTROPIC, index=1)
    assert longest.values == pytest.approx(np.full(3, math.hypot(1.5, 1.6)))
    assert longest.unit == "mm"
    parts = measure(out, "components", index=1, spacing=ANISOTROPIC)
    assert parts.unit == ""
    assert [x.name for x in measurements(out, index=1, info=INFO)][5:7] == [
        "area of halo",
        "equivalent diameter of halo",
    ]


def test_class_names_come_from_the_samples():
    labels = torch.full((1, 2, 4, 4), 2)
    named = replace(as_samples(labels, 3), info=INFO)
    assert measure(named, "area", label="halo").values.tolist() == [16, 16]
    assert measurements(named)[0].name == "area of core"
    assert stochseg.hypotheses(named)[0].name == "halo"


def test_void_is_rejected():
    maps = torch.tensor([[[0, 1], [255, 255]]])
    with pytest.raises(UserError, match=r"expected labels 0\.\.2, got 255.*void"):
        measure(maps, "area", info=INFO)


def test_user_function():
    maps = torch.arange(12).view(3, 2, 2) % 5

    def brightest(labels):
        return labels.max()

    got = measure(maps, brightest)
    assert got.values.tolist() == [3, 4, 4]
    assert got.name == "brightest"
    with pytest.raises(UserError, match="sample 0 measures nan"):
        measure(maps, lambda labels: math.nan)
    with pytest.raises(UserError, match="label and spacing"):
        measure(maps, brightest, label=1)


def test_volume_is_the_sum_over_slices():
    labels = torch.randint(3, (5, 4, 6, 6))
    out = measure(as_samples(labels, 3), "volume", label=2, spacing=(2.5, 0.5, 0.8))
    expected = [sum(int((labels[z, i] == 2).sum()) for z in range(5)) * 2.5 * 0.5 * 0.8 for i in range(4)]
    assert out.values == pytest.approx(expected)
    assert out.unit == "mm³"
    assert measure(as_samples(labels, 3), "volume").unit == "px³"
    uneven = torch.rand(5, 4).softmax(1)
    with pytest.raises(UserError, match="same weight in every slice"):
        measure(as_samples(labels, 3, uneven), "volume")
    with pytest.raises(UserError, match="stack the slices"):
        measure(labels[0], "volume")


def test_volumes_are_measured_by_the_same_functions():
    spacing, radii = (2.5, 1.0, 1.0), [0.0, 6.0, 9.0]
    out = ball_samples(radii, spacing, weights=[0.5, 0.25, 0.25])
    volume = measure(out, spacing=spacing)
    assert (volume.name, volume.unit) == ("volume of foreground", "mm³")
    assert volume.values == pytest.approx([4 / 3 * math.pi * r**3 for r in radii], rel=0.06)
    assert volume.probability(">", 0) == 0.5
    names = ["volume", "equivalent diameter", "longest diameter", "longest diameter in plane", "surface area"]
    table = measurements(out, spacing=spacing)
    assert [m.name for m in table] == [f"{name} of foreground" for name in [*names, "components"]]
    assert [m.unit for m in table] == ["mm³", "mm", "mm", "mm", "mm²", ""]
    assert all(m.values[0] == 0 < m.values[1] <= m.values[2] for m in table)
    assert [m.unit for m in measurements(out)][:2] == ["px³", "px"]
    assert measure(out, "longest diameter").values[2] < measure(out, "longest diameter", spacing=spacing).values[2]
    assert measure(out.labels[0], lambda labels: labels.shape[0]).values.tolist() == [12, 12, 12]
    assert measure(out.labels[0].to(torch.uint8), spacing=spacing).values == pytest.approx(volume.values)


@pytest.mark.parametrize("spacing", [(1, 1), 2.0, (1, 1, 1, 1), (1, 0, 1)])
def test_spacing_of_volumes_has_three_numbers(spacing):
    with pytest.raises(UserError, match=r"3 positive numbers.*\(slice, row, column\)"):
        measure(ball_samples([5.0]), "volume", spacing=spacing)


@pytest.mark.parametrize("what", ["area", "perimeter"])
def test_volumes_have_no_measures_of_images(what):
    with pytest.raises(UserError, match=f"{what}.*a volume has none.*surface area"):
        measure(ball_samples([5.0]), what)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"what": "girth"}, "girth.*known: area, components"),
        ({"spacing": (1, 0)}, "2 positive numbers"),
        ({"spacing": 0.7}, "2 positive numbers.*got 0.7"),
        ({"spacing": "xy"}, "2 positive numbers.*got 'xy'"),
        ({"spacing": (1, 1, 1)}, r"\(row, column\)"),
        ({"label": 3}, "class from 0 to 2"),
        ({"label": "rim"}, "rim.*pass info"),
        ({"label": "rim", "info": INFO}, "known: background, core, halo"),
    ],
)
def test_errors_name_the_option(options, message):
    with pytest.raises(UserError, match=message):
        measure(as_samples(torch.zeros(1, 2, 4, 4, dtype=torch.long), 3), **options)


def test_table_of_all_measurements():
    table = measurements(as_samples(torch.randint(3, (1, 4, 8, 8)), 3), info=INFO)
    assert table._repr_html_().count("<tr>") == 1 + 2 * len(measure_names(2))
    assert len(repr(table).splitlines()) == 2 * len(measure_names(2))


def test_is_public():
    assert stochseg.measure is measure
    assert stochseg.measurements is measurements
