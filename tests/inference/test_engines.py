"""Engines: the same samples from other machinery, and models for other languages."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from stochseg.core import NOISES, SeededNoise
from stochseg.errors import UserError
from stochseg.inference import ENGINES, export, with_engine
from stochseg.inference.graphs import GraphOf
from stochseg.inference.portable import first_calls, is_export
from stochseg.models import MODELS, create, load, save
from stochseg.models.base import StochasticSegmenter, image_key

UNET = {"base": 8, "multipliers": [1, 2], "blocks": 1, "attention": []}
TOWERS = {"tower": [8, 16], "light": [8, 8], "tower_blocks": 1, "num_timesteps": 20, "steps": 4}
# One entry a model with accelerated modules.
SMALLEST = {
    "ccdm": {**UNET, "num_timesteps": 20, "steps": 4},
    "unet-ce": UNET,
    "ccdm-fast": {**TOWERS, "components": 2, "focus": 14},
}
# Shares of pixels whose label an engine may change, as its documentation says.
ROUNDING = 1e-3
BFLOAT16_CALL = 0.02
BFLOAT16_CHAIN = 0.1


def lively(name, **config):
    torch.manual_seed(0)
    model = create(name, 2, 1, **{**SMALLEST[name], **config})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model.eval()


def image(b=1, h=16, w=16):
    return torch.rand(b, 1, h, w, generator=torch.Generator().manual_seed(1)) * 2 - 1


def share_differing(a, b) -> float:
    return (a != b).float().mean().item()


def agree(expected, got, tolerance=ROUNDING):
    assert share_differing(expected.labels, got.labels) <= tolerance
    torch.testing.assert_close(got.mean, expected.mean, rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def onnx_models():
    """Each model and its copy by onnxruntime, translated once."""
    made = {}

    def get(name):
        if name not in made:
            model = lively(name)
            made[name] = model, with_engine(model, "onnx")
        return made[name]

    return get


def test_every_model_with_hot_modules_is_tried():
    assert set(SMALLEST) == {name for name, cls in MODELS.items() if cls.accelerated_modules}


# --- the same samples -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(SMALLEST))
def test_onnx_draws_the_labels_of_torch(name, onnx_models, capfd):
    """At the size the graphs were made for, at others, in any batch; without a word and without random numbers."""
    model, copy = onnx_models(name)
    before = torch.get_rng_state()
    for x, n in ((image(2), 3), (image(), 1), (image(1, 9, 40), 2), (image(1, 1, 1), 2)):
        agree(model.sample(x, n, seed=1), copy.sample(x, n, seed=1))
    assert model.sample(image(2), 3, seed=1).labels.unique().numel() > 1
    assert torch.equal(torch.get_rng_state(), before)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", sorted(SMALLEST))
def test_onnx_is_what_computes(name, onnx_models, monkeypatch):
    """After the first call of a size the torch modules are not asked again."""
    model, copy = onnx_models(name)
    copy.sample(image(), 2)
    asked = []
    monkeypatch.setattr(nn.Conv2d, "forward", lambda *_: asked.append(1))
    copy.sample(image(), 2)
    assert not asked
    with pytest.raises(Exception):  # noqa: B017, PT011
        model.sample(image(), 2)
    assert asked


@pytest.mark.parametrize("name", sorted(SMALLEST))
def test_bfloat16_draws_nearly_the_labels_of_torch(name):
    """In one network call; in a chain of four, where a pixel changes what follows and random weights pass it on."""
    model, x = lively(name), image(1, 32, 32)
    copy = with_engine(model, "bfloat16")
    expected, got = model.sample(x, 8, steps=1), copy.sample(x, 8, steps=1)
    agree(expected, got, BFLOAT16_CALL)
    assert got.mean.dtype == torch.float32
    assert not torch.equal(got.mean, expected.mean), "nothing was rounded"
    assert share_differing(model.sample(x, 8).labels, copy.sample(x, 8).labels) <= BFLOAT16_CHAIN


@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize(
    ("name", "config"),
    [("unet-ce", {"base": 4, "multipliers": [1]}), ("ccdm-fast", {"tower": [4], "light": [4], "components": 2})],
)
def test_compile_draws_the_labels_of_torch(name, config):
    model = lively(name, **config)
    copy = with_engine(model, "compile")
    torch._dynamo.utils.counters.clear()
    agree(model.sample(image(), 2), copy.sample(image(), 2))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= len(model.accelerated_modules)


@pytest.mark.parametrize("name", ["ccdm-fast", "unet-ce"])
@pytest.mark.parametrize("order", ["engine first", "windows first"])
def test_engines_compute_what_windows_see(name, order):
    model, x = lively(name, **({"focus": None} if name == "ccdm-fast" else {})), image(1, 60, 24)
    tiled = model.tiled(40, 8)
    both = with_engine(model, "bfloat16").tiled(40, 8) if order == "engine first" else with_engine(tiled, "bfloat16")
    got, expected = both.sample(x, 4, steps=1), tiled.sample(x, 4, steps=1)
    agree(expected, got, BFLOAT16_CALL)
    assert not torch.equal(got.mean, expected.mean), "nothing was rounded"


# --- the copy and its original ----------------------------------------------------------------------------


def test_the_model_itself_is_left_alone():
    model = lively("ccdm").train()
    expected = model.sample(image(), 2)
    copy = with_engine(model, "bfloat16")
    assert (copy.engine, model.engine) == ("bfloat16", "eager")
    copy.sample(image(), 2)
    assert all(module.training for module in model.modules())
    assert torch.equal(model.sample(image(), 2).mean, expected.mean)
    pairs = zip(model.parameters(), copy.parameters(), strict=True)
    assert all(a is b for a, b in pairs), "weights are shared"


def test_an_engine_changes_neither_names_nor_weights_on_disk(tmp_path):
    model = lively("ccdm-fast")
    again = load(save(with_engine(model, "bfloat16"), tmp_path / "model"))
    assert again.engine == "eager"
    assert torch.equal(again.sample(image(), 2).mean, model.sample(image(), 2).mean)


def test_an_engine_replaces_the_one_before():
    model = lively("ccdm")
    assert with_engine(model, "eager") is model
    halved = with_engine(model, "bfloat16")
    plain = with_engine(halved, "eager")
    assert plain.engine == "eager"
    assert torch.equal(plain.sample(image(), 2).mean, model.sample(image(), 2).mean)
    twice = with_engine(halved, "bfloat16")
    assert torch.equal(twice.sample(image(), 2).mean, halved.sample(image(), 2).mean)


# --- graphs -----------------------------------------------------------------------------------------------


class SizeMatters(nn.Module):
    """Takes another way for wide images, which a graph made for narrow ones does not know."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 1)

    def forward(self, x):
        return self.conv(x) if x.shape[-1] < 10 else self.conv(x) + 5


def test_a_graph_is_not_trusted_at_a_size_it_was_not_tried_at():
    module = SizeMatters()
    graph = GraphOf("module", module)
    with torch.no_grad():
        for w, graphs in ((4, 1), (8, 1), (16, 2), (4, 2), (12, 2)):
            torch.testing.assert_close(graph(torch.ones(2, 1, 4, w)), module(torch.ones(2, 1, 4, w)))
            assert len(graph.sessions) == graphs


def test_onnx_refuses_to_train(onnx_models):
    _, copy = onnx_models("unet-ce")
    with pytest.raises(UserError, match="no gradients.*train the model itself"):
        copy(image(), torch.zeros(1, 1, 16, 16, dtype=torch.int64))


# --- mistakes ---------------------------------------------------------------------------------------------


def test_unknown_engines_are_answered_with_the_known_ones():
    with pytest.raises(UserError, match="unknown engine 'tensorrt'; known: bfloat16, compile, cuda-graphs"):
        with_engine(lively("ccdm"), "tensorrt")


@pytest.mark.parametrize("package", ["onnxruntime", "onnx", "onnxscript"])
def test_a_missing_package_names_the_extra(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"{package}.*stochseg\[onnx\]"):
        with_engine(lively("ccdm"), "onnx")


def test_a_model_without_hot_modules(tmp_path):
    class Plain(StochasticSegmenter):
        name = "plain"

    model = Plain(lively("ccdm").info, UserError)
    assert with_engine(model, "eager") is model
    model.weight = nn.Parameter(torch.zeros(1))
    for engine in sorted(set(ENGINES) - {"eager", "cuda-graphs"}):
        with pytest.raises(UserError, match="'plain' names no modules.*use the engine eager"):
            with_engine(model, engine)
    with pytest.raises(UserError, match="'plain' names no modules"):
        export(model, tmp_path / "out")


def test_engines_of_another_device():
    meta = lively("ccdm").to("meta")
    with pytest.raises(UserError, match="computes on the CPU, and the model is on meta; use --engine compile"):
        with_engine(meta, "onnx")
    with pytest.raises(UserError, match="'cuda-graphs' needs a model on an NVIDIA GPU, this one is on cpu"):
        with_engine(lively("ccdm"), "cuda-graphs")


# --- for other languages ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """ccdm-fast as it ships: its two networks, window, components, sticky sampler and Latin noise are all a foreign
    program has to know."""
    model = lively("ccdm-fast", components=3, focus=11, noise="latin")
    folder = tmp_path_factory.mktemp("export") / "out"
    return model, export(model, folder, (14, 18)), json.loads((folder / "export.json").read_text())


@pytest.fixture(scope="module")
def sessions(exported):
    onnxruntime = pytest.importorskip("onnxruntime")
    _, folder, description = exported
    return {part["name"]: onnxruntime.InferenceSession(folder / part["file"]) for part in description["modules"]}


def test_exported_files_reproduce_the_modules(exported, sessions):
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
    """The loop written again in numpy from export.json and the .onnx files alone, with the uniforms of the model."""
    model, folder, description = exported
    x, n = image(1, 14, 18), 5
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
        share, logits = sessions[label_part["name"]].run(None, feed)
        return np.exp(log_softmax(share.astype(np.float64))), logits[..., :h, :w].astype(np.float64)

    key = (3, image_key(x[0]))
    noise = NOISES[constants["noise"]]([key], n, range(n))
    x_T = (noise.uniform((n, h, w)).numpy() * np.float32(labels)).astype(int)
    free = noise.uniform((n, h, w)).numpy()
    x_t = x_T
    for t, s in zip(grid, [*grid[1:], 0], strict=True):
        if t == grid[0] and constants["share_first"]:
            shared = (SeededNoise([(*key, 0)]).uniform((1, h, w)).numpy() * np.float32(labels)).astype(int)
            share, logits = (np.repeat(part, n, 0) for part in propose(shared, t))
        else:
            share, logits = propose(x_t, t)
        component = (share.cumsum(1)[:, :-1] <= noise.uniform((n, 1, 1)).numpy()[:, 0]).sum(1)
        log_p = log_softmax(logits[np.arange(n), component])
        if s > 0:
            u = noise.uniform((n, h, w)).numpy()
            drawn = (np.exp(log_p).cumsum(1)[:, :-1] <= u[:, None]).sum(1)
            x_t = np.where(free < alpha_bar[s], drawn, x_T)
    out = np.zeros((n, 14, 18), int)
    out[:, rows, columns] = log_p.argmax(1)
    assert (out != expected.labels[0].numpy()).mean() <= 1e-3
    assert (folder / "config.json").is_file()


def test_export_describes_a_network_of_one_map(tmp_path):
    model = lively("unet-ce")
    folder = export(model, tmp_path / "out", (9, 10))
    constants = json.loads((folder / "export.json").read_text())["sampling"]
    assert constants["draw"] == model.config.draw
    assert "extended at the bottom and right" in constants["loop"]


def test_export_refuses_features_from_outside_its_networks(tmp_path):
    with pytest.raises(UserError, match="encoder 'hog', which is not exported"):
        export(lively("unet-ce", encoder="hog", multipliers=[1, 1, 1, 1]), tmp_path / "out", (16, 16))


def test_the_rule_of_a_corrector_is_told(exported):
    constants = lively("ccdm", sampler="corrector").sampling_constants(8, 8)
    assert "fraction: 0.25" in constants["rule"]
    assert "q(x_t | x0)" in constants["rule"]


def test_export_writes_all_or_nothing(exported, tmp_path, monkeypatch):
    model, folder, _ = exported
    shutil.copytree(folder, tmp_path / "quantised")
    (tmp_path / "quantised/mine.onnx").write_text("precious")
    with pytest.raises(UserError, match="is not an exported model"):
        export(model, tmp_path / "quantised", (8, 8))
    assert is_export(folder)
    shutil.rmtree(tmp_path / "quantised")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/notes.txt").write_text("precious")
    with pytest.raises(UserError, match="is not an exported model"):
        export(model, tmp_path / "notes", (8, 8))
    with pytest.raises(UserError, match=r"at least 1, got \(0, 8\)"):
        export(model, tmp_path / "new", (0, 8))

    def fails(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("stochseg.inference.portable.make_graph", fails)
    with pytest.raises(KeyboardInterrupt):
        export(model, tmp_path / "new", (8, 8))
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


# --- the command ------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    return save(lively("unet-ce", base=4, multipliers=[1]), tmp_path / "model")


def test_engines_by_name_on_the_command_line(run, saved, tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)).save(tmp_path / "a.png")
    for command in ("predict", "evaluate"):
        assert all(name in run(command, "--help")[1] for name in ENGINES)
    code, _, messages = run("predict", saved, tmp_path / "a.png", "--engine", "warp", "--out", tmp_path / "out")
    assert code == 2
    assert "unknown engine 'warp'; known: bfloat16, compile, cuda-graphs, eager, onnx" in messages
    options = ("-n", 2, "--out", tmp_path / "out", "--device", "cpu", "--engine", "bfloat16")
    assert run("predict", saved, tmp_path / "a.png", *options)[0] == 0
    assert json.loads((tmp_path / "out/a/result.json").read_text())["options"]["engine"] == "bfloat16"


def test_export_on_the_command_line(run, saved, tmp_path):
    for size in ("0", "8x", "axb", "8x8x8", "-4"):
        code, _, messages = run("export", saved, tmp_path / "out", f"--size={size}")
        assert code == 2
        assert "--size: expected a whole number" in messages
    code, out, messages = run("export", saved, tmp_path / "out", "--size", "8x12")
    assert (code, messages) == (0, "")
    assert "export.json" in out
    description = json.loads((tmp_path / "out/export.json").read_text())
    assert description["image"] == {"channels": 1, "height": 8, "width": 12}
    assert description["modules"][0]["inputs"][0]["shape"] == ["batch", 1, 8, 12]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"unet.onnx", "config.json", "export.json"}
