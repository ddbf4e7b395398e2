"""Models of the Hugging Face Hub: its own client against a stand-in of its API."""

import shutil
import sys

import numpy as np
import pytest
import torch
import yaml

import stochseg
from stochseg.errors import UserError
from stochseg.models.calibration import Calibration
from stochseg.models.hub import FILES, fetch
from stochseg.training import TrainConfig
from tests.support.hub import serve_hub

constants = pytest.importorskip("huggingface_hub.constants")
NAME = "hf:someone/lung"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with serve_hub() as served:
        monkeypatch.setattr(constants, "ENDPOINT", served.address)
        template = served.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield served


@pytest.fixture
def model():
    return stochseg.create("unet-ce", base=4, multipliers=[1, 2]).eval()


def test_round_trip(hub, model):
    address = stochseg.push(model, "someone/lung", license="mit")
    files = hub.repositories["someone/lung"]
    assert address.startswith(f"{hub.address}/someone/lung/commit/")
    assert set(files) == {*FILES, "README.md"}
    loaded = stochseg.load(NAME)
    assert loaded.name == model.name
    for key, value in model.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[key])
    assert stochseg.load(f"{NAME}@v1").name == model.name


def test_card_has_tags_and_use(hub, model):
    stochseg.push(model, "someone/lung", license="mit")
    _, head, body = hub.repositories["someone/lung"]["README.md"].decode().split("---\n", 2)
    values = yaml.safe_load(head)
    assert values["library_name"] == "stochseg"
    assert values["license"] == "mit"
    assert {"stochastic-segmentation", "unet-ce"} <= set(values["tags"])
    assert 'stochseg.load("hf:someone/lung")' in body
    stochseg.push("lidc", "someone/bundled")
    card = hub.repositories["someone/bundled"]["README.md"].decode()
    assert "# Model card: `lidc`" in card
    assert "license:" not in card.split("---\n")[1]


def test_an_edited_card_is_kept(hub, model):
    stochseg.push(model, "someone/lung")
    hub.repositories["someone/lung"]["README.md"] = b"mine"
    stochseg.push(model, "someone/lung")
    assert hub.repositories["someone/lung"]["README.md"] == b"mine"


def test_nothing_else_is_downloaded(hub, model):
    stochseg.push(model, "someone/lung")
    hub.repositories["someone/lung"] |= {"evil.py": b"1/0", "pytorch_model.bin": b"\x80", "sub/config.json": b"{}"}
    folder = fetch(NAME)
    assert {file.name for file in folder.rglob("*")} == set(FILES)
    resolved = {path.rpartition("/")[2] for _, path in hub.requests if "/resolve/" in path}
    assert resolved <= {*FILES, "README.md"}, "README.md only to see whether there is one"


def test_changed_weights_are_refused(hub, model):
    stochseg.push(model, "someone/lung")
    files = hub.repositories["someone/lung"]
    files["model.safetensors"] = files["model.safetensors"][:-4] + b"\0\1\2\3"
    with pytest.raises(UserError, match="checksum differs"):
        stochseg.load(NAME)


@pytest.mark.parametrize("file", FILES)
def test_every_file_is_needed(hub, model, file):
    stochseg.push(model, "someone/lung")
    del hub.repositories["someone/lung"][file]
    with pytest.raises(UserError, match=f"expected the files of a saved model, {file} missing"):
        stochseg.load(NAME)


def test_unknown_repository_and_revision(hub, model):
    with pytest.raises(UserError, match="no such repository, or no access"):
        stochseg.load("hf:someone/else")
    stochseg.push(model, "someone/lung")
    with pytest.raises(UserError, match="no such revision"):
        stochseg.load(f"{NAME}@v9")


def test_without_a_network(hub, model, monkeypatch, tmp_path):
    stochseg.push(model, "someone/lung")
    stochseg.load(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert stochseg.load(NAME).name == model.name, "from the cache"
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(UserError, match=r"cannot be reached.*pass its path"):
        stochseg.load(NAME)
    with pytest.raises(UserError, match=r"push to someone/lung: the hub cannot be reached .*; connect and push again$"):
        stochseg.push(model, "someone/lung")


def test_push_without_a_token(hub, model, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "wrong")
    with pytest.raises(UserError, match="hf auth login"):
        stochseg.push(model, "someone/lung")


@pytest.mark.parametrize("rest", ["", "lung", "a/b/c", "../x", "a/..", "a/b@", "a/b@-x", "a /b"])
def test_names_that_are_none(hub, rest):
    with pytest.raises(UserError, match="expected hf:OWNER/NAME"):
        stochseg.load(f"hf:{rest}")
    assert not hub.requests


def test_names_in_configs_do_not_reach_the_hub(hub, tiny_run):
    values = tiny_run().model_dump()
    with pytest.raises(UserError, match="do not reach the hub"):
        TrainConfig.parse({**values, "start_from": NAME})
    assert not hub.requests


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"pip install 'stochseg\[hub\]'"):
        stochseg.load(NAME)


def test_commands(hub, run, model, tmp_path):
    folder = stochseg.save(model, tmp_path / "model")
    code, out, _ = run("push", folder, "someone/lung", "--half")
    assert code == 0
    assert "uploaded: http" in out
    image = tmp_path / "a.npy"
    np.save(image, np.zeros((16, 16), np.uint8))
    code, out, messages = run("predict", NAME, image, "--out", tmp_path / "out", "-n", 2, "--allow-unusual-input")
    assert code == 0, messages
    assert (tmp_path / "out").is_dir()


def test_a_calibration_comes_along(hub, model):
    facts = {"data": "x", "data_sha256": "0" * 64, "split": "val", "patients": 4, "cases": 9, "date": "2026"}
    model.calibration = Calibration(**facts, sampling=stochseg.SamplingOptions(n=16), evaluations=1)
    stochseg.push(model, "someone/lung")
    assert stochseg.load(NAME).calibration == model.calibration
