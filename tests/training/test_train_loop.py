"""The training loop: exact resuming, safe stopping, what it keeps and what it writes."""

import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import stochseg.training.loop as loop
from stochseg.errors import UserError
from stochseg.models import create, load
from stochseg.models.ccdm import CCDM
from stochseg.networks import ENCODERS, ImageEncoder
from stochseg.training import TrainingDiverged, train
from stochseg.training.config import write_config
from stochseg.training.precision import Precision


@pytest.fixture(autouse=True)
def _plain_pictures(request, monkeypatch):
    """Pictures are the slowest part of a tiny run; only the test that looks at them draws them."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr(loop, "qualitative", lambda rows, info: Figure(figsize=(1, 1)))


@pytest.fixture
def pictures():
    """Asks for real pictures."""


def log(out: Path) -> list[dict]:
    """The records of a run, without the clock."""
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


def values(out: Path, key: str) -> dict[int, float]:
    return {record["step"]: record[key] for record in log(out) if key in record}


FILES = ("model.safetensors", "state/model.safetensors", "state/optimizer.safetensors")


def assert_same_run(a: Path, b: Path) -> None:
    """Averaged weights, trained weights, optimizer and log, bit by bit."""
    for file in FILES:
        one, two = load_file(a / "last" / file), load_file(b / "last" / file)
        assert one.keys() == two.keys()
        assert all(torch.equal(one[k], two[k]) for k in one), file
    assert log(a) == log(b)


def stop_at(monkeypatch, call: int, error: BaseException) -> None:
    """Raise before the given optimizer step (counted from 1) of this process."""
    step, calls = loop._Run._step, []

    def counted(self, *arguments):
        calls.append(1)
        if len(calls) == call:
            raise error
        return step(self, *arguments)

    monkeypatch.setattr(loop._Run, "_step", counted)


@pytest.fixture(scope="module")
def straight(tiny_run, tmp_path_factory):
    """Six steps without a break."""
    out = tmp_path_factory.mktemp("straight")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "qualitative", lambda rows, info: Figure(figsize=(1, 1)))
        train(tiny_run("validation.every=2"), out / "run", device="cpu")
    return out / "run"


# --- stopping and going on --------------------------------------------------------------------------------


def test_interrupted_and_resumed_is_the_same_run(tiny_run, tmp_path, monkeypatch, straight):
    config = tiny_run("validation.every=2")
    with monkeypatch.context() as patch:
        stop_at(patch, 4, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run", device="cpu")
    file = tmp_path / "run/last/state/progress.json"
    progress = json.loads(file.read_text())
    assert progress["step"] == 3
    file.write_text(json.dumps({key: value for key, value in progress.items() if key != "loss_scale"}))  # an old one
    load(tmp_path / "run")
    train(config, tmp_path / "run", resume=True, device="cpu")
    assert_same_run(tmp_path / "run", straight)


def test_a_signal_during_a_step_waits_for_its_end(tiny_run, tmp_path, monkeypatch, straight, interruptible):
    config = tiny_run("validation.every=2")
    with monkeypatch.context() as patch:
        step, calls = torch.optim.Adam.step, []

        def interrupted(self, *args, **options):
            calls.append(1)
            if len(calls) == 3:
                signal.raise_signal(signal.SIGINT)
            return step(self, *args, **options)

        patch.setattr(torch.optim.Adam, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run", device="cpu")
    assert json.loads((tmp_path / "run/last/state/progress.json").read_text())["step"] == 3
    train(config, tmp_path / "run", resume=True, device="cpu")
    assert_same_run(tmp_path / "run", straight)


def test_a_crash_goes_on_from_the_last_checkpoint(tiny_run, tmp_path, monkeypatch, straight):
    """Steps 3 and 4 are taken twice; the log tells of them once."""
    config = tiny_run("validation.every=2", "save_every=2")
    with monkeypatch.context() as patch:
        stop_at(patch, 4, RuntimeError("power cut"))
        with pytest.raises(RuntimeError, match="power cut"):
            train(config, tmp_path / "run", device="cpu")
    assert max(values(tmp_path / "run", "train/loss")) == 3
    with (tmp_path / "run/log.jsonl").open("a") as file:
        file.write('{"step": 4, "seco')
    train(config, tmp_path / "run", resume=True, device="cpu")
    assert_same_run(tmp_path / "run", straight)


def test_loader_workers_change_nothing(tiny_run, tmp_path, straight):
    train(tiny_run("validation.every=2", "data.workers=2"), tmp_path / "run", device="cpu")
    assert_same_run(tmp_path / "run", straight)


def test_a_finished_run_resumed_stays_as_it_is(tiny_run, tmp_path):
    config = tiny_run("steps=2")
    train(config, tmp_path / "run", device="cpu")
    before = (tmp_path / "run/last/model.safetensors").read_bytes(), log(tmp_path / "run")
    train(config, tmp_path / "run", resume=True, device="cpu")
    assert ((tmp_path / "run/last/model.safetensors").read_bytes(), log(tmp_path / "run")) == before


def test_more_steps_may_be_asked_for_but_no_other_model(tiny_run, tmp_path):
    out = tmp_path / "run"
    train(tiny_run("steps=2"), out, device="cpu")
    with pytest.raises(UserError, match=r"already contains a run.*--resume.*--out"):
        train(tiny_run("steps=2"), out, device="cpu")
    for change, key in (("model.options.base=8", "model"), ("seed=1", "seed"), ("data.options.size=16", "data")):
        with pytest.raises(UserError, match=rf"trained with another {key}; a resumed run may change only .*steps"):
            train(tiny_run("steps=4", change), out, resume=True, device="cpu")
    train(tiny_run("steps=4"), out, resume=True, device="cpu")
    assert sorted(values(out, "train/loss")) == [1, 2, 3, 4]


def test_a_run_with_old_key_names_is_resumed_under_the_new_ones(tiny_run, tmp_path):
    out = tmp_path / "run"
    train(tiny_run("steps=1"), out, device="cpu")
    text = (out / "train.yaml").read_text()
    for new, old in (
        ("num_timesteps", "num_steps"),
        ("evaluations: 2", "steps: 2"),
        ("num_samples", "samples"),
        ("evaluations: null", "steps: null"),
        ("calibration_images", "settle"),
    ):
        assert new in text
        text = text.replace(new, old)
    (out / "train.yaml").write_text(text)
    defaults = "model.options.schedule=cosine"
    train(tiny_run("steps=2", defaults), out, resume=True, device="cpu")
    with pytest.raises(UserError, match="trained with another model"):
        train(tiny_run("steps=3", "model.options.num_timesteps=9"), out, resume=True, device="cpu")


def test_a_run_that_kept_nothing_may_be_begun_otherwise(tiny_run, tmp_path, monkeypatch):
    """Out of memory in the first step, so with a smaller batch."""
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_at(patch, 2, RuntimeError("out of memory"))
        with pytest.raises(RuntimeError, match="out of memory"):
            train(tiny_run(), out, device="cpu")
    with pytest.raises(UserError, match="already contains a run"):  # which another process may be at
        train(tiny_run("batch_size=2"), out, device="cpu")
    train(tiny_run("batch_size=2", "steps=3"), out, resume=True, device="cpu")
    assert sorted(values(out, "train/loss")) == [1, 2, 3]
    with pytest.raises(UserError, match="trained with another batch_size"):
        train(tiny_run("steps=4"), out, resume=True, device="cpu")


def test_going_on_needs_no_pretrained_weights(tiny_run, tmp_path, monkeypatch):
    """Those of the run are kept; the file they came from may be gone."""
    train(tiny_run("steps=1"), tmp_path / "run", device="cpu")

    def gone(self):
        raise UserError("no such file")

    monkeypatch.setattr(CCDM, "load_pretrained", gone)
    train(tiny_run("steps=2"), tmp_path / "run", resume=True, device="cpu")
    with pytest.raises(UserError, match="no such file"):
        train(tiny_run("steps=2"), tmp_path / "other", device="cpu")


def test_what_a_file_manager_leaves_in_a_checkpoint_does_not_end_a_run(tiny_run, tmp_path):
    out = tmp_path / "run"
    train(tiny_run("steps=1"), out, device="cpu")
    (out / "last/.DS_Store").touch()
    (out / "best/Thumbs.db").touch()
    train(tiny_run("steps=2", "validation.num_samples=3"), out, resume=True, device="cpu")
    assert json.loads((out / "last/state/progress.json").read_text())["best_step"] == 2
    (out / "last/.git").mkdir()
    with pytest.raises(UserError, match="is not a checkpoint, so it is not replaced"):
        train(tiny_run("steps=3"), out, resume=True, device="cpu")
    assert (out / "last/.git").exists()


def test_a_run_that_cannot_begin_leaves_nothing_behind(tiny_run, tmp_path):
    for change in ("model.options.bas=4", "model.name=ccmd", "data.name=folder", "data.augment=spin"):
        with pytest.raises(UserError):
            train(tiny_run(change), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("lost", [*FILES, "state/progress.json"])
def test_an_incomplete_checkpoint_is_not_resumed(tiny_run, tmp_path, lost):
    config = tiny_run("steps=1")
    train(config, tmp_path / "run", device="cpu")
    (tmp_path / "run/last" / lost).unlink()
    with pytest.raises(UserError, match=rf"{Path(lost).name} is missing; the checkpoint is not complete"):
        train(config, tmp_path / "run", resume=True, device="cpu")


# --- divergence -------------------------------------------------------------------------------------------


def spoil(monkeypatch, call: int, spoiled) -> None:
    """Change the loss of one call."""
    loss, calls = CCDM.loss, []

    def changed(self, *inputs):
        out = loss(self, *inputs)
        calls.append(1)
        return {"loss": spoiled(self, out["loss"])} if len(calls) == call else out

    monkeypatch.setattr(CCDM, "loss", changed)


def no_number(model, loss):
    return loss * math.nan


def no_gradient(model, loss):
    """A finite loss whose gradient is NaN."""
    return loss + (0 * next(model.parameters()).sum()).sqrt()


@pytest.mark.parametrize(("spoiled", "what"), [(no_number, "loss"), (no_gradient, "gradient")])
def test_divergence_stops_and_keeps_the_last_good_checkpoint(tiny_run, tmp_path, monkeypatch, spoiled, what):
    out = tmp_path / "run"
    spoil(monkeypatch, 4, spoiled)
    with pytest.raises(TrainingDiverged, match=rf"the {what} became nan at step 4.*checkpoint is .*last.*lower lr"):
        train(tiny_run("save_every=1"), out, device="cpu")
    assert json.loads((out / "last/state/progress.json").read_text())["step"] == 3
    for file in FILES:
        assert all(torch.isfinite(v).all() for v in load_file(out / "last" / file).values())


def test_divergence_before_any_checkpoint_says_so(tiny_run, tmp_path, monkeypatch):
    spoil(monkeypatch, 1, no_number)
    with pytest.raises(TrainingDiverged, match=r"step 1 .*no checkpoint had been written yet"):
        train(tiny_run(), tmp_path / "run", device="cpu")


# --- what a step does -------------------------------------------------------------------------------------


def test_the_optimizer_sees_the_learning_rate_of_the_config(tiny_run, tmp_path, monkeypatch):
    config, seen, step = tiny_run("warmup=2", "decay=cosine"), [], torch.optim.Adam.step

    def watched(self, *args, **options):
        seen.append(self.param_groups[0]["lr"])
        return step(self, *args, **options)

    monkeypatch.setattr(torch.optim.Adam, "step", watched)
    train(config, tmp_path / "run", device="cpu")
    assert seen == pytest.approx([config.lr * config.lr_factor(i) for i in range(6)])


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
def test_other_optimizers_stop_and_go_on(tiny_run, tmp_path, monkeypatch, optimizer):
    config = tiny_run(f"optimizer={optimizer}", "weight_decay=0.1", "steps=4")
    train(config, tmp_path / "straight", device="cpu")
    with monkeypatch.context() as patch:
        stop_at(patch, 3, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run", device="cpu")
    train(config, tmp_path / "run", resume=True, device="cpu")
    assert_same_run(tmp_path / "run", tmp_path / "straight")


def test_weight_decay_shrinks_what_has_no_gradient(tiny_run, tmp_path, monkeypatch):
    """One step of AdamW without a gradient: every weight loses lr · decay of itself."""
    monkeypatch.setattr(CCDM, "loss", lambda self, *_: {"loss": 0 * sum(p.sum() for p in self.parameters())})
    config = tiny_run("optimizer=adamw", "weight_decay=0.5", "steps=1", "lr=0.1", "ema=0")
    train(config, tmp_path / "run", device="cpu")
    torch.manual_seed(config.seed)
    before = create("ccdm", 2, 1, **config.model.options).state_dict()
    after = load(tmp_path / "run/last").state_dict()
    for name, value in before.items():
        torch.testing.assert_close(after[name], 0.95 * value)


def test_clipping_bounds_the_gradient(tiny_run, tmp_path):
    """After one step Adam's first moment is a tenth of the gradient it was given."""

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
    assert losses[1] == exact[1], "the last layer begins at zero"
    assert losses[2] != exact[2]
    assert losses[2] == pytest.approx(exact[2], rel=0.05)
    with pytest.raises(UserError, match="float16 needs a CUDA device, got cpu; use bfloat16 or float32"):
        train(tiny_run("precision=float16"), tmp_path / "half", device="cpu")


def test_a_resumed_run_scales_its_loss_as_if_it_had_not_been_stopped(tiny_run, tmp_path, monkeypatch, straight):
    """The scaler of float16, here on the CPU, doubles every second step: also across the break after the third."""
    prepare = Precision.__init__

    def scaled(self, name, device):
        prepare(self, name, device)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

    monkeypatch.setattr(Precision, "__init__", scaled)
    config, out = tiny_run("validation.every=2"), tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_at(patch, 4, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            train(config, out, device="cpu")
    train(config, out, resume=True, device="cpu")
    assert json.loads((out / "last/state/progress.json").read_text())["loss_scale"]["scale"] == 8 * 2**3
    assert_same_run(out, straight)


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


# --- validation and logs ----------------------------------------------------------------------------------


def test_the_best_checkpoint_has_the_lowest_ged(tiny_run, tmp_path, monkeypatch):
    scores = iter([0.5, 0.2, 0.4])
    changes = ("decay=constant", "validation.every=1", "validation.images=1")
    with monkeypatch.context() as patch:
        patch.setattr(loop, "ged", lambda *_, **__: torch.tensor([next(scores)]))
        train(tiny_run("steps=3", *changes), tmp_path / "run", device="cpu")
    progress = json.loads((tmp_path / "run/last/state/progress.json").read_text())
    assert (progress["best"], progress["best_step"]) == (pytest.approx(0.2), 2)
    train(tiny_run("steps=2", *changes), tmp_path / "two", device="cpu")
    best, expected = (load_file(tmp_path / f / "model.safetensors") for f in ("run/best", "two/last"))
    assert all(torch.equal(best[k], expected[k]) for k in expected)
    chosen = load(tmp_path / "run").state_dict()
    assert all(torch.equal(chosen[k], expected[k]) for k in expected)


def test_a_score_of_another_validation_is_no_record(tiny_run, tmp_path):
    changes = ("validation.every=1", "validation.images=1")
    train(tiny_run("steps=1", *changes), tmp_path / "run", device="cpu")
    file = tmp_path / "run/last/state/progress.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "best": -1.0}))
    for step, samples, best in ((2, 2, 1), (3, 3, 3)):
        train(tiny_run(f"steps={step}", *changes, f"validation.num_samples={samples}"), tmp_path / "run", resume=True)
        assert json.loads(file.read_text())["best_step"] == best


def test_a_record_that_was_reset_stays_so_though_nothing_was_trained(tiny_run, tmp_path):
    changes = ("validation.every=1", "validation.images=1")
    train(tiny_run("steps=1", *changes), tmp_path / "run", device="cpu")
    file = tmp_path / "run/last/state/progress.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "best": -1.0}))
    for steps in (1, 2):
        more = tiny_run(f"steps={steps}", *changes, "validation.num_samples=3")
        train(more, tmp_path / "run", resume=True, device="cpu")
    assert json.loads(file.read_text())["best_step"] == 2


def test_images_without_labels_are_not_validated_on(tiny_run, tmp_path, folder_root):
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


@pytest.mark.parametrize("workers", [0, 1])
def test_a_mistake_in_the_data_is_told_plainly(tiny_run, tmp_path, folder_root, workers):
    changes = ("data.name=folder", f"data.options={{root: {folder_root}}}", "data.train={}", "data.val={}")
    for file in ("images/b", "labels/anna/b"):
        Image.new("L", (9, 8)).save(folder_root / f"{file}.png")
    with pytest.raises(UserError) as error:
        train(tiny_run(*changes, f"data.workers={workers}"), tmp_path / "run", device="cpu")
    assert "Traceback" not in str(error.value)
    assert "\n" not in str(error.value)


def test_data_with_void_pixels_validates(tiny_run, tmp_path, folder_root):
    changes = ("data.name=folder", f"data.options={{root: {folder_root}}}", "data.train={}", "data.val={}", "steps=2")
    train(tiny_run(*changes), tmp_path / "run", device="cpu")
    assert 0 <= values(tmp_path / "run", "val/ged")[2] <= 2


def test_an_empty_split_is_refused_before_training(tiny_run, tmp_path, folder_root):
    changes = ("data.name=folder", f"data.options={{root: {folder_root}}}", "data.train={}", "data.val={}", "steps=2")
    for content, which in (({"train": ["a"], "val": []}, "validation"), ({"train": [], "val": ["a"]}, "training")):
        (folder_root / "splits.json").write_text(json.dumps(content))
        with pytest.raises(UserError, match=f"the {which} split is empty"):
            train(tiny_run(*changes), tmp_path / "run", device="cpu")


def test_what_a_run_leaves_to_look_at(tiny_run, tmp_path, pictures):
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


# --- several processes ------------------------------------------------------------------------------------


def test_two_processes_learn_what_one_learns(tiny_run, tmp_path, straight):
    write_config(tiny_run("validation.every=2"), tmp_path / "two.yaml")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = ["-m", "stochseg", "train", str(tmp_path / "two.yaml"), "--out", str(tmp_path / "run"), "--device", "cpu"]
    done = subprocess.run(
        [*launch, *command], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=240
    )
    assert done.returncode == 0, done.stderr
    for key, precision in (("train/loss", 1e-5), ("train/gradient_norm", 1e-3), ("train/lr", 1e-12)):
        assert values(tmp_path / "run", key) == pytest.approx(values(straight, key), rel=precision), key
    assert values(tmp_path / "run", "val/ged").keys() == {2, 4, 6}
    assert len(log(tmp_path / "run")) == len(log(straight))


SKEWED = """
import itertools, os, sys, types
from pathlib import Path

import torch
import stochseg.training.loop as loop
from stochseg.training.config import read_config

ticks, speed = itertools.count(), 1 + int(os.environ["RANK"])
loop.time = types.SimpleNamespace(perf_counter=lambda: speed * next(ticks))
fit = loop._Run.fit

def fit_and_keep(run):
    fit(run)
    weights = torch.nn.utils.parameters_to_vector(run.model.parameters()).detach()
    torch.save({"step": run.progress.step, "weights": weights}, f"{sys.argv[2]}-{os.environ['RANK']}.pt")

loop._Run.fit = fit_and_keep
loop.train(read_config(Path(sys.argv[1])), sys.argv[2], device="cpu")
"""


def test_processes_whose_clocks_differ_take_the_same_steps(tiny_run, tmp_path):
    """A training of twelve seconds: a step takes one by the clock of the first process and two by the second's."""
    (tmp_path / "skewed.py").write_text(SKEWED)
    write_config(tiny_run("minutes=0.2", "steps=1000"), tmp_path / "two.yaml")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [str(tmp_path / name) for name in ("skewed.py", "two.yaml", "run")]
    done = subprocess.run(
        [*launch, *command],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "FORCE_COLOR": ""},  # a progress bar would look at the clock
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    one, two = (torch.load(tmp_path / f"run-{rank}.pt", weights_only=True) for rank in (0, 1))
    assert one["step"] == two["step"] == 8
    assert torch.equal(one["weights"], two["weights"])


def test_a_validation_that_was_cut_short_is_done_on_resuming(tiny_run, tmp_path, monkeypatch):
    """Ctrl-C during the last validation: the steps are kept, and the validation is not lost."""
    config = tiny_run("steps=3", "validation.every=3")
    validate = loop._Run._validate
    monkeypatch.setattr(loop._Run, "_validate", lambda self, log: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", device="cpu", console=Console(quiet=True))
    assert not (tmp_path / "run" / "best").exists()
    monkeypatch.setattr(loop._Run, "_validate", validate)
    train(config, tmp_path / "run", device="cpu", resume=True, console=Console(quiet=True))
    assert (tmp_path / "run" / "best").exists()
    logged = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [r["step"] for r in logged if "val/ged" in r] == [3]


def test_stopped_while_the_best_model_is_saved(tiny_run, tmp_path, monkeypatch):
    """The resumed run finds the score better once more, and tells of it once."""
    config, out = tiny_run("steps=3", "validation.every=3"), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(loop, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(config, out, device="cpu", console=Console(quiet=True))
    assert not (out / "best").exists()
    train(config, out, device="cpu", resume=True, console=Console(quiet=True))
    load(out / "best")
    assert [record["step"] for record in log(out) if "val/ged" in record] == [3]


def test_dropout_is_the_same_after_resuming(tiny_run, tmp_path, monkeypatch):
    build = loop.build

    def with_dropout(*arguments):
        model = build(*arguments)
        drop = torch.nn.functional.dropout
        model.denoiser.unet.register_forward_hook(lambda unet, _, out: drop(out, training=unet.training))
        return model

    monkeypatch.setattr(loop, "build", with_dropout)
    train(tiny_run(), tmp_path / "straight", device="cpu")
    with monkeypatch.context() as patch:
        stop_at(patch, 4, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            train(tiny_run(), tmp_path / "run", device="cpu")
    torch.rand(7)
    train(tiny_run(), tmp_path / "run", resume=True, device="cpu")
    assert_same_run(tmp_path / "run", tmp_path / "straight")


def test_the_number_of_loader_processes_may_change_on_resuming(tiny_run, tmp_path):
    train(tiny_run("steps=1"), tmp_path / "run", device="cpu", console=Console(quiet=True))
    more = tiny_run("steps=2", "data.workers=1")
    train(more, tmp_path / "run", device="cpu", resume=True, console=Console(quiet=True))


def test_the_best_model_keeps_where_its_entropy_falls(tiny_run, tmp_path):
    run = train(
        tiny_run("steps=2", "validation.calibration_images=1"),
        tmp_path / "run",
        device="cpu",
        console=Console(quiet=True),
    )
    steps = [t for t, _ in load(run / "best").config.profile]
    assert (steps[0], steps[-1]) == (8, 1)


def test_a_run_begins_with_the_weights_of_another(tiny_run, tmp_path):
    train(tiny_run("steps=2"), tmp_path / "first", device="cpu")
    start = f"start_from={tmp_path / 'first'}"
    train(tiny_run("steps=1", "lr=1e-12", "final_lr=0", start), tmp_path / "second", device="cpu")
    before, after = load(tmp_path / "first").state_dict(), load(tmp_path / "second").state_dict()
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    shutil.rmtree(tmp_path / "first")
    more = tiny_run("steps=2", "lr=1e-12", "final_lr=0", start)
    train(more, tmp_path / "second", resume=True, device="cpu")  # it has its weights
    with pytest.raises(UserError, match="nowhere"):
        train(tiny_run(f"start_from={tmp_path / 'nowhere'}"), tmp_path / "third", device="cpu")
    assert not (tmp_path / "third").exists()


# --- messages ---------------------------------------------------------------------------------------------


def test_a_resumed_run_reports_its_step(tiny_run, tmp_path):
    def messages(*changes) -> str:
        text = io.StringIO()
        train(tiny_run(*changes), tmp_path / "run", resume=True, device="cpu", console=Console(file=text))
        return text.getvalue()

    assert "resum" not in messages("steps=2")
    assert "resuming at step 2 of 4" in messages("steps=4")
    assert "training is complete at step 4 of 4" in messages("steps=4")
