"""Configs, documents and commands made to harm, and those damaged by chance: refused with a message, and quickly."""

import json
import socket
from pathlib import Path

import numpy as np
import pytest
import torch

from stochseg.config import Config
from stochseg.data.folder.config import FolderConfig
from stochseg.documents import parse_json, parse_yaml
from stochseg.errors import UserError
from stochseg.files import write_manifest
from stochseg.limits import VARIABLE
from stochseg.models import MODELS, create, load, save
from stochseg.types import DatasetInfo, Samples
from tests.support.models import NEEDS_SMP, SMALLEST

ROOT = Path(__file__).parents[2]
UNET = {"base": 4, "multipliers": [1], "blocks": 1, "attention": []}


@pytest.fixture
def offline(monkeypatch):
    """A socket that is opened fails the test, also if the caller handles the error."""
    opened = []
    monkeypatch.setattr(socket.socket, "connect", lambda *address: opened.append(address))
    yield
    assert not opened


# ---------------------------------------------------------------------- models


def describe(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    write_manifest(folder)
    return folder


@NEEDS_SMP
@pytest.mark.parametrize(
    "name",
    [
        *(
            "smp:unet/tu-hf-hub:org/name",
            "smp:unet/tu-hf_hub:org/name",
            "smp:unet/tu-local-dir:/tmp",
            "smp:unet/org/name",
        ),
        *("smp:hrnet/tu-hrnet_w18:x", "smp:unet/http://a.b/c", "smp:unet/tu-resnet18.a/b"),
    ],
)
def test_a_saved_model_with_a_name_of_a_hub_or_folder(tmp_path, offline, name):
    folder = save(create("unet-ce", **UNET), tmp_path / "model")
    with pytest.raises(UserError, match="timm has no model|unknown encoder|expected an HRNet"):
        load(describe(folder, model=name, config={}))


@NEEDS_SMP
@pytest.mark.parametrize("encoder", ["timm:hf-hub:org/name", "timm:local-dir:/tmp", "timm:resnet18.hf-hub:org"])
def test_an_image_encoder_of_a_hub_or_folder(offline, encoder):
    with pytest.raises(UserError, match="timm has no model"):
        create("ccdm", encoder=encoder, encoder_weights="random", **{**UNET, "multipliers": [1, 1, 1, 1]})


@NEEDS_SMP
@pytest.mark.parametrize(
    "key", ["checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained", "cache_dir"]
)
def test_options_of_timm_that_read_files(tmp_path, key):
    secret = tmp_path / "weights.pt"
    torch.save({"a": torch.zeros(1)}, secret)
    folder = save(create("unet-ce", **UNET), tmp_path / "model")
    config = {"encoder_depth": 2, "decoder_channels": (8, 8), "encoder_options": {key: str(secret)}}
    with pytest.raises(UserError, match="encoder_options.*img_size"):
        load(describe(folder, model="smp:unet/tu-test_resnet", config=config))


def test_loading_uses_no_folder_that_the_file_names(tmp_path):
    """A feature cache would write files into any folder that a config names."""
    cache = tmp_path / "cache"
    options = {**UNET, "multipliers": [1, 1, 1, 1], "encoder": "hog", "encoder_cache": str(cache), "num_timesteps": 2}
    model = load(save(create("ccdm", **options), tmp_path / "model"))
    model.sample(np.zeros((8, 8)), n=1)
    assert list(cache.iterdir()) == []


def test_a_config_of_a_larger_network_than_its_weights(tmp_path):
    folder = save(create("unet-ce", **UNET), tmp_path / "model")
    with pytest.raises(UserError, match=r"config\.json.*MB.*model\.safetensors"):
        load(describe(folder, config={**UNET, "base": 8192}))


def test_a_network_beyond_the_memory_limit(monkeypatch):
    with pytest.raises(UserError, match=f"1,000 MB.*{VARIABLE}"):
        create("unet-ce", **{**UNET, "base": 65536})
    monkeypatch.setenv(VARIABLE, "0.001")
    with pytest.raises(UserError, match=VARIABLE):
        create("unet-ce", **UNET)


def integers(config: type[Config]):
    """Keys of a config that hold an integer or a list of them, nested ones included."""
    for key, field in config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Config):
            yield from ((key, *rest) for rest in integers(field.annotation))
        elif "int" in str(field.annotation) or "float, ..." in str(field.annotation):
            yield (key,)


CASES = [(name, path) for name in sorted(MODELS) for path in integers(MODELS[name].config_type)]


@pytest.mark.parametrize(("name", "path"), CASES, ids=lambda case: case if isinstance(case, str) else ".".join(case))
@pytest.mark.parametrize("value", [10**9, 999_999])
def test_huge_numbers_in_the_config_of_every_model(monkeypatch, name, path, value):
    """Refused, or without effect on the size of the network."""
    monkeypatch.setattr("stochseg.models.budget.MAX_TENSORS", 500)
    monkeypatch.setenv(VARIABLE, "20")
    *parents, key = path
    for given in (value, [value] * 3):
        options = json.loads(json.dumps(SMALLEST[name]))
        place = options
        for parent in parents:
            place = place[parent]
        place[key] = given
        try:
            model = create(name, 2, 1, **options)
        except UserError:
            continue
        assert value < 10**9
        assert sum(p.numel() for p in model.parameters()) < 10**7


@pytest.mark.parametrize("key", ["num_classes", "image_channels"])
def test_huge_numbers_in_the_facts_of_a_data_set(key):
    with pytest.raises(UserError, match=key):
        DatasetInfo.parse({"num_classes": 2, "image_channels": 1, key: 10**9})


def test_saved_samples_that_ask_for_much_memory(tmp_path, monkeypatch):
    file = create("unet-ce", **UNET).sample(np.zeros((64, 64)), n=2).save(tmp_path / "a.npz")
    assert Samples.load(file).labels.shape == (1, 2, 64, 64)
    monkeypatch.setenv(VARIABLE, "0.1")
    with pytest.raises(UserError, match=VARIABLE):
        Samples.load(file)


# ---------------------------------------------------------------------- documents


@pytest.mark.parametrize(
    "text",
    [
        *("[" * 10**5, "- " * 10**5, "a: &a [*a]", "2001-99-99", "!!int ''", "x" * (10**6 + 1)),
        "\n".join(["- &a0 [1, 2]", *(f"- &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))]),
    ],
    ids=["lists", "items", "endless alias", "date", "integer", "length", "nested aliases"],
)
def test_yaml(text):
    with pytest.raises(UserError, match=r"a\.yaml"):
        parse_yaml(text, "a.yaml")


def test_yaml_keeps_aliases_that_do_not_multiply():
    assert parse_yaml("a: &a {b: 1}\nc: *a", "a.yaml") == {"a": {"b": 1}, "c": {"b": 1}}


@pytest.mark.parametrize("text", ["[" * 10**5, "[" * 60 + "]" * 60, "1" * 5000, b"\xff", "[]," * (2 * 10**7)])
def test_json(text):
    with pytest.raises(UserError, match=r"a\.json"):
        parse_json(text, "a.json")


def test_an_expression_that_takes_for_ever():
    config = FolderConfig(num_classes=2, image_channels=1, group="^((?:a|a)+)$")
    with pytest.raises(UserError, match="group.*more than 1 s"):
        config.group_of("a" * 60 + "!")
    assert FolderConfig(num_classes=2, image_channels=1, group=r"^(p\d+)(?=_)").group_of("p12_3") == "p12"


# ---------------------------------------------------------------------- the command line


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "lidc", "a.png", "-n", "1000000000000"],
        ["predict", "lidc", "a.png", "--seed", "1" * 30],
        ["predict", "lidc", "a.png", "--tile", "1" * 12],
        ["bench", "lidc", "--size", "999999999"],
        ["bench", "lidc", "--size", "1" * 5000],
        ["bench", "lidc@1000000000000"],
        ["data", "example", "x", "--size", "1000000000"],
        ["train", "phantom-tiny", "model.options.base=1000000000"],
        ["train", "phantom-tiny", "data.size=[1000000000, 1]"],
        ["train", "phantom-tiny", "steps=" + "[" * 10**5],
    ],
)
def test_numbers_on_the_command_line(run, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    assert run(*words)[0] == 2
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- calibrations


CALIBRATION = {
    "data": "lidc",
    "data_sha256": "0" * 64,
    "split": "val",
    "patients": 3,
    "cases": 4,
    "date": "2025-01-01",
    "sampling": {"n": 2, "noise": "independent"},
    "evaluations": 1,
}
INTERVAL = {
    "measure": "area",
    "label": 1,
    "confidence": 0.9,
    "offset": 0.1,
    "covered_before": 0.5,
    "covered": 0.9,
    "width_ratio": 1.5,
}
SCALING = {"kind": "vector", "slope": [1.0, 1.0], "bias": [0.0, 0.0], "ece_before": 0.1, "ece_after": 0.1}


DAMAGED_CALIBRATIONS = {
    "empty": (b"", "not valid JSON"),
    "deep": (b"[" * 100_000, "nested"),
    "list": (b"[1]", "expected keys"),
    "large": (b" " * (10**7 + 1), "more than"),
    "unknown key": ({"run": "code"}, "unknown key 'run'"),
    "no patients": ({"patients": 0}, "patients"),
    "other version": ({"version": 2}, "version"),
    "not a number": ({"intervals": [{**INTERVAL, "offset": float("nan")}]}, "offset"),
    "other classes": ({"intervals": [{**INTERVAL, "label": 5}]}, "another model"),
    "one slope": ({"scaling": {**SCALING, "slope": [1.0]}}, "slope"),
    "negative slope": ({"scaling": {**SCALING, "slope": [1.0, -1.0]}}, "slope"),
    "three slopes": ({"scaling": {**SCALING, "slope": [1.0] * 3, "bias": [0.0] * 3}}, "another model"),
}


@pytest.mark.parametrize("kind", DAMAGED_CALIBRATIONS)
def test_a_damaged_calibration(tmp_path, kind):
    content, words = DAMAGED_CALIBRATIONS[kind]
    if isinstance(content, dict):
        content = json.dumps({**CALIBRATION, **content}).encode()
    folder = save(create("unet-ce", **UNET), tmp_path / "model")
    (folder / "calibration.json").write_bytes(content)
    write_manifest(folder)
    with pytest.raises(UserError, match=words):
        load(folder)


def test_a_calibration_of_another_folder_or_with_flipped_bits(tmp_path):
    folder = save(create("unet-ce", **UNET), tmp_path / "model")
    (folder / "calibration.json").write_text(json.dumps(CALIBRATION))
    with pytest.raises(UserError, match="checksum differs"):
        load(folder)
    write_manifest(folder)
    assert load(folder).calibration.patients == 3
    (folder / "calibration.json").write_text(json.dumps({**CALIBRATION, "patients": 4}))
    with pytest.raises(UserError, match="checksum differs"):
        load(folder)
    (folder / "calibration.json").unlink()
    assert load(folder).calibration is None
