"""Validation, the best checkpoint and logs."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import stochseg.training.loop as loop
import stochseg.training.validation as validation
from stochseg.errors import UserError
from stochseg.files import write_manifest
from stochseg.metrics import confusion_matrix, miou
from stochseg.models import load
from stochseg.training import open_split, train
from tests.support.runs import saved_progress, values


def test_the_best_checkpoint_has_the_lowest_ged(tiny_run, tmp_path, monkeypatch):
    scores = iter([0.5, 0.2, 0.4])
    changes = ("decay=constant", "validation.every=1", "validation.images=1")
    with monkeypatch.context() as patch:
        patch.setattr(validation, "ged", lambda *_, **__: torch.tensor([next(scores)]))
        train(tiny_run("steps=3", *changes), tmp_path / "run", device="cpu")
    progress = saved_progress(tmp_path / "run")
    assert (progress["best"], progress["best_step"]) == (pytest.approx(0.2), 2)
    train(tiny_run("steps=2", *changes), tmp_path / "two", device="cpu")
    best, expected = (load_file(tmp_path / f / "model.safetensors") for f in ("run/best", "two/last"))
    assert all(torch.equal(best[k], expected[k]) for k in expected)
    chosen = load(tmp_path / "run").state_dict()
    assert all(torch.equal(chosen[k], expected[k]) for k in expected)


ONE_MAP = ("data.options={size: 8, raters: 1}", "decay=constant", "validation.every=1", "validation.images=2")


def test_the_best_checkpoint_of_single_annotations_has_the_highest_miou(tiny_run, tmp_path, monkeypatch):
    scores = iter([0.2, 0.5, 0.4])
    with monkeypatch.context() as patch:
        patch.setattr(loop, "miou", lambda _: torch.tensor(next(scores)))
        train(tiny_run("steps=3", *ONE_MAP), tmp_path / "run", device="cpu")
    progress = saved_progress(tmp_path / "run")
    assert (progress["best"], progress["best_step"], progress["best_metric"]) == (0.5, 2, "miou")
    assert list(values(tmp_path / "run", "val/miou").values()) == pytest.approx([0.2, 0.5, 0.4])
    assert len(values(tmp_path / "run", "val/ged")) == 3


def test_validation_miou_is_that_of_all_images(tiny_run, tmp_path):
    config = tiny_run("steps=1", *ONE_MAP)
    train(config, tmp_path / "run", device="cpu")
    model, data = load(tmp_path / "run/last"), open_split(config, "val")
    confusion = 0
    for i in (0, 2):  # two of four, evenly spaced
        fused = model.sample(data[i].image[None], 2).fused("mean")
        confusion = confusion + confusion_matrix(fused, data[i].raters, 2)
    assert values(tmp_path / "run", "val/miou")[1] == pytest.approx(miou(confusion).item())


def test_the_metric_of_the_best_checkpoint_stays_unless_it_is_changed(tiny_run, tmp_path):
    """A run of an older version has selected by GED, whatever its data."""
    train(tiny_run("steps=1", *ONE_MAP), tmp_path / "run", device="cpu")
    file = tmp_path / "run/last/state/progress.json"
    old = {key: value for key, value in json.loads(file.read_text()).items() if key != "best_metric"}
    file.write_text(json.dumps({**old, "best": -1.0}))  # a GED that no model reaches
    write_manifest(tmp_path / "run/last")
    train(tiny_run("steps=2", *ONE_MAP), tmp_path / "run", resume=True, device="cpu")
    progress = saved_progress(tmp_path / "run")
    assert (progress["best"], progress["best_step"], progress["best_metric"]) == (-1.0, 1, "ged")
    train(tiny_run("steps=3", *ONE_MAP, "validation.select=miou"), tmp_path / "run", resume=True, device="cpu")
    progress = saved_progress(tmp_path / "run")
    assert (progress["best_step"], progress["best_metric"]) == (3, "miou")
    assert progress["best"] == values(tmp_path / "run", "val/miou")[3]


def test_scores_of_another_validation_are_not_compared(tiny_run, tmp_path):
    changes = ("validation.every=1", "validation.images=1")
    train(tiny_run("steps=1", *changes), tmp_path / "run", device="cpu")
    file = tmp_path / "run/last/state/progress.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "best": -1.0}))
    write_manifest(tmp_path / "run/last")
    for step, samples, best in ((2, 2, 1), (3, 3, 3)):
        train(tiny_run(f"steps={step}", *changes, f"validation.num_samples={samples}"), tmp_path / "run", resume=True)
        assert json.loads(file.read_text())["best_step"] == best


def test_a_new_validation_is_remembered_by_a_resume_without_steps(tiny_run, tmp_path):
    changes = ("validation.every=1", "validation.images=1")
    train(tiny_run("steps=1", *changes), tmp_path / "run", device="cpu")
    file = tmp_path / "run/last/state/progress.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "best": -1.0}))
    write_manifest(tmp_path / "run/last")
    for steps in (1, 2):
        more = tiny_run(f"steps={steps}", *changes, "validation.num_samples=3")
        train(more, tmp_path / "run", resume=True, device="cpu")
    assert json.loads(file.read_text())["best_step"] == 2


def test_validation_skips_images_without_labels(tiny_run, tmp_path, folder_root):
    changes = ("data.name=folder", f"data.options={{root: {folder_root}}}", "data.train={}", "data.val={}", "steps=1")
    (folder_root / "splits.json").write_text(json.dumps({"train": ["a", "b"], "val": ["c", "d"]}))
    for rater in ("anna", "ben"):
        Image.new("L", (8, 8), 255).save(folder_root / f"labels/{rater}/c.png")
    train(tiny_run(*changes, "validation.images=1"), tmp_path / "run", device="cpu")
    assert 0 <= values(tmp_path / "run", "val/ged")[1] <= 2
    for rater in ("anna", "ben"):
        Image.new("L", (8, 8), 255).save(folder_root / f"labels/{rater}/d.png")
    with pytest.raises(UserError, match="validation.*void"):
        train(tiny_run(*changes), tmp_path / "none", device="cpu")
    assert not (tmp_path / "none").exists(), "found before any training"


def test_validation_with_void_pixels(tiny_run, tmp_path, folder_root):
    changes = ("data.name=folder", f"data.options={{root: {folder_root}}}", "data.train={}", "data.val={}", "steps=2")
    train(tiny_run(*changes), tmp_path / "run", device="cpu")
    assert 0 <= values(tmp_path / "run", "val/ged")[2] <= 2


def test_empty_splits_are_found_before_training(tiny_run, tmp_path, folder_root):
    changes = ("data.name=folder", f"data.options={{root: {folder_root}}}", "data.train={}", "data.val={}", "steps=2")
    for content, which in (({"train": ["a"], "val": []}, "validation"), ({"train": [], "val": ["a"]}, "training")):
        (folder_root / "splits.json").write_text(json.dumps(content))
        with pytest.raises(UserError, match=f"the {which} split is empty; add images"):
            train(tiny_run(*changes), tmp_path / "run", device="cpu")


def test_logs_and_pictures(tiny_run, tmp_path, pictures):
    out = tmp_path / "run"
    train(tiny_run("steps=4", "log_every=2", "validation.every=4"), out, device="cpu")
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["scalars"]) == {"train/loss", "train/lr", "train/gradient_norm", "val/ged"}
    losses = {event.step: event.value for event in events.Scalars("train/loss")}
    assert losses == pytest.approx(values(out, "train/loss"))
    assert sorted(losses) == [2, 4]
    assert [(image.step, image.width > 200) for image in events.Images("val/samples")] == [(4, True)]
    with Image.open(out / "samples/step-0000004.png") as picture:
        assert min(picture.size) > 100
        assert len(np.unique(np.asarray(picture))) > 10
    assert (out / "train.yaml").exists()


def test_parts_of_the_loss_are_logged(tiny_run, tmp_path):
    options = "model={name: prob-unet, options: {channels: [4, 4], convs: 1, latent: 2, beta: 3.0, l2: 0.0}}"
    out = train(tiny_run(options, "steps=2", "log_every=1"), tmp_path / "run", device="cpu")
    loss, cross_entropy, kl = (values(out, f"train/{part}") for part in ("loss", "cross_entropy", "kl"))
    assert sorted(loss) == [1, 2]
    for step in loss:
        assert loss[step] == pytest.approx(cross_entropy[step] + 3 * kl[step] / 8**2, rel=1e-5)
    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    assert {event.step: event.value for event in events.Scalars("train/kl")} == pytest.approx(kl)


def test_the_best_model_has_an_entropy_profile(tiny_run, tmp_path):
    run = train(
        tiny_run("steps=2", "validation.calibration_images=1"),
        tmp_path / "run",
        device="cpu",
        console=Console(quiet=True),
    )
    steps = [t for t, _ in load(run / "best").config.profile]
    assert (steps[0], steps[-1]) == (8, 1)
