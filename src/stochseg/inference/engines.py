"""Engines: ways to compute the networks of a model while it samples.

A model names the few modules that do its heavy work (`StochasticSegmenter.accelerated_modules`). An engine returns a
copy of the model, over the same weights, that computes these modules in another way. Everything else, above all the
randomness, is untouched, so the samples are the same up to the engine's rounding.

To add an engine, write a function `model -> model` that calls `replace_modules`, and register it:
`ENGINES["mine"] = function` in this process, or in the pyproject.toml of an installed package:

    [project.entry-points."stochseg.engines"]
    mine = "its_module:function"
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.inference.graphs import ModuleGraphs
from stochseg.models import StochasticSegmenter
from stochseg.networks.sharing import shared_copy
from stochseg.plugins import Registry

Engine = Callable[[StochasticSegmenter], StochasticSegmenter]

Forward = Callable[..., Any]
"""Replacement for the `forward` of an accelerated module."""

ENGINES: Registry[Engine] = Registry("engine", "stochseg.engines")


def with_engine(model: StochasticSegmenter, name: str) -> StochasticSegmenter:
    """Return a copy of a model, over the same weights, that samples with another engine.

    Choose the device before the engine, and apply the engine again after training: `onnx` keeps the weights it was
    first called with.

    Args:
        model: The model; it is not changed.
        name: One of `ENGINES`: "eager", "compile", "onnx", "bfloat16", "cuda-graphs", or the engine of a plugin.

    Returns:
        The copy; for "eager" the model itself, if it has no other engine.

    Raises:
        UserError: The engine is unknown, lacks a package, or cannot compute this model on its device.

    >>> import stochseg
    >>> model = stochseg.create("unet-ce", num_classes=2, image_channels=1, base=4, multipliers=[1])
    >>> fast = with_engine(model, "bfloat16")
    >>> fast.engine, model.engine
    ('bfloat16', 'eager')
    """
    return ENGINES.find(name)(model)


def eager(model: StochasticSegmenter) -> StochasticSegmenter:
    """Compute with plain torch: return the model itself, or a copy without its engine."""
    return model if model.engine == "eager" else _without_engine(model)


def compiled(model: StochasticSegmenter) -> StochasticSegmenter:
    """Compute with torch.compile, on any device.

    The first image takes some minutes of compiling. A second batch or image size compiles once more, and then for any
    size. Labels differ from those of torch in at most 0.1% of the pixels.
    """
    return replace_modules(model, "compile", lambda name, module: _as_function(torch.compile(module)))


def onnx(model: StochasticSegmenter) -> StochasticSegmenter:
    """Compute with onnxruntime on the CPU.

    The first image takes some seconds of translating. onnxruntime keeps its memory, so it is faster than torch in a
    process that does not (`stochseg.memory`). Labels differ from those of torch in at most 0.1% of the pixels.
    """
    for package in ("onnxruntime", "onnx", "onnxscript"):
        require(package, "onnx", "ONNX")
    if model.device.type != "cpu":
        raise UserError(
            f"engine 'onnx' computes on the CPU, and the model is on {model.device}; use --engine compile there, or "
            "--device cpu"
        )
    return replace_modules(model, "onnx", lambda name, module: _as_function(ModuleGraphs(name, module)))


def bfloat16(model: StochasticSegmenter) -> StochasticSegmenter:
    """Compute convolutions and matrix products in 16 bits, with outputs in float32.

    Up to 1.5 times as fast on CPUs with bfloat16 instructions, more on GPUs, slower on other CPUs. Labels change where
    two are almost equally likely: in at most 2% of the pixels by one network call, and in more (up to 10% with random
    weights) by a chain of calls, where each call sees the changes of the one before. They are other samples of almost
    the same distribution.
    """
    kind = model.device.type

    def in_bfloat16(name: str, module: nn.Module) -> Forward:
        @wraps(module.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(kind, dtype=torch.bfloat16):
                out = module(*args, **kwargs)
            return _map_tensors(out, Tensor.float)

        return forward

    return replace_modules(model, "bfloat16", in_bfloat16)


def cuda_graphs(model: StochasticSegmenter) -> StochasticSegmenter:
    """Compute with torch.compile and CUDA graphs, which launch all kernels of a call at once.

    For small images and few samples, where a GPU waits for Python.
    """
    if model.device.type != "cuda":
        raise UserError(
            f"engine 'cuda-graphs' needs a model on an NVIDIA GPU, this one is on {model.device}; use --device cuda, "
            "or the engine compile or onnx"
        )

    def replayed(name: str, module: nn.Module) -> Forward:
        graph = torch.compile(module, mode="reduce-overhead")

        @wraps(module.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            return _map_tensors(graph(*args, **kwargs), torch.clone)  # the next replay overwrites its outputs

        return forward

    return replace_modules(model, "cuda-graphs", replayed)


ENGINES.update({"eager": eager, "compile": compiled, "onnx": onnx, "bfloat16": bfloat16, "cuda-graphs": cuda_graphs})


def replace_modules(
    model: StochasticSegmenter, engine: str, make: Callable[[str, nn.Module], Forward]
) -> StochasticSegmenter:
    """Return a copy of a model for sampling whose accelerated modules are computed by other functions.

    Only `forward` of these modules is replaced: attributes, weights and their names stay, and with them saving and
    loading.

    Args:
        model: The model; it is not changed. An engine that it has is removed from the copy.
        engine: Name of the engine, kept as `model.engine`.
        make: Called with the name of each accelerated module and a copy of it over the same weights; returns the
            function that replaces its `forward`.

    Raises:
        UserError: The model has no accelerated modules.
    """
    if not model.accelerated_modules:
        raise UserError(f"model {model.name!r} names no modules that an engine could compute; use the engine eager")
    out = _without_engine(model).eval()
    for name in out.accelerated_modules:
        module = out.get_submodule(name)
        module.forward = make(name, shared_copy(module))
    out.engine = engine
    return out


def _without_engine(model: StochasticSegmenter) -> StochasticSegmenter:
    out = shared_copy(model)
    for name in out.accelerated_modules:
        vars(out.get_submodule(name)).pop("forward", None)
    out.engine = "eager"
    return out


def _as_function(target: Callable[..., Any]) -> Forward:
    """Wrap a callable: a module in the place of `forward` would become part of the model, and copies of the model
    would copy it."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    return forward


def _map_tensors(out: Tensor | tuple[Tensor, ...], change: Callable[[Tensor], Tensor]) -> Tensor | tuple[Tensor, ...]:
    return change(out) if isinstance(out, Tensor) else tuple(change(x) for x in out)
