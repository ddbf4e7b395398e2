"""Engines: the samples of torch, computed in other ways."""

import json
import shutil
import sys
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from stochseg.config import Config
from stochseg.errors import UserError
from stochseg.inference import ENGINES, export, with_engine
from stochseg.inference.exporter import first_calls
from stochseg.inference.graphs import ModuleGraphs
from stochseg.models import MODELS, load, save
from stochseg.models.base import StochasticSegmenter
from tests.support.models import SMALLEST, UNET, as_params, images, lively
from tests.support.packages import install_package

SHORT = {"num_timesteps": 20, "steps": 4}
# Models whose networks are all accelerated, one for each kind of call: engines are tried thoroughly with these.
ACCELERATED = {
    "flow-ssn": {"image_unet": {**UNET, "attention": []}, "flow_unet": {**UNET, "attention": []}, "evaluations": 4},
    "ccdm": {**SHORT, "attention": []},
    "unet-ce": {"attention": []},
    "ccdm-fast": {**SHORT, "components": 2, "focus": 14},
}
# Fractions of pixels whose label an engine may change, as its docstring states.
ROUNDING = 1e-3
BFLOAT16_CALL = 0.02
BFLOAT16_CHAIN = 0.1


def small(name, **config):
    return lively(name, **{**ACCELERATED[name], **config})


def one_call(model, x, n):
    """Samples of a single network evaluation."""
    return model.sample(x, n, evaluations=1 if "evaluations" in model.sampling_choices else None)


def fraction_differing(a, b) -> float:
    return (a != b).float().mean().item()


def assert_agree(expected, got, tolerance=ROUNDING):
    assert fraction_differing(expected.labels, got.labels) <= tolerance
    torch.testing.assert_close(got.mean, expected.mean, rtol=0, atol=tolerance)


@pytest.fixture(scope="module")
def onnx_models():
    """Each model and its copy by onnxruntime, translated once."""
    made = {}

    def get(name):
        if name not in made:
            model = small(name)
            made[name] = model, with_engine(model, "onnx")
        return made[name]

    return get


def test_every_model_names_accelerated_modules():
    assert [name for name, cls in MODELS.items() if not cls.accelerated_modules] == []


@pytest.mark.parametrize("name", as_params(sorted(SMALLEST)))
def test_accelerated_modules_map_tensors_row_by_row(name):
    """Engines and export rely on it: tensors in, tensors out, and the first row depends on the first rows alone."""
    model = lively(name)
    with torch.no_grad():
        for module, call in first_calls(model, (16, 16)).items():
            assert call.tensors, "a module without inputs"
            assert all(isinstance(x, torch.Tensor | int | None) for x in (*call.args, *call.kwargs.values()))
            outputs = call.apply(model.get_submodule(module))
            first = call.with_tensors([x[:1] for x in call.tensors]).apply(model.get_submodule(module))
            for whole, row in zip(outputs, first, strict=True):
                torch.testing.assert_close(whole[:1], row, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", as_params(sorted(set(SMALLEST) - set(ACCELERATED))))
def test_bfloat16_engine_computes_every_model(name):
    model, x = lively(name), images(1, h=32, w=32)
    copy = with_engine(model, "bfloat16")
    expected, got = one_call(model, x, 8), one_call(copy, x, 8)
    assert fraction_differing(expected.labels, got.labels) <= BFLOAT16_CHAIN  # several networks in sequence
    assert (expected.mean - got.mean).abs().mean() <= BFLOAT16_CHAIN
    assert not torch.equal(got.mean, expected.mean), "nothing was rounded"


# --- the same samples -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ACCELERATED))
def test_onnx_draws_the_labels_of_torch(name, onnx_models, capfd):
    """At the size the graphs were made for, at others, in any batch; without output and without random numbers."""
    model, copy = onnx_models(name)
    before = torch.get_rng_state()
    for x, n in ((images(2), 3), (images(1), 1), (images(1, h=9, w=40), 2), (images(1, h=1, w=1), 2)):
        assert_agree(model.sample(x, n, seed=1), copy.sample(x, n, seed=1))
    assert model.sample(images(2), 3, seed=1).labels.unique().numel() > 1
    assert torch.equal(torch.get_rng_state(), before)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", sorted(ACCELERATED))
def test_onnx_computes_without_torch(name, onnx_models, monkeypatch):
    """After the first call of a size the torch modules are not called again."""
    model, copy = onnx_models(name)
    copy.sample(images(1), 2)
    calls = []
    monkeypatch.setattr(nn.Conv2d, "forward", lambda *_: calls.append(1))
    copy.sample(images(1), 2)
    assert not calls
    with pytest.raises(Exception):  # noqa: B017, PT011
        model.sample(images(1), 2)
    assert calls


@pytest.mark.parametrize("name", sorted(ACCELERATED))
def test_bfloat16_draws_almost_the_labels_of_torch(name):
    """In one network call, and less closely in a chain of four, where each call sees the changes of the one before."""
    model, x = small(name), images(1, h=32, w=32)
    copy = with_engine(model, "bfloat16")
    expected, got = one_call(model, x, 8), one_call(copy, x, 8)
    assert_agree(expected, got, BFLOAT16_CALL)
    assert got.mean.dtype == torch.float32
    assert not torch.equal(got.mean, expected.mean), "nothing was rounded"
    assert fraction_differing(model.sample(x, 8).labels, copy.sample(x, 8).labels) <= BFLOAT16_CHAIN


def graphs_compiled_for(model, copy) -> int:
    torch._dynamo.reset()  # models that share the code of a network count towards one limit of compilations
    torch._dynamo.utils.counters.clear()
    assert_agree(model.sample(images(1), 2), copy.sample(images(1), 2))
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("name", sorted(ACCELERATED))
def test_compile_traces_every_model(name, monkeypatch):
    """With a backend that generates no C++, which takes a minute per model."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    model = small(name)
    assert graphs_compiled_for(model, with_engine(model, "compile")) >= len(model.accelerated_modules)


class TinyNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)

    def forward(self, x, features=None):
        return self.conv(x).relu()


@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
def test_compile_generates_code():
    model = small("unet-ce")
    model.unet = TinyNetwork()
    assert graphs_compiled_for(model, with_engine(model, "compile")) == 1


@pytest.mark.parametrize("name", ["ccdm-fast", "unet-ce"])
@pytest.mark.parametrize("order", ["engine first", "windows first"])
def test_engines_compute_what_windows_see(name, order):
    model, x = small(name, **({"focus": None} if name == "ccdm-fast" else {})), images(1, h=60, w=24)
    tiled = model.tiled(40, 8)
    both = with_engine(model, "bfloat16").tiled(40, 8) if order == "engine first" else with_engine(tiled, "bfloat16")
    got, expected = one_call(both, x, 4), one_call(tiled, x, 4)
    assert_agree(expected, got, BFLOAT16_CALL)
    assert not torch.equal(got.mean, expected.mean), "nothing was rounded"


# --- the copy and its original ----------------------------------------------------------------------------


def test_the_model_itself_is_left_alone():
    model = small("ccdm").train()
    expected = model.sample(images(1), 2)
    copy = with_engine(model, "bfloat16")
    assert (copy.engine, model.engine) == ("bfloat16", "eager")
    copy.sample(images(1), 2)
    assert all(module.training for module in model.modules())
    assert torch.equal(model.sample(images(1), 2).mean, expected.mean)
    pairs = zip(model.parameters(), copy.parameters(), strict=True)
    assert all(a is b for a, b in pairs), "weights are shared"


def test_an_engine_changes_neither_names_nor_weights_on_disk(tmp_path):
    model = small("ccdm-fast")
    again = load(save(with_engine(model, "bfloat16"), tmp_path / "model"))
    assert again.engine == "eager"
    assert torch.equal(again.sample(images(1), 2).mean, model.sample(images(1), 2).mean)


def test_an_engine_replaces_the_one_before():
    model = small("ccdm")
    assert with_engine(model, "eager") is model
    halved = with_engine(model, "bfloat16")
    plain = with_engine(halved, "eager")
    assert plain.engine == "eager"
    assert torch.equal(plain.sample(images(1), 2).mean, model.sample(images(1), 2).mean)
    twice = with_engine(halved, "bfloat16")
    assert torch.equal(twice.sample(images(1), 2).mean, halved.sample(images(1), 2).mean)


# --- graphs -----------------------------------------------------------------------------------------------


class WidthDependent(nn.Module):
    """Computes wide images differently, which a graph made for narrow ones does not know."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 1)

    def forward(self, x):
        return self.conv(x) if x.shape[-1] < 10 else self.conv(x) + 5


def test_a_size_at_which_the_graph_is_wrong_gets_its_own_graph():
    module = WidthDependent()
    graph = ModuleGraphs("module", module)
    with torch.no_grad():
        for w, graphs in ((4, 1), (8, 1), (16, 2), (4, 2), (12, 2)):
            torch.testing.assert_close(graph(torch.ones(2, 1, 4, w)), module(torch.ones(2, 1, 4, w)))
            assert len(graph.sessions) == graphs


def test_onnx_refuses_to_train(onnx_models):
    _, copy = onnx_models("unet-ce")
    with pytest.raises(UserError, match="no gradients.*train the model itself"):
        copy(images(1), torch.zeros(1, 1, 16, 16, dtype=torch.int64))


# --- mistakes ---------------------------------------------------------------------------------------------


def test_unknown_engine_lists_the_known_ones():
    with pytest.raises(UserError, match="unknown engine 'tensorrt'; known: bfloat16, compile, cuda-graphs"):
        with_engine(small("ccdm"), "tensorrt")


@pytest.mark.parametrize("package", ["onnxruntime", "onnx", "onnxscript"])
def test_a_missing_package_names_the_extra(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=rf"{package}.*stochseg\[onnx\]"):
        with_engine(small("ccdm"), "onnx")


def test_a_model_without_accelerated_modules(tmp_path):
    class Plain(StochasticSegmenter):
        name = "plain"

    model = Plain(small("ccdm").info, Config())
    assert with_engine(model, "eager") is model
    model.weight = nn.Parameter(torch.zeros(1))
    for engine in sorted(set(ENGINES) - {"eager", "cuda-graphs"}):
        with pytest.raises(UserError, match="'plain' names no modules.*use the engine eager"):
            with_engine(model, engine)
    with pytest.raises(UserError, match="'plain' names no modules"):
        export(model, tmp_path / "out")


def test_engines_that_need_another_device():
    meta = small("ccdm").to("meta")
    with pytest.raises(UserError, match="computes on the CPU, and the model is on meta; use --engine compile"):
        with_engine(meta, "onnx")
    with pytest.raises(UserError, match="'cuda-graphs' needs a model on an NVIDIA GPU, this one is on cpu"):
        with_engine(small("ccdm"), "cuda-graphs")


# --- engines of other packages ----------------------------------------------------------------------------


PLUGIN = """
from stochseg.inference.engines import replace_modules

def doubled(model):
    return replace_modules(model, "doubled", lambda name, module: lambda *args, **kwargs: 2 * module(*args, **kwargs))
"""


def test_an_installed_package_adds_an_engine(tmp_path, monkeypatch):
    install_package(tmp_path, monkeypatch, "doubling", PLUGIN, {"stochseg.engines": {"doubled": "doubled"}})
    model = small("unet-ce")
    copy = with_engine(model, "doubled")
    del ENGINES["doubled"]
    assert copy.engine == "doubled"
    squared = model.sample(images(1), 1).mean ** 2
    torch.testing.assert_close(copy.sample(images(1), 1).mean, squared / squared.sum(1, keepdim=True))


# --- the command ------------------------------------------------------------------------------------------


def test_engines_on_the_command_line(run, tmp_path):
    saved = save(small("unet-ce"), tmp_path / "model")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)).save(tmp_path / "a.png")
    for command in ("predict", "evaluate"):
        assert all(name in run(command, "--help")[1] for name in ENGINES)
    code, _, messages = run("predict", saved, tmp_path / "a.png", "--engine", "warp", "--out", tmp_path / "out")
    assert code == 2
    assert "unknown engine 'warp'; known: bfloat16, compile, cuda-graphs, eager, onnx" in messages
    options = ("-n", 2, "--out", tmp_path / "out", "--device", "cpu", "--engine", "bfloat16")
    assert run("predict", saved, tmp_path / "a.png", *options)[0] == 0
    assert json.loads((tmp_path / "out/a/result.json").read_text())["options"]["engine"] == "bfloat16"
