"""Stopping and resuming a run: exact to the bit."""

import io
import json
import signal
from pathlib import Path

import pytest
import torch
from rich.console import Console

import stochseg.training.loop as loop
from stochseg.errors import UserError
from stochseg.files import MANIFEST
from stochseg.models import load
from stochseg.models.ccdm import CCDM
from stochseg.training import train
from stochseg.training.precision import Precision
from tests.support.runs import CHECKPOINT_FILES, assert_same_run, records, saved_progress, stop_at, values


def test_an_interrupted_and_resumed_run_equals_an_uninterrupted_one(tiny_run, tmp_path, monkeypatch, straight):
    config = tiny_run("validation.every=2")
    with monkeypatch.context() as patch:
        stop_at(patch, 4, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run", device="cpu")
    file = tmp_path / "run/last/state/progress.json"
    progress = json.loads(file.read_text())
    assert progress["step"] == 3
    file.write_text(
        json.dumps({key: value for key, value in progress.items() if key != "loss_scale"})
    )  # as in old runs
    (tmp_path / "run/last" / MANIFEST).unlink()
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
    assert saved_progress(tmp_path / "run")["step"] == 3
    train(config, tmp_path / "run", resume=True, device="cpu")
    assert_same_run(tmp_path / "run", straight)


def test_a_crashed_run_resumes_from_the_last_checkpoint(tiny_run, tmp_path, monkeypatch, straight):
    """Step 3 is taken twice and logged once."""
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


def test_a_run_from_before_a_key_resumes_with_the_value_of_its_time(tiny_run, tmp_path):
    train(tiny_run("steps=2"), tmp_path / "run", device="cpu")
    file = tmp_path / "run/last/config.json"
    description = json.loads(file.read_text())
    assert description["config"].pop("encoder_positions") is None
    file.write_text(json.dumps(description))
    for steps in (3, 4):
        train(tiny_run(f"steps={steps}"), tmp_path / "run", resume=True, device="cpu")
        assert json.loads(file.read_text())["config"]["encoder_positions"] == "timm"


def test_resuming_a_finished_run_changes_nothing(tiny_run, tmp_path):
    config = tiny_run("steps=2")
    train(config, tmp_path / "run", device="cpu")
    before = (tmp_path / "run/last/model.safetensors").read_bytes(), records(tmp_path / "run")
    train(config, tmp_path / "run", resume=True, device="cpu")
    assert ((tmp_path / "run/last/model.safetensors").read_bytes(), records(tmp_path / "run")) == before


def test_a_resumed_run_may_have_more_steps_but_no_other_model(tiny_run, tmp_path):
    out = tmp_path / "run"
    train(tiny_run("steps=2"), out, device="cpu")
    with pytest.raises(UserError, match=r"already contains a run.*--resume.*--out"):
        train(tiny_run("steps=2"), out, device="cpu")
    for change, key in (("model.options.base=8", "model"), ("seed=1", "seed"), ("data.options.size=16", "data")):
        with pytest.raises(UserError, match=rf"another {key}.*; .*steps"):
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


def test_a_run_without_checkpoints_may_resume_with_another_config(tiny_run, tmp_path, monkeypatch):
    """For example with a smaller batch, after the first one did not fit into memory."""
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        stop_at(patch, 2, RuntimeError("out of memory"))
        with pytest.raises(RuntimeError, match="out of memory"):
            train(tiny_run(), out, device="cpu")
    with pytest.raises(UserError, match="already contains a run"):  # another process may be training it
        train(tiny_run("batch_size=2"), out, device="cpu")
    train(tiny_run("batch_size=2", "steps=3"), out, resume=True, device="cpu")
    assert sorted(values(out, "train/loss")) == [1, 2, 3]
    with pytest.raises(UserError, match="trained with another batch_size"):
        train(tiny_run("steps=4"), out, resume=True, device="cpu")


def test_resuming_needs_no_pretrained_weights(tiny_run, tmp_path, monkeypatch):
    """The checkpoint has all weights; the file of the pretrained ones may be gone."""
    train(tiny_run("steps=1"), tmp_path / "run", device="cpu")

    def gone(self):
        raise UserError("no such file")

    monkeypatch.setattr(CCDM, "load_pretrained", gone)
    train(tiny_run("steps=2"), tmp_path / "run", resume=True, device="cpu")
    with pytest.raises(UserError, match="no such file"):
        train(tiny_run("steps=2"), tmp_path / "other", device="cpu")


def test_files_of_a_file_manager_in_a_checkpoint_are_ignored(tiny_run, tmp_path):
    out = tmp_path / "run"
    train(tiny_run("steps=1"), out, device="cpu")
    (out / "last/.DS_Store").touch()
    (out / "best/Thumbs.db").touch()
    train(tiny_run("steps=2", "validation.num_samples=3"), out, resume=True, device="cpu")
    assert saved_progress(out)["best_step"] == 2
    (out / "last/.git").mkdir()
    with pytest.raises(UserError, match="last.*would be lost"):
        train(tiny_run("steps=3"), out, resume=True, device="cpu")
    assert (out / "last/.git").exists()


@pytest.mark.parametrize("lost", [*CHECKPOINT_FILES, "state/progress.json"])
def test_an_incomplete_checkpoint_is_not_resumed(tiny_run, tmp_path, lost):
    config = tiny_run("steps=1", "keep_checkpoints=1")
    train(config, tmp_path / "run", device="cpu")
    (tmp_path / "run/last" / lost).unlink()
    for _ in range(2):
        with pytest.raises(UserError, match=rf"{Path(lost).name} is missing.*No other checkpoint"):
            train(config, tmp_path / "run", resume=True, device="cpu")
        (tmp_path / "run/last" / MANIFEST).unlink(missing_ok=True)  # as in old runs


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
def test_other_optimizers_resume_exactly(tiny_run, tmp_path, monkeypatch, optimizer):
    config = tiny_run(f"optimizer={optimizer}", "weight_decay=0.1", "steps=4")
    train(config, tmp_path / "straight", device="cpu")
    with monkeypatch.context() as patch:
        stop_at(patch, 3, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run", device="cpu")
    train(config, tmp_path / "run", resume=True, device="cpu")
    assert_same_run(tmp_path / "run", tmp_path / "straight")


def test_a_resumed_run_keeps_its_loss_scale(tiny_run, tmp_path, monkeypatch, straight):
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
    assert saved_progress(out)["loss_scale"]["scale"] == 8 * 2**3
    assert_same_run(out, straight)


def test_dropout_resumes_exactly(tiny_run, tmp_path, monkeypatch):
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
    assert saved_progress(tmp_path / "run")["step"] == 2


def test_an_interrupted_validation_is_repeated_on_resuming(tiny_run, tmp_path, monkeypatch):
    """After Ctrl-C during the last validation the steps are kept, and the validation is not lost."""
    config = tiny_run("steps=3", "validation.every=3")
    validate = loop._Run._validate
    monkeypatch.setattr(loop._Run, "_validate", lambda self, log: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", device="cpu", console=Console(quiet=True))
    assert not (tmp_path / "run" / "best").exists()
    monkeypatch.setattr(loop._Run, "_validate", validate)
    train(config, tmp_path / "run", device="cpu", resume=True, console=Console(quiet=True))
    assert (tmp_path / "run" / "best").exists()
    assert list(values(tmp_path / "run", "val/ged")) == [3]


def test_a_run_stopped_while_saving_the_best_model_saves_it_on_resuming(tiny_run, tmp_path, monkeypatch):
    """The validation is logged once."""
    config, out = tiny_run("steps=3", "validation.every=3"), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(loop, "save", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(config, out, device="cpu", console=Console(quiet=True))
    assert not (out / "best").exists()
    train(config, out, device="cpu", resume=True, console=Console(quiet=True))
    load(out / "best")
    assert [record["step"] for record in records(out) if "val/ged" in record] == [3], "once"


def test_a_resumed_run_reports_its_step(tiny_run, tmp_path):
    def messages(*changes) -> str:
        text = io.StringIO()
        train(tiny_run(*changes), tmp_path / "run", resume=True, device="cpu", console=Console(file=text))
        return text.getvalue()

    assert "resum" not in messages("steps=2")
    assert "resuming at step 2 of 4" in messages("steps=4")
    assert "training is complete at step 4 of 4" in messages("steps=4")
