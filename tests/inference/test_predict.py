"""`predict` on several inputs: samples, progress, and inputs that fail while the others are processed."""

import os
import sys
import zlib

import nibabel
import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from stochseg.errors import UserError
from stochseg.inference import PredictOptions, predict
from stochseg.types import DatasetInfo
from tests.support.models import lively
from tests.support.predictions import QUICK, gray, read_result


def test_a_picture_gets_the_samples_that_the_model_draws(model, tmp_path):
    raw = gray()
    Image.fromarray(raw).save(tmp_path / "a.png")
    options = PredictOptions(n=5, seed=2, evaluations=4)
    (outcome,) = predict(model, tmp_path / "a.png", tmp_path / "out", options, origin="m")
    assert (outcome.status, outcome.folder) == ("done", tmp_path / "out/a")
    drawn = model.sample(raw, 5, seed=2, evaluations=4)
    assert (tifffile.imread(tmp_path / "out/a/samples.tif") == drawn.labels[0].numpy()).all()
    assert np.allclose(tifffile.imread(tmp_path / "out/a/mean.tif"), drawn.mean[0], atol=1e-6)
    record = read_result(tmp_path / "out/a")
    assert record["options"]["seed"] == 2
    assert record["evaluations"] == 4
    assert (record["model"]["name"], record["model"]["origin"]) == ("ccdm-fast", "m")
    assert record["inputs"][0]["file"] == str(tmp_path / "a.png")
    assert {"stochseg", "torch", "tifffile"} <= set(record["versions"])
    assert record["seconds"] > 0


def test_images_of_one_size_share_calls_without_changing_samples(model, tmp_path, monkeypatch):
    raws = [gray() for _ in range(5)] + [gray(9, 9)]
    for i, raw in enumerate(raws):
        Image.fromarray(raw).save(tmp_path / f"{i}.png")
    sizes = []
    sample = type(model).sample
    monkeypatch.setattr(
        type(model), "sample", lambda self, x, *a, **k: sizes.append(len(x)) or sample(self, x, *a, **k)
    )
    monkeypatch.setattr("stochseg.inference.jobs.PIXELS_PER_CALL", 3 * 3 * 20 * 24)
    monkeypatch.setattr("stochseg.inference.chunks.MIN_CHUNKS", 1)
    outcomes = predict(model, [str(tmp_path / "*.png")], tmp_path / "out", QUICK)
    assert [o.status for o in outcomes] == ["done"] * 6
    assert sizes == [3, 2, 1]
    for i, raw in enumerate(raws):
        expected = sample(model, raw, 3).labels[0].numpy()
        assert (tifffile.imread(tmp_path / f"out/{i}/samples.tif") != expected).mean() <= 1e-2


def test_a_rater_by_number_is_the_rater_by_name(tmp_path):
    info = DatasetInfo(num_classes=2, image_channels=1, rater_names=("ana", "ben"))
    model = lively("ccdm-fast", info=info, rater_conditioning=True)
    Image.fromarray(gray()).save(tmp_path / "a.png")
    outcomes = [
        predict(model, tmp_path / "a.png", tmp_path / "out", PredictOptions(n=2, rater=rater)) for rater in ("1", "ben")
    ]
    assert [outcome.status for (outcome,) in outcomes] == ["done", "kept"]
    assert read_result(tmp_path / "out/a")["options"]["rater"] == "ben"


def test_progress_runs_to_the_number_of_inputs(model, tmp_path):
    for name in "ab":
        Image.fromarray(gray()).save(tmp_path / f"{name}.png")
    seen = []
    predict(model, [tmp_path, "nowhere.png"], tmp_path / "out", QUICK, progress=lambda d, t: seen.append((d, t)))
    assert {total for _, total in seen} == {3}
    done = [d for d, _ in seen]
    assert done[-1] == 3
    assert any(d != int(d) for d in done), "progress within a call"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("notes.txt", b"not an image", "cannot be read as an image (no known format)"),
        ("a.png", b"\x89PNG\r\n\x1a\n and then nothing", "cannot be read as an image"),
        ("a.nii", b"short", "cannot be read as NIfTI"),
        ("a.nii.gz", zlib.compress(b"no gzip"), "cannot be read as NIfTI"),
        ("a.dcm", b"not DICOM", "cannot be read as DICOM: the mark DICM is missing"),
        ("b.dcm", bytes(128) + b"DICM" + b"\xff" * 50, "SOPClassUID"),
        ("empty.png", b"", "the file is empty, 0 bytes"),
        ("empty.dcm", b"", "the file is empty, 0 bytes"),
        ("cut.nii", nibabel.Nifti1Image(np.zeros((9, 9, 9)), np.eye(4)).to_bytes()[:999], "it is damaged or cut short"),
    ],
)
def test_files_that_are_not_images_fail_and_the_others_are_done(model, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    Image.fromarray(gray()).save(tmp_path / "good.png")
    outcomes = predict(model, [tmp_path / name, tmp_path / "good.png"], tmp_path / "out", QUICK)
    assert [o.status for o in outcomes] == ["failed", "done"]
    assert message in outcomes[0].problem
    assert "\n" not in outcomes[0].problem
    assert str(tmp_path / name) not in outcomes[0].problem.split("(")[0], "the name is printed before the problem"
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["good"]


def test_nothing_is_sampled_if_out_cannot_be_written(model, tmp_path):
    Image.fromarray(gray()).save(tmp_path / "a.png")
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file", tmp_path / "file/below"):
        with pytest.raises(UserError, match=r"cannot write to .*: \S+file is a file, expected a folder"):
            predict(model, [tmp_path / "a.png"], out, QUICK)
    if sys.platform == "linux":  # where not even root can create folders
        with pytest.raises(UserError, match="cannot write to /sys"):
            predict(model, [tmp_path / "a.png"], "/sys/out", QUICK)
    if os.geteuid() != 0:
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(UserError, match="Permission denied"):
            predict(model, [tmp_path / "a.png"], tmp_path / "closed", QUICK)


def test_a_foreign_folder_of_the_same_name_is_left_alone(model, tmp_path):
    for name in "ab":
        Image.fromarray(gray()).save(tmp_path / f"{name}.png")
    (tmp_path / "out/a").mkdir(parents=True)
    (tmp_path / "out/a/thesis.txt").write_text("years of work")
    outcomes = predict(model, [tmp_path / "a.png", tmp_path / "b.png"], tmp_path / "out", QUICK)
    assert [o.status for o in outcomes] == ["failed", "done"]
    assert "not a result of stochseg predict" in outcomes[0].problem
    assert (tmp_path / "out/a/thesis.txt").exists()


@pytest.mark.parametrize("option", ["sampler", "grid", "noise"])
def test_unknown_options_are_refused_before_anything_is_done(model, tmp_path, option):
    with pytest.raises(UserError, match=f"unknown .*{option} 'magic'"):
        predict(model, [tmp_path], tmp_path / "out", PredictOptions(**{option: "magic"}))
    assert not (tmp_path / "out").exists()


def test_an_input_that_does_not_fit_into_memory_fails_and_the_others_are_done(model, tmp_path, monkeypatch):
    for name in "ab":
        Image.fromarray(gray(8, 8 if name == "a" else 9)).save(tmp_path / f"{name}.png")
    sample = type(model).sample

    def short(self, image, *args, **kwargs):
        if image.shape[-1] == 8:
            torch.empty(2**60)
        return sample(self, image, *args, **kwargs)

    monkeypatch.setattr(type(model), "sample", short)
    outcomes = predict(model, [tmp_path], tmp_path / "out", QUICK)
    assert [o.status for o in outcomes] == ["failed", "done"]
    assert "does not fit into memory" in outcomes[0].problem
