"""Damaged, foreign and incomplete checkpoints without checksums, as older versions wrote them; and their writing."""

import json
import shutil
import threading

import pytest
import torch
from safetensors.torch import save_file

import stochseg.models.io as model_io
from stochseg import files
from stochseg.errors import UserError
from stochseg.models import create, load, save
from tests.support.processes import dead_tag

TINY = {"base": 4, "multipliers": [1], "blocks": 1, "attention": []}


@pytest.fixture
def saved(tmp_path):
    folder = save(create("ccdm", 2, 1, **TINY), tmp_path / "model")
    (folder / files.MANIFEST).unlink()
    return folder


def describe(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("kept", [0, 4, 100, -7])
def test_truncated_weights(saved, kept):
    file = saved / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"model\.safetensors .*damaged"):
        load(saved)


def test_weights_of_random_bytes(saved):
    (saved / "model.safetensors").write_bytes(bytes(range(256)) * 8)
    with pytest.raises(UserError, match=r"model\.safetensors .*damaged"):
        load(saved)


@pytest.mark.parametrize("text", ["", "{", "\x00\x01", '{"format": "stochseg-mod'])
def test_config_that_is_not_json(saved, text):
    (saved / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"config\.json .*JSON.*damaged"):
        load(saved)


def test_config_that_is_not_text(saved):
    (saved / "config.json").write_bytes(b"\xff\xfe\x80")
    with pytest.raises(UserError, match=r"config\.json is not valid JSON"):
        load(saved)


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"format": "other"}, "'stochseg-model'.*'other'"),
        ({"version": 2}, r"version 2.* 1;.*upgrade"),
        ({"model": "ccdm3d"}, r"unknown model \(in .*config\.json\) 'ccdm3d'; known: .*ccdm"),
        ({"config": {**TINY, "bass": 1}}, "model 'ccdm': unknown key 'bass'; known keys: .*base"),
        ({"config": "tiny"}, "model 'ccdm': expected keys such as .*base.*got 'tiny'"),
        ({"info": {"num_classes": 2}}, r"config\.json: info: key 'image_channels': Field required"),
        ({"info": []}, r"config\.json: info: expected keys such as"),
    ],
)
def test_invalid_config(saved, changes, pattern):
    describe(saved, **changes)
    with pytest.raises(UserError, match=pattern):
        load(saved)


def test_config_that_is_a_list(saved):
    (saved / "config.json").write_text("[1, 2]")
    with pytest.raises(UserError, match=r"config\.json: expected a JSON object, got list"):
        load(saved)


def test_weights_of_another_model(saved, tmp_path):
    other = save(create("unet-ce", 2, 1, **TINY), tmp_path / "other")
    (saved / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(UserError, match=r"model\.safetensors .*'ccdm'.*70 tensors missing.*56 unknown.*config\.json"):
        load(saved)


def test_weights_of_another_width(saved, tmp_path):
    other = save(create("ccdm", 2, 1, **{**TINY, "base": 8}), tmp_path / "other")
    (saved / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(UserError, match=r"model\.safetensors.*shape .*expected "):
        load(saved)


@pytest.mark.parametrize("lost", ["model.safetensors", "config.json"])
def test_a_missing_file(saved, lost):
    (saved / lost).unlink()
    with pytest.raises(UserError, match=rf"{lost} missing.*incomplete"):
        load(saved)


def test_a_path_without_a_model(tmp_path):
    with pytest.raises(UserError, match=r"no model at .*nowhere: .*run folder"):
        load(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"no model at .*file"):
        load(tmp_path / "file")


# --- writing ----------------------------------------------------------------------------------------------


def names(folder):
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("stop", [OSError("disk full"), KeyboardInterrupt()])
def test_an_interrupted_save_leaves_the_old_model(saved, monkeypatch, stop):
    before = load(saved).state_dict()

    def half(weights, file):
        file.write_bytes(b"half")
        raise stop

    monkeypatch.setattr(model_io, "save_file", half)
    with pytest.raises(type(stop)):
        save(create("ccdm", 2, 1, **TINY), saved)
    monkeypatch.undo()
    after = load(saved).state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert names(saved.parent) == ["model"]


def test_a_save_that_fails_at_the_last_rename_leaves_the_old_model(saved, monkeypatch):
    replace = files.os.replace

    def fail(source, target):
        if str(target) == str(saved) and not str(source).endswith(".old"):
            raise OSError("no space for the name")
        replace(source, target)

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        save(create("ccdm", 2, 1, **TINY), saved)
    monkeypatch.undo()
    load(saved)
    assert names(saved.parent) == ["model"]


def test_a_model_is_restored_after_a_kill_between_the_two_moves(saved):
    """Only the hidden old folder is left then: readers read it and leave it, the next writer restores it."""
    expected = load(saved).state_dict()
    left = saved.rename(saved.with_name(f".{saved.name}.{dead_tag()}-0000.old"))
    torch.testing.assert_close(load(saved).state_dict(), expected)
    assert names(saved.parent) == [left.name]
    files.sweep(saved.parent)
    assert names(saved.parent) == ["model"]
    torch.testing.assert_close(load(saved).state_dict(), expected)


def test_the_old_folder_of_a_similar_name_is_not_restored(saved):
    left = saved.rename(saved.with_name(f".{saved.name}.v2.x1.old"))
    with pytest.raises(UserError, match="no model at"):
        load(saved)
    assert left.exists()
    odd = saved.with_name("model[2]")
    left.rename(saved.with_name(f".{odd.name}.x1.old"))
    load(odd)


def test_saving_replaces_only_models(saved, tmp_path):
    model = create("unet-ce", 2, 1, **TINY)
    assert load(save(model, saved)).name == "unet-ce"
    (tmp_path / "empty").mkdir()
    load(save(model, tmp_path / "empty"))

    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.png").write_text("precious")
    (tmp_path / "file").write_text("precious")
    (tmp_path / "project").mkdir()
    (tmp_path / "project/config.json").write_text("{}")
    load(save(model, tmp_path / "more"))
    (tmp_path / "more/notes.txt").write_text("precious")
    for path in (tmp_path / "photos", tmp_path / "file", tmp_path, tmp_path / "project", tmp_path / "more"):
        with pytest.raises(
            UserError, match=r"is not a saved model, so it is not replaced.*new folder|contains notes.txt"
        ):
            save(model, path)
    assert (tmp_path / "photos/cat.png").read_text() == (tmp_path / "file").read_text() == "precious"


def test_extra_tensors(saved):
    file = saved / "model.safetensors"
    save_file({**model_io.load_file(file), "stowaway": torch.zeros(1)}, file)
    with pytest.raises(UserError, match=r"0 tensors missing, 1 unknown \(first: 'stowaway'\)"):
        load(saved)


def test_a_reader_waits_for_a_writer_between_its_two_moves(saved, tmp_path):
    """If the reader restored the old folder, the writer could not move the new one there."""
    old, new = tmp_path / ".model.x.old", tmp_path / "new"
    saved.rename(old)
    shutil.copytree(old, new)
    writer = threading.Timer(0.05, new.rename, [saved])
    writer.start()
    load(saved)
    writer.join()
    assert saved.exists()
    assert old.exists()
