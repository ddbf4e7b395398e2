"""Modules of the page, compared with independent code."""

import base64
import gzip
import io

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from scipy.ndimage import gaussian_filter

pytestmark = pytest.mark.xdist_group("browser")

nibabel = pytest.importorskip("nibabel")
matplotlib.use("Agg")

DECODE = """async (content) => {
  const { decode } = await import("/static/js/decode.js");
  const grids = await decode(Uint8Array.from(atob(content), (c) => c.charCodeAt(0)).buffer);
  return grids.map(({ shape, channels, data }) => [shape, channels, Array.from(data)]);
}"""


@pytest.fixture(scope="module")
def page(browser, studio):
    """A page on which modules can be imported."""
    window = browser.new_page()
    window.goto(studio.url)
    yield window
    window.close()


def decode(page, content: bytes):
    return page.evaluate(DECODE, base64.b64encode(content).decode())


@pytest.mark.parametrize(
    ("mode", "shape"), [("L", (17, 23)), ("RGB", (9, 14, 3)), ("P", (30, 31)), ("RGBA", (5, 6, 4))]
)
def test_png_is_decoded_to_the_bit(page, mode, shape):
    smooth = np.cumsum(np.random.default_rng(0).integers(0, 3, shape), axis=1)  # so that filters of PNG are used
    values = (smooth % 256).astype(np.uint8)
    image = Image.fromarray(values, "L" if mode == "P" else mode)
    if mode == "P":
        image = Image.frombytes("P", image.size, image.tobytes())
        image.putpalette([*range(256)] * 3)
    file = io.BytesIO()
    image.save(file, "png")
    [[size, channels, data]] = decode(page, file.getvalue())

    kept = values[..., :3] if values.ndim == 3 else values
    assert size == [1, *shape[:2]]
    assert channels == (3 if values.ndim == 3 else 1)
    assert data == kept.ravel().tolist()


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.float32])
def test_nifti_is_decoded_volume_by_volume(page, kind):
    values = np.random.default_rng(1).integers(0, 200, (5, 6, 7, 2)).astype(kind)
    content = gzip.compress(nibabel.Nifti1Image(values, np.eye(4)).to_bytes())
    grids = decode(page, content)

    assert [size for size, _, _ in grids] == [[7, 6, 5]] * 2
    for i, (_, _, data) in enumerate(grids):
        assert data == values[..., i].T.ravel().tolist()


def test_planes_are_cut_as_in_reports(page):
    volume = np.random.default_rng(2).integers(0, 255, (4, 5, 6))
    cut = """async ([data, plane]) => {
      const { cut } = await import("/static/js/planes.js");
      const grid = { shape: [4, 5, 6], channels: 1, data: Uint8Array.from(data), offset: [10, 20, 30] };
      const { columns, rows, data: values } = cut(grid, plane, grid.offset[plane] + 2);
      return [rows, columns, Array.from(values), cut(grid, plane, 0)];
    }"""
    for plane, expected in enumerate((volume[2], volume[::-1, 2], volume[::-1, :, 2])):
        rows, columns, values, outside = page.evaluate(cut, [volume.ravel().tolist(), plane])
        assert (rows, columns) == expected.shape
        assert values == expected.ravel().tolist()
        assert outside is None


def test_voxels_and_points_of_the_screen_correspond(page):
    there_and_back = """async () => {
      const { pointOf, voxelAt } = await import("/static/js/planes.js");
      const [shape, spacing, voxel] = [[9, 8, 7], [2, 0.5, 0.7], [3, 6, 1]];
      return [0, 1, 2].map((plane) => voxelAt(pointOf(voxel, shape, spacing, plane), voxel, shape, spacing, plane));
    }"""
    for voxel in page.evaluate(there_and_back):
        assert voxel == pytest.approx([3, 6, 1])


@pytest.mark.parametrize("seed", range(4))
def test_outlines_are_those_of_marching_squares(page, seed):
    region = gaussian_filter(np.random.default_rng(seed).normal(size=(40, 50)), 3) > 0.03
    trace = """async ([columns, rows, data]) => {
      const { outlines } = await import("/static/js/contours.js");
      return outlines({ columns, rows, channels: 1, data }, 0.5);
    }"""
    lines = page.evaluate(trace, [50, 40, region.astype(int).ravel().tolist()])
    axes = Figure().add_subplot()
    padded = np.pad(region, 1).astype(float)
    expected = axes.contour(np.arange(-1, 51), np.arange(-1, 41), padded, levels=[0.5]).allsegs[0]

    assert len(lines) == len(expected)
    assert points(lines) == points(expected)
    assert sum(map(area, lines)) == pytest.approx(sum(map(area, expected)))


def test_outlines_agree_with_the_server(visit):
    visit.example("Phantom slice")
    visit.finished()
    same = """async (job) => {
      const { decode } = await import("/static/js/decode.js");
      const { outlines } = await import("/static/js/contours.js");
      const { slices } = await (await fetch(`/api/v1/jobs/${job}/contours`)).json();
      const found = [];
      for (let i = 0; i < 16; i++) {
        const [grid] = await decode(await (await fetch(`/api/v1/jobs/${job}/samples/${i}`)).arrayBuffer());
        const slice = { columns: grid.shape[2], rows: grid.shape[1], channels: 1, data: grid.data };
        const ours = outlines(slice, 0.5, (v) => (v === 1 ? 1 : 0));
        const theirs = (slices[0] ?? []).filter(({ sample }) => sample === i).map(({ line }) => line);
        found.push([ours, theirs]);
      }
      return found;
    }"""
    found = visit.page.evaluate(same, visit.job())
    assert any(ours for ours, _ in found)
    for ours, theirs in found:
        assert points(ours) == points(theirs)


def test_probabilities_and_entropy_of_samples(page):
    rng = np.random.default_rng(3)
    maps, weights = rng.integers(0, 3, (5, 40)), rng.dirichlet(np.ones(5))
    compute = """async ([maps, weights]) => {
      const { entropy, frequency } = await import("/static/js/analysis.js");
      const place = { shape: [1, 1, 40], channels: 1, offset: [0, 0, 0] };
      const grids = maps.map((data) => ({ ...place, data: Uint8Array.from(data) }));
      const shares = [0, 1, 2].map((label) => frequency(grids, weights, label));
      return [shares.map(({ data }) => Array.from(data)), Array.from(entropy(shares).data)];
    }"""
    shares, entropies = page.evaluate(compute, [maps.tolist(), weights.tolist()])
    expected = np.array([(weights[:, None] * (maps == label)).sum(0) for label in range(3)])
    exact = -(expected * np.log(np.maximum(expected, 1e-12))).sum(0) / np.log(3)

    assert np.abs(np.array(shares) - 255 * expected).max() <= 0.5 + 1e-6
    assert np.abs(np.array(entropies) - 255 * exact).max() < 3


def test_models_fit_inputs_of_their_dimension_and_channels(page):
    models = [("gray", 2, 1), ("color", 2, 3), ("volumes", 3, 1), ("bands", 2, 4)]
    offered = [{"name": name, "spatial_dims": dims, "image_channels": channels} for name, dims, channels in models]
    fit = """async ([models, input]) => {
      const { fittingModels, misfit } = await import("/static/js/setup.js");
      return [fittingModels(models, input).map(({ name }) => name), models.map((model) => misfit(model, input))];
    }"""
    expected = {
        (2, 1): (["gray"], ["", "for color images", "for volumes", "for 4-channel images; this one is gray"]),
        (2, 3): (["color"], ["for gray images; this one is color", "", "for volumes", "for 4-channel images"]),
        (3, 1): (["volumes", "gray"], ["", "for color images; this one is gray", "", "for 4-channel images"]),
    }
    for (dims, channels), (names, reasons) in expected.items():
        fitting, found = page.evaluate(fit, [offered, {"spatial_dims": dims, "channels": channels}])
        assert fitting == names
        for reason, start in zip(found, reasons, strict=True):
            assert reason.startswith(start)
            assert bool(reason) == bool(start)
    assert page.evaluate(fit, [offered, None])[0] == [name for name, _, _ in models]


def test_bins_of_a_histogram_hold_every_sample_once(page):
    values = [0.0, 0.0, 3.7, 12.4, 12.5, 30.0, None]
    bin_ = """async (values) => {
      const { histogram } = await import("/static/js/analysis.js");
      return histogram(values, values.map(() => 1 / values.length));
    }"""
    found = page.evaluate(bin_, values)

    assert sorted(i for bin_ in found["bins"] for i in bin_["samples"]) == [0, 1, 2, 3, 4, 5]
    for each in found["bins"]:
        assert all(each["low"] <= values[i] <= each["high"] for i in each["samples"])
        assert each["weight"] == pytest.approx(len(each["samples"]) / 7)


def points(lines) -> set:
    return {tuple(np.round(point, 3)) for line in lines for point in line}


def area(line) -> float:
    x, y = np.array(line).T
    return 0.5 * float(np.sum(x * np.roll(y, -1) - y * np.roll(x, -1)))
