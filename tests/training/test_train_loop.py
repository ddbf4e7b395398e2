"""The training loop: steps, divergence, starting weights, mistakes."""

import math
import shutil

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import stochseg.training.loop as loop
from stochseg.errors import UserError
from stochseg.models import create, load
from stochseg.models.ccdm import CCDM
from stochseg.networks import ENCODERS, ImageEncoder
from stochseg.training import TrainingDiverged, read_config, train
from tests.support.runs import CHECKPOINT_FILES, assert_same_run, saved_progress, values


def test_loader_workers_change_nothing(tiny_run, tmp_path, straight):
    train(tiny_run("validation.every=2", "data.workers=2"), tmp_path / "run", device="cpu")
    assert_same_run(tmp_path / "run", straight)


def test_a_run_that_cannot_start_leaves_nothing_behind(tiny_run, tmp_path):
    for change in ("model.options.bas=4", "model.name=ccmd", "data.name=folder", "data.augment=spin"):
        with pytest.raises(UserError):
            train(tiny_run(change), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_the_augmentation_is_that_of_the_data_and_stays_when_resumed(tiny_run, tmp_path):
    train(tiny_run("steps=1", "data.augment=auto"), tmp_path / "run", device="cpu")
    file = tmp_path / "run/train.yaml"
    assert read_config(file).data.augment == "flip-rotate"
    file.write_text(file.read_text().replace("augment: flip-rotate", "augment: none"))  # as an older version chose
    train(tiny_run("steps=2", "data.augment=auto"), tmp_path / "run", resume=True, device="cpu")
    assert read_config(file).data.augment == "none"


def break_loss(monkeypatch, call: int, broken) -> None:
    """Change the loss of one call, counted from 1."""
    loss, calls = CCDM.loss_by_rater, []

    def changed(self, *inputs):
        out = loss(self, *inputs)
        calls.append(1)
        return {"loss": broken(self, out["loss"])} if len(calls) == call else out

    monkeypatch.setattr(CCDM, "loss_by_rater", changed)


def nan_loss(model, loss):
    return loss * math.nan


def nan_gradient(model, loss):
    """A finite loss whose gradient is NaN."""
    return loss + (0 * next(model.parameters()).sum()).sqrt()


@pytest.mark.parametrize(("broken", "what"), [(nan_loss, "loss"), (nan_gradient, "gradient")])
def test_divergence_stops_and_keeps_the_last_good_checkpoint(tiny_run, tmp_path, monkeypatch, broken, what):
    out = tmp_path / "run"
    break_loss(monkeypatch, 4, broken)
    with pytest.raises(TrainingDiverged, match=rf"the {what} became nan at step 4.*checkpoint is .*last.*lower lr"):
        train(tiny_run("save_every=1"), out, device="cpu")
    assert saved_progress(out)["step"] == 3
    for file in CHECKPOINT_FILES:
        assert all(torch.isfinite(v).all() for v in load_file(out / "last" / file).values())


def test_divergence_at_the_first_step_names_the_checkpoint_at_step_0(tiny_run, tmp_path, monkeypatch):
    break_loss(monkeypatch, 1, nan_loss)
    with pytest.raises(TrainingDiverged, match=r"step 1 .*checkpoint is .*last, at step 0"):
        train(tiny_run(), tmp_path / "run", device="cpu")


def test_the_optimizer_uses_the_learning_rate_of_the_config(tiny_run, tmp_path, monkeypatch):
    config, seen, step = tiny_run("warmup=2", "decay=cosine"), [], torch.optim.Adam.step

    def watched(self, *args, **options):
        seen.append(self.param_groups[0]["lr"])
        return step(self, *args, **options)

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    train(config, tmp_path / "run", device="cpu")
    assert seen == pytest.approx([config.lr * config.lr_factor(i) for i in range(6)])


def test_the_model_is_told_the_progress_of_its_training(tiny_run, tmp_path, monkeypatch):
    seen, loss = [], CCDM.loss_by_rater

    def watched(self, *args):
        seen.append(self.training_progress)
        return loss(self, *args)

    monkeypatch.setattr(CCDM, "loss_by_rater", watched)
    train(tiny_run(), tmp_path / "run", device="cpu")
    assert seen == pytest.approx([i / 6 for i in range(6)])
    assert load(tmp_path / "run/last").training_progress == 1


def test_weight_decay_shrinks_weights_without_gradient(tiny_run, tmp_path, monkeypatch):
    """One step of AdamW without a gradient multiplies every weight by 1 - lr · decay."""
    monkeypatch.setattr(CCDM, "loss_by_rater", lambda self, *_: {"loss": 0 * sum(p.sum() for p in self.parameters())})
    config = tiny_run("optimizer=adamw", "weight_decay=0.5", "steps=1", "lr=0.1", "ema=0")
    train(config, tmp_path / "run", device="cpu")
    torch.manual_seed(config.seed)
    before = create("ccdm", 2, 1, **config.model.options).state_dict()
    after = load(tmp_path / "run/last").state_dict()
    for name, value in before.items():
        torch.testing.assert_close(after[name], 0.95 * value)


def test_clipping_bounds_the_gradient(tiny_run, tmp_path):
    """After one step Adam's first moment is a tenth of the gradient."""

    def given(*changes):
        out = tmp_path / str(len(changes))
        train(tiny_run("steps=1", *changes), out, device="cpu")
        moments = load_file(out / "last/state/optimizer.safetensors")
        squares = [v.double().square().sum() for k, v in moments.items() if k.endswith("/exp_avg")]
        return 10 * torch.stack(squares).sum().sqrt().item(), values(out, "train/gradient_norm")[1]

    free, logged = given()
    assert free == pytest.approx(logged, rel=1e-4)
    clipped, logged_too = given(f"clip={free / 7}")
    assert clipped == pytest.approx(free / 7, rel=1e-4)
    assert logged_too == pytest.approx(logged)


def test_bfloat16_trains_and_float16_needs_cuda(tiny_run, tmp_path, straight):
    out = tmp_path / "run"
    train(tiny_run("precision=bfloat16", "steps=2"), out, device="cpu")
    losses, exact = values(out, "train/loss"), values(straight, "train/loss")
    assert losses[1] == exact[1], "the last layer starts at zero"
    assert losses[2] != exact[2]
    assert losses[2] == pytest.approx(exact[2], rel=0.05)
    with pytest.raises(UserError, match="float16.*cpu.*float32"):
        train(tiny_run("precision=float16"), tmp_path / "half", device="cpu")


class Pretrained(ImageEncoder):
    """Weights and running statistics, neither of which may move."""

    channels = 2

    def __init__(self, image_channels: int):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Conv2d(image_channels, 2, 8, stride=8), torch.nn.BatchNorm2d(2))

    def features(self, image):
        return self.net(image)


def test_a_frozen_encoder_stays_frozen(tiny_run, tmp_path, monkeypatch):
    initial, build = {}, loop.build

    def watched(*args):
        model = build(*args)
        initial.update({k: v.clone() for k, v in model.state_dict().items()})
        return model

    monkeypatch.setattr(loop, "build", watched)
    monkeypatch.setitem(ENCODERS, "pretrained", Pretrained)
    config = tiny_run("model.options.encoder=pretrained", "model.options.multipliers=[1,1,1,1]", "steps=3")
    train(config, tmp_path / "run", device="cpu")
    for file, kept in (("model.safetensors", 7), ("state/model.safetensors", 0)):  # once is enough
        weights = load_file(tmp_path / "run/last" / file)
        frozen = {k for k in weights if ".encoder.net." in k}
        assert len(frozen) == kept
        moved = {k for k in weights if not torch.equal(weights[k], initial[k])}
        assert moved
        assert not moved & frozen
    assert not any(".encoder.net." in k for k in load_file(tmp_path / "run/last/state/optimizer.safetensors"))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_mistake_in_the_data_is_a_user_error(tiny_run, tmp_path, folder_root, workers):
    changes = ("data.name=folder", f"data.options={{root: {folder_root}}}", "data.train={}", "data.val={}")
    Image.new("L", (9, 8)).save(folder_root / "labels/anna/b.png")
    with pytest.raises(UserError) as error:
        train(tiny_run(*changes, f"data.workers={workers}"), tmp_path / "run", device="cpu")
    assert "Traceback" not in str(error.value)
    assert "\n" not in str(error.value)


def test_a_run_starts_from_the_weights_of_another(tiny_run, tmp_path):
    train(tiny_run("steps=2"), tmp_path / "first", device="cpu")
    start = f"start_from={tmp_path / 'first'}"
    train(tiny_run("steps=1", "lr=1e-12", "final_lr=0", start), tmp_path / "second", device="cpu")
    before, after = load(tmp_path / "first").state_dict(), load(tmp_path / "second").state_dict()
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    shutil.rmtree(tmp_path / "first")
    more = tiny_run("steps=2", "lr=1e-12", "final_lr=0", start)
    train(more, tmp_path / "second", resume=True, device="cpu")  # the checkpoint has all weights
    with pytest.raises(UserError, match="nowhere"):
        train(tiny_run(f"start_from={tmp_path / 'nowhere'}"), tmp_path / "third", device="cpu")
    assert not (tmp_path / "third").exists()
