"""Whole volumes: models of volumes sample them as one, models of images share the noise of their slices."""

import json

import highdicom
import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

from stochseg.errors import UserError
from stochseg.inference import PredictOptions, predict, to_nifti, to_numpy
from stochseg.types import DatasetInfo
from tests.support.oblique import expected_affine, write_series
from tests.support.predictions import CLASSES, QUICK, RNG, failure, gray, read_result, small_model


@pytest.fixture(scope="module")
def volume_model():
    """A model of CT volumes in Hounsfield units with three classes, a mixture of two."""
    facts = {"normalization": {"mean": (0.0,), "std": (500.0,)}, "spatial_dims": 3}
    return small_model(3, info=DatasetInfo.parse({**CLASSES.model_dump(), **facts}), components=2)


def write_nifti(file, array, affine=None):
    nibabel.Nifti1Image(array, expected_affine() if affine is None else affine).to_filename(file)
    return file


def load(folder, name):
    return np.asarray(nibabel.load(folder / f"{name}.nii.gz").dataobj)


def test_a_model_of_volumes_samples_a_series_as_one(volume_model, tmp_path):
    raw = write_series(tmp_path / "ct")
    (outcome,) = predict(volume_model, tmp_path / "ct", tmp_path / "out", QUICK)
    assert outcome.notices == ()
    expected = volume_model.sample(raw.astype(np.float32), 3)
    assert (load(outcome.folder, "samples").transpose(3, 2, 1, 0) == expected.labels[0].numpy()).all()
    assert np.allclose(load(outcome.folder, "mean").transpose(3, 2, 1, 0), expected.mean[0], atol=1e-6)
    for name in ("samples", "fused", "mean", "entropy"):
        assert np.allclose(nibabel.load(outcome.folder / f"{name}.nii.gz").affine, expected_affine(), atol=1e-5)
    fused = highdicom.seg.segread(outcome.folder / "fused.dcm").get_volume(
        combine_segments=True, skip_overlap_checks=True
    )
    assert (np.bincount(fused.array.ravel(), minlength=3)[1:] == np.bincount(expected.fused().ravel())[1:]).all()
    record = read_result(outcome.folder)
    assert (record["coupling"], record["tiled"], record["unit"]) == ("joint", False, "mm3")
    assert record["image"]["spacing_mm"] == pytest.approx([2.5, 0.7, 1.3])


def test_a_volume_gives_the_same_samples_in_any_order_of_its_voxels(volume_model, tmp_path):
    volume = RNG.integers(-1000, 1000, (9, 8, 6)).astype(np.int16)
    affine = np.diag([0.8, 0.8, 3.0, 1.0])
    turned = volume[:, ::-1].transpose(2, 0, 1)
    other = np.zeros((4, 4))
    other[2, 0], other[0, 1], other[1, 2], other[1, 3], other[3, 3] = 3.0, 0.8, -0.8, 0.8 * 7, 1.0
    files = [write_nifti(tmp_path / "a.nii", volume, affine), write_nifti(tmp_path / "b.nii", turned, other)]
    one, same = (o.folder for o in predict(volume_model, files, tmp_path / "out", QUICK))
    assert (load(one, "samples") == load(same, "samples").transpose(1, 2, 0, 3)[:, ::-1]).all()
    assert load(one, "samples").max() > 0


def test_large_volumes_are_tiled_along_all_axes(volume_model, tmp_path):
    file = write_nifti(tmp_path / "a.nii", RNG.integers(-1000, 1000, (70, 40, 11)).astype(np.int16))
    options = PredictOptions(n=2, tile=40, overlap=8, tile_slices=6)
    (outcome,) = predict(volume_model, file, tmp_path / "out", options)
    assert read_result(outcome.folder)["tiled"] is True
    tiled = volume_model.tiled((6, 40, 40), (2, 8, 8)).sample(nibabel.load(file).get_fdata().transpose(2, 1, 0), 2)
    assert (load(outcome.folder, "samples").transpose(3, 2, 1, 0) == tiled.labels[0].numpy()).all()


def test_a_volume_too_large_to_take_whole_is_refused(tmp_path, monkeypatch):
    model = small_model(focus=8, info=DatasetInfo(num_classes=2, image_channels=1, spatial_dims=3))
    file = write_nifti(tmp_path / "a.nii", RNG.integers(256, size=(20, 20, 6)).astype(np.int16))
    monkeypatch.setattr("stochseg.inference.plan.WHOLE_VOLUME", 100)
    monkeypatch.setattr("stochseg.inference.plan.VOLUME_TILE", 16)
    (outcome,) = predict(model, file, tmp_path / "out", QUICK)
    assert "taken whole: model 'ccdm-fast' with focus 8 cannot be tiled" in outcome.notices[0]
    assert read_result(outcome.folder)["window"] == [[6, 14], [6, 14]]
    monkeypatch.setattr("stochseg.inference.plan.MAX_WHOLE", 8 * 8 * 6 - 1)
    assert "6×20×20 pixels are too many" in failure(model, file, tmp_path / "other")


def test_pictures_and_single_slices_are_no_volumes(volume_model, tmp_path):
    Image.fromarray(gray()).save(tmp_path / "a.png")
    write_nifti(tmp_path / "b.nii", np.zeros((8, 8, 1), np.int16))
    (first, second) = predict(volume_model, [tmp_path / "a.png", tmp_path / "b.nii"], tmp_path / "out", QUICK)
    assert "the model takes volumes" in first.problem
    assert "got a picture" in first.problem
    assert "got a single slice" in second.problem


def test_a_model_of_volumes_has_no_choice_of_slices(volume_model, tmp_path):
    with pytest.raises(UserError, match="no choice of slices"):
        predict(volume_model, [], tmp_path, PredictOptions(slices="shared"))


# --- models of images ------------------------------------------------------------------------------------


def test_equal_slices_have_equal_samples(model, tmp_path):
    """Else "anything marked" of eight copies of a slice would be far more probable than that of the slice."""
    copies = np.repeat(gray(12, 10)[:, :, None], 8, axis=2).astype(np.int16)
    file = write_nifti(tmp_path / "a.nii", copies)
    (outcome,) = predict(model, file, tmp_path / "out", PredictOptions(n=16))
    samples = load(outcome.folder, "samples")
    assert (samples == samples[:, :, :1]).all()
    assert len(np.unique(samples.reshape(-1, 16), axis=1).T) > 1, "samples differ"
    assert read_result(outcome.folder)["coupling"] == "shared"
    (notice,) = outcome.notices
    assert "with the same noise in each" in notice
    (outcome,) = predict(model, file, tmp_path / "each", PredictOptions(n=16, slices="independent"))
    assert "drawn independently" in outcome.notices[0]
    assert read_result(outcome.folder)["coupling"] == "independent"


def test_independent_slices_are_those_of_single_images(model, tmp_path):
    file = write_nifti(tmp_path / "a.nii", np.stack([gray(12, 10), gray(12, 10)], 2).astype(np.int16), np.eye(4))
    folders = [
        predict(model, file, tmp_path / how, PredictOptions(n=4, slices=how))[0].folder
        for how in ("shared", "independent")
    ]
    shared, independent = (load(folder, "samples") for folder in folders)
    slices = torch.from_numpy(np.asarray(nibabel.load(file).dataobj)[::-1, ::-1].transpose(2, 1, 0).copy())
    alone = [model.sample(one.numpy(), 4).labels[0].numpy() for one in slices]
    assert (independent[::-1, ::-1].transpose(2, 3, 1, 0) == np.stack(alone)).all()
    assert (shared != independent).any()


def test_volumes_of_one_call_do_not_share_noise(model, tmp_path):
    files = [write_nifti(tmp_path / f"{i}.nii", np.stack([gray()] * 2, 2).astype(np.int16)) for i in range(2)]
    together = predict(model, files, tmp_path / "out", QUICK)
    (alone,) = predict(model, files[1], tmp_path / "alone", QUICK)
    assert (load(together[1].folder, "samples") == load(alone.folder, "samples")).all()


def test_results_of_independent_slices_from_before_are_not_complete(model, tmp_path):
    """Those of pictures are."""
    file = write_nifti(tmp_path / "a.nii", np.stack([gray()] * 2, 2).astype(np.int16))
    Image.fromarray(gray()).save(tmp_path / "b.png")
    inputs = [file, tmp_path / "b.png"]
    for outcome in predict(model, inputs, tmp_path / "out", QUICK):
        record = read_result(outcome.folder)
        del record["options"]["slices"], record["options"]["tile_slices"], record["coupling"]
        (outcome.folder / "result.json").write_text(json.dumps(record))
    volume, picture = sorted(predict(model, inputs, tmp_path / "out", QUICK), key=lambda o: o.source)
    assert "result of another slices" in volume.problem
    assert picture.status == "kept"
    old = predict(model, inputs, tmp_path / "out", PredictOptions(n=3, slices="independent"))
    assert [o.status for o in old] == ["kept", "kept"]


# --- samples in Python -----------------------------------------------------------------------------------


def test_samples_of_a_volume_are_converted_like_those_of_its_slices(volume_model):
    drawn = volume_model.sample(RNG.integers(-1000, 1000, (5, 8, 6)).astype(np.float32), 3)
    assert to_numpy(drawn)["labels"].shape == (1, 3, 5, 8, 6)
    assert (to_numpy(drawn)["fused"] == drawn.fused().numpy()).all()
    labels, fused = (np.asarray(to_nifti(drawn, part).dataobj) for part in ("labels", "fused"))
    assert (labels.transpose(3, 2, 1, 0) == drawn.labels[0].numpy()).all()
    assert (drawn.fused()[0].numpy() == fused.T).all()
    two = volume_model.sample(np.zeros((2, 5, 8, 6), np.float32), 3, allow_unusual_input=True)
    with pytest.raises(UserError, match="samples of one volume, got 2"):
        to_nifti(two)


def test_images_of_one_key_share_their_noise(model):
    slices = np.stack([gray(), gray(), gray()])
    slices[2] = slices[0]
    drawn = model.sample(slices, 4, keys=[7, 7, 8]).labels
    assert torch.equal(drawn[0], model.sample(slices[0], 4, keys=[7]).labels[0])
    assert not torch.equal(drawn[0], drawn[2])
    with pytest.raises(UserError, match="keys: expected 3 numbers"):
        model.sample(slices, 4, keys=[7])
