"""Result folders: their files, pictures and sizes; and samples as numpy arrays."""

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from stochseg.errors import UserError
from stochseg.inference import to_nifti, to_numpy
from stochseg.inference.result import StackResult
from stochseg.inference.result_folder import write_result
from stochseg.inference.stacks import Lattice, Stack
from stochseg.inference.writers import WRITERS, Prediction, Writer
from stochseg.inference.writers.previews import overlay, write_overlay
from stochseg.plotting.pictures import labels_to_rgb
from stochseg.types import DatasetInfo, Samples
from tests.support.predictions import CLASSES, random_samples, read_result

FACTS = {"format": "stochseg-prediction"}


def predicted(samples: Samples, stack: Stack, **options) -> Prediction:
    return Prediction(StackResult.from_samples(samples), stack, CLASSES, **options)


def test_arrays():
    samples = random_samples()
    arrays = to_numpy(samples)
    assert {k: (v.shape, v.dtype) for k, v in arrays.items()} == {
        "labels": ((5, 4, 12, 10), np.uint8),
        "fused": ((5, 12, 10), np.uint8),
        "mean": ((5, 3, 12, 10), np.float32),
        "entropy": ((5, 12, 10), np.float32),
        "weights": ((5, 4), np.float32),
    }
    assert (arrays["labels"] == samples.labels.numpy()).all()
    assert (arrays["fused"] == samples.mean.argmax(1).numpy()).all()


def test_arrays_of_more_classes_than_a_byte_holds():
    samples = random_samples(1, 2, 4, 4, classes=300)
    assert to_numpy(samples)["labels"].dtype == np.uint16
    assert (to_nifti(samples, "labels").get_fdata()[:, :, 0].transpose(2, 1, 0) == samples.labels[0].numpy()).all()


def test_files_of_a_picture(tmp_path):
    samples = random_samples(1)
    raw = np.random.default_rng(0).integers(0, 256, (1, 12, 10), dtype=np.uint8)
    write_result(tmp_path / "a", predicted(samples, Stack(raw, dpi=(300.0, 150.0))), FACTS)
    assert (tifffile.imread(tmp_path / "a/samples.tif") == samples.labels[0].numpy()).all()
    assert np.allclose(tifffile.imread(tmp_path / "a/mean.tif"), samples.mean[0])
    assert np.allclose(tifffile.imread(tmp_path / "a/entropy.tif"), samples.entropy[0], atol=1e-6)
    with tifffile.TiffFile(tmp_path / "a/samples.tif") as file:
        assert len(file.pages) == 4
        assert file.pages[0].resolution == (300.0, 150.0)
    with Image.open(tmp_path / "a/samples.tif") as file:  # other readers see the pages too
        assert file.n_frames == 4
        file.seek(2)
        assert (np.asarray(file) == samples.labels[0, 2].numpy()).all()
    with Image.open(tmp_path / "a/fused.png") as file:
        assert file.mode == "P"
        assert (np.asarray(file) == samples.fused()[0].numpy()).all()
        assert np.allclose(file.info["dpi"], (300, 150), atol=0.1)
        assert np.asarray(file.convert("RGB"))[samples.fused()[0].numpy() == 1][0].tolist() == [0xE8, 0x85, 0x3C]
    with Image.open(tmp_path / "a/overlay.png") as file:
        assert file.size == (430, 516), "at least 512 pixels"
        small = np.asarray(file.resize((10, 12), Image.Resampling.NEAREST))
    assert (small == np.asarray(overlay(raw[0], samples.fused()[0].numpy(), CLASSES))).all()
    result = read_result(tmp_path / "a")
    assert result["unit"] == "pixels"
    assert sum(c["fused"] for c in result["classes"]) == 120
    assert [c["samples"][1] for c in result["classes"]] == torch.bincount(samples.labels[0, 1].flatten()).tolist()
    assert set(result["files"]) == {p.name for p in (tmp_path / "a").iterdir()} - {"result.json"}


@pytest.mark.parametrize("classes", [2, 256])
def test_indices_of_the_fused_png_are_the_labels(tmp_path, classes):
    samples, info = random_samples(1, classes=classes), DatasetInfo(num_classes=classes, image_channels=1)
    stack = Stack(np.zeros((1, 12, 10)), dpi=(254.0, 254.0))
    write_result(tmp_path / "a", Prediction(StackResult.from_samples(samples), stack, info), FACTS)
    with Image.open(tmp_path / "a/fused.png") as picture:
        assert picture.mode == "P"
        assert picture.info["dpi"] == pytest.approx((254, 254), rel=1e-3)
        fused = samples.fused()[0]
        assert (np.asarray(picture) == fused.numpy()).all()
        if classes == 2:
            np.testing.assert_allclose(np.asarray(picture.convert("RGB")) / 255, labels_to_rgb(fused, info))


def test_more_classes_than_a_palette_has(tmp_path):
    samples = random_samples(1, classes=300)
    info = DatasetInfo(num_classes=300, image_channels=1)
    prediction = Prediction(StackResult.from_samples(samples), Stack(np.zeros((1, 12, 10))), info)
    write_result(tmp_path / "a", prediction, FACTS)
    assert (tifffile.imread(tmp_path / "a/fused.tif") == samples.fused()[0].numpy()).all()
    assert not (tmp_path / "a/fused.png").exists()


@pytest.mark.parametrize("shape", [(3, 12, 10), (1, 12, 10, 3), (1, 600, 20)])
def test_an_overview_on_request(tmp_path, shape):
    samples = random_samples(shape[0], 11, *shape[1:3])
    prediction = predicted(samples, Stack(np.zeros(shape, np.uint8)), overview=True)
    write_result(tmp_path / "a", prediction, FACTS)
    assert "overview.png" in read_result(tmp_path / "a")["files"]
    with Image.open(tmp_path / "a/overview.png") as picture:
        assert min(picture.size) > 300
    write_result(tmp_path / "a", predicted(samples, Stack(np.zeros(shape, np.uint8))), FACTS)
    assert not (tmp_path / "a/overview.png").exists()


def test_a_writer_that_is_added_to_the_table_is_run(tmp_path, monkeypatch):
    def write(prediction, file):
        file.write_text(prediction.model)

    monkeypatch.setitem(WRITERS, "note.txt", Writer(write, lambda prediction: prediction.is_picture))
    for name, lattice in (("picture", None), ("volume", Lattice(np.eye(4)))):
        stack = Stack(np.zeros((1, 12, 10)), lattice)
        write_result(tmp_path / name, predicted(random_samples(1), stack, model="mine"), FACTS)
    assert (tmp_path / "picture/note.txt").read_text() == "mine"
    assert "note.txt" in read_result(tmp_path / "picture")["files"]
    assert not (tmp_path / "volume/note.txt").exists()


def test_sizes_are_in_millimeters_where_the_geometry_is_known(tmp_path):
    affine = np.diag([0.5, 2.0, 3.0, 1.0])
    for s, unit, size in ((1, "mm2", 1.0), (5, "mm3", 3.0)):
        stack = Stack(np.zeros((s, 12, 10)), Lattice(affine))
        write_result(tmp_path / unit, predicted(random_samples(s), stack), FACTS)
        result = read_result(tmp_path / unit)
        assert result["unit"] == unit
        counts = torch.bincount(random_samples(s).labels[:, 2].flatten())
        assert [c["samples"][2] for c in result["classes"]] == pytest.approx([size * v for v in counts.tolist()])
        assert result["image"]["spacing_mm"] == [3.0, 2.0, 0.5]


def test_a_failed_write_leaves_nothing_and_a_foreign_folder_stays(tmp_path):
    prediction = predicted(random_samples(1), Stack(np.zeros((1, 12, 10))))
    with pytest.raises(ValueError, match="nan"):
        write_result(tmp_path / "a", prediction, {"seconds": float("nan")})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a").mkdir()
    (tmp_path / "a/thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="not a result of stochseg predict"):
        write_result(tmp_path / "a", prediction, FACTS)
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["thesis.txt"]


def test_the_overlay_colors_the_foreground_only():
    raw = np.linspace(0, 255, 16).reshape(4, 4)
    fused = np.zeros((4, 4), np.uint8)
    fused[1, 1] = 1
    shown = np.asarray(overlay(raw, fused, CLASSES))
    assert (shown[fused == 0] == raw[fused == 0].round()[:, None]).all()
    assert shown[1, 1, 0] > shown[1, 1, 2], "orange"
    for deep in (raw * 100, raw / 255, np.full((4, 4), 7.0), np.repeat(raw[..., None], 2, -1)):
        assert np.asarray(overlay(deep, fused, CLASSES)).shape == (4, 4, 3)


def test_the_slice_with_the_most_foreground_is_shown():
    samples, stack = random_samples(3), Stack(np.zeros((3, 12, 10)))
    samples.mean[:] = torch.tensor([1.0, 0.0, 0.0])[:, None, None]
    assert predicted(samples, stack).shown_slice == 1, "the middle one without any foreground"
    samples.mean[2, :, 0] = torch.tensor([0.0, 1.0, 0.0])[:, None]
    assert predicted(samples, stack).shown_slice == 2


def test_the_overlay_shows_the_part_that_the_model_labels(tmp_path):
    labels = np.zeros((1, 2, 64, 64), np.uint8)
    mean = np.stack([np.ones((1, 64, 64)), np.zeros((1, 64, 64))], 1).astype(np.float32)
    for window in (((16, 48), (8, 40)), None):
        result = StackResult(labels, mean, np.full((1, 2), 0.5, np.float32), window=window)
        info = DatasetInfo(num_classes=2, image_channels=1)
        write_overlay(Prediction(result, Stack(np.zeros((1, 64, 64), np.uint8)), info), tmp_path / "a.png")
        colored = np.asarray(Image.open(tmp_path / "a.png")).any(2)
        assert bool(colored.any()) == (window is not None)
        if window is not None:  # eight pixels of the picture per pixel, just outside
            rows, columns = (np.flatnonzero(colored.any(axis))[[0, -1]].tolist() for axis in (1, 0))
            assert (rows, columns) == ([127, 384], [63, 320])


def test_the_pages_of_the_mean_are_named(tmp_path):
    write_result(tmp_path / "a", predicted(random_samples(1), Stack(np.zeros((1, 12, 10), np.uint8))), FACTS)
    with tifffile.TiffFile(tmp_path / "a" / "mean.tif") as file:
        assert file.shaped_metadata[0]["class_names"] == list(CLASSES.names)
