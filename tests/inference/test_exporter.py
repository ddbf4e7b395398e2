"""Export: networks as ONNX files, with all that another language needs to sample."""

import json
import shutil

import numpy as np
import pytest
import torch

from stochseg.core import NOISES, SeededNoise
from stochseg.errors import UserError
from stochseg.inference import export
from stochseg.inference.exporter import first_calls, is_export
from stochseg.models import save
from stochseg.models.inputs import image_key
from stochseg.types import DatasetInfo
from tests.support.models import images, lively


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """ccdm-fast as the bundled model uses it: two networks, window, components, sticky sampler and Latin noise."""
    model = lively("ccdm-fast", components=3, focus=11, noise="latin", num_timesteps=20, steps=4)
    folder = tmp_path_factory.mktemp("export") / "out"
    return model, export(model, folder, (14, 18)), json.loads((folder / "export.json").read_text())


@pytest.fixture(scope="module")
def sessions(exported):
    onnxruntime = pytest.importorskip("onnxruntime")
    _, folder, description = exported
    return {part["name"]: onnxruntime.InferenceSession(folder / part["file"]) for part in description["modules"]}


def test_exported_files_compute_what_the_modules_compute(exported, sessions):
    model, _, description = exported
    calls = first_calls(model, (14, 18))
    for part in description["modules"]:
        slots = {slot["name"]: slot for slot in part["inputs"]}
        session = sessions[part["name"]]
        assert [slot.name for slot in session.get_inputs()] == list(slots)
        call = calls[part["name"]]
        for b in (1, 2, 5):
            tensors = [torch.cat([x] * 3)[:b] for x in call.tensors]
            for slot, x in zip(slots.values(), tensors, strict=True):
                assert (slot["shape"], slot["dtype"]) == (["batch", *x.shape[1:]], str(x.dtype)[6:])
            got = session.run(None, dict(zip(slots, (x.numpy() for x in tensors), strict=True)))
            with torch.no_grad():
                expected = call.with_tensors(tensors).apply(model.get_submodule(part["name"]))
            assert [slot["name"] for slot in part["outputs"]] == [slot.name for slot in session.get_outputs()]
            for a, e in zip(got, expected, strict=True):
                np.testing.assert_allclose(a, e.numpy(), rtol=1e-4, atol=1e-5)


def test_the_description_is_enough_to_sample(exported, sessions):
    """The sampling loop in numpy, from export.json, the .onnx files and the uniforms of the model alone."""
    model, folder, description = exported
    x, n = images(1, h=14, w=18), 5
    expected = model.sample(x, n, seed=3)

    image_part, label_part = description["modules"]
    constants = description["sampling"]
    assert constants["sampler"] == "sticky"
    assert "u < alpha_bar_s" in constants["rule"]
    window = constants["window"]
    rows, columns = slice(window["top"], window["bottom"]), slice(window["left"], window["right"])
    inner = x.numpy()[..., rows, columns]
    h, w = inner.shape[-2:]
    labels, grid, alpha_bar = constants["num_classes"], constants["grid"], constants["alpha_bar"]
    padded = image_part["inputs"][0]["shape"][-2:]
    edge = ((0, 0), (0, 0), (0, padded[0] - h), (0, padded[1] - w))
    levels = sessions[image_part["name"]].run(None, {"image": np.pad(inner, edge, mode="edge")})

    def log_softmax(logits):
        return logits - np.log(np.exp(logits).sum(1, keepdims=True))

    def propose(x_t, t):
        onehot = np.pad(np.eye(labels, dtype=np.float32)[x_t].transpose(0, 3, 1, 2), edge)
        added = {f"added_{i}": np.repeat(level, len(x_t), 0) for i, level in enumerate(levels)}
        feed = {"onehot": onehot, "t": np.full(len(x_t), t), **added}
        weight, logits = sessions[label_part["name"]].run(None, feed)
        return np.exp(log_softmax(weight.astype(np.float64))), logits[..., :h, :w].astype(np.float64)

    key = (3, image_key(x[0]))
    noise = NOISES[constants["noise"]]([key], n, range(n))
    x_T = (noise.uniform((n, h, w)).numpy() * np.float32(labels)).astype(int)
    free = noise.uniform((n, h, w)).numpy()
    x_t = x_T
    for t, s in zip(grid, [*grid[1:], 0], strict=True):
        if t == grid[0] and constants["share_first"]:
            shared = (SeededNoise([(*key, 0)]).uniform((1, h, w)).numpy() * np.float32(labels)).astype(int)
            weight, logits = (np.repeat(part, n, 0) for part in propose(shared, t))
        else:
            weight, logits = propose(x_t, t)
        component = (weight.cumsum(1)[:, :-1] <= noise.uniform((n, 1, 1)).numpy()[:, 0]).sum(1)
        log_p = log_softmax(logits[np.arange(n), component])
        if s > 0:
            u = noise.uniform((n, h, w)).numpy()
            drawn = (np.exp(log_p).cumsum(1)[:, :-1] <= u[:, None]).sum(1)
            x_t = np.where(free < alpha_bar[s], drawn, x_T)
    out = np.zeros((n, 14, 18), int)
    out[:, rows, columns] = log_p.argmax(1)
    assert (out != expected.labels[0].numpy()).mean() <= 1e-3
    assert (folder / "config.json").is_file()


def test_constants_of_a_network_of_one_map():
    model = lively("unet-ce")
    constants = model.sampling_constants(9, 10)
    assert constants["draw"] == model.config.draw
    assert "extended at the bottom and right" in constants["loop"]


def test_export_refuses_models_with_an_encoder(tmp_path):
    with pytest.raises(UserError, match="encoder 'hog', which is not exported"):
        export(lively("unet-ce", encoder="hog", multipliers=[1, 1, 1, 1]), tmp_path / "out", (16, 16))


def test_constants_describe_the_rule_of_a_corrector():
    constants = lively("ccdm", sampler="corrector").sampling_constants(8, 8)
    assert "fraction: 0.25" in constants["rule"]
    assert "q(x_t | x0)" in constants["rule"]


def test_export_writes_all_or_nothing(exported, tmp_path, monkeypatch):
    model, folder, _ = exported
    shutil.copytree(folder, tmp_path / "quantized")
    (tmp_path / "quantized/mine.onnx").write_text("precious")
    with pytest.raises(UserError, match="is not an exported model"):
        export(model, tmp_path / "quantized", (8, 8))
    assert is_export(folder)
    shutil.rmtree(tmp_path / "quantized")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/notes.txt").write_text("precious")
    with pytest.raises(UserError, match="is not an exported model"):
        export(model, tmp_path / "notes", (8, 8))
    with pytest.raises(UserError, match=r"at least 1, got \(0, 8\)"):
        export(model, tmp_path / "new", (0, 8))

    def fails(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("stochseg.inference.exporter.make_graph", fails)
    with pytest.raises(KeyboardInterrupt):
        export(model, tmp_path / "new", (8, 8))
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_the_command(run, tmp_path):
    saved = save(lively("unet-ce", base=4, multipliers=[1]), tmp_path / "model")
    for size in ("0", "8x", "axb", "8x8x8", "-4"):
        code, _, messages = run("export", saved, tmp_path / "out", f"--size={size}")
        assert code == 2
        assert "--size" in messages
        assert f"got {size!r}" in messages
    code, out, messages = run("export", saved, tmp_path / "out", "--size", "8x12")
    assert (code, messages) == (0, "")
    assert "export.json" in out
    description = json.loads((tmp_path / "out/export.json").read_text())
    assert description["image"] == {"channels": 1, "height": 8, "width": 12}
    assert description["modules"][0]["inputs"][0]["shape"] == ["batch", 1, 8, 12]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"unet.onnx", "config.json", "export.json"}


def test_a_model_that_resizes_images_is_exported_at_the_size_of_its_network(tmp_path):
    info = DatasetInfo(num_classes=2, image_channels=1, fit=(16, 24))
    model = lively("ccdm-fast", 2, 1, info, num_timesteps=20, evaluations=3)
    with pytest.raises(UserError, match="--size 16x24"):
        export(model, tmp_path / "out", (32, 32))
    export(model, tmp_path / "out", (16, 24))
    assert json.loads((tmp_path / "out/config.json").read_text())["info"]["fit"] == [16, 24]
