"""Engines: who computes the networks of a model while it samples.

A model names the few modules that do its heavy work (`StochasticSegmenter.accelerated_modules`); an engine returns a
copy of the model, over the same weights, that computes these modules in another way. Everything else, above all the
randomness, is untouched, so the samples are the same up to the engine's rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from stochseg.errors import UserError, unknown_name
from stochseg.extras import require
from stochseg.inference.graphs import GraphOf, shared_copy
from stochseg.models import StochasticSegmenter

Engine = Callable[[StochasticSegmenter], StochasticSegmenter]

Compute = Callable[..., Any]
"""What stands in for the `forward` of an accelerated module."""


def with_engine(model: StochasticSegmenter, name: str) -> StochasticSegmenter:
    """The model, computed by the engine `name`; the one given is left as it is.

    Choose the device first, and take the engine again after training: `onnx` keeps the weights it has seen.
    """
    if name not in ENGINES:
        raise unknown_name("engine", name, ENGINES)
    return ENGINES[name](model)


def eager(model: StochasticSegmenter) -> StochasticSegmenter:
    """Plain torch: the model itself, or without the engine it has."""
    return model if model.engine == "eager" else _without_engine(model)


def compiled(model: StochasticSegmenter) -> StochasticSegmenter:
    """torch.compile: on any device, after some minutes of compiling for the first image. A batch or image size other
    than the first is compiled once more, and then for any. Equal to torch up to rounding: at most a thousandth of the
    labels differ."""
    return _replaced(model, "compile", lambda name, module: _call(torch.compile(module)))


def onnx(model: StochasticSegmenter) -> StochasticSegmenter:
    """onnxruntime on the CPU, after some seconds of translating for the first image. It keeps its memory, so that it is
    faster than torch in a process that does not (`stochseg.memory`). Equal to torch up to rounding: at most a
    thousandth of the labels differ."""
    for package in ("onnxruntime", "onnx", "onnxscript"):
        require(package, "onnx", "ONNX")
    if model.device.type != "cpu":
        raise UserError(
            f"engine 'onnx' computes on the CPU, and the model is on {model.device}; use --engine compile there, or "
            "--device cpu"
        )
    return _replaced(model, "onnx", lambda name, module: _call(GraphOf(name, module)))


def bfloat16(model: StochasticSegmenter) -> StochasticSegmenter:
    """Convolutions and products in 16 bits, with outputs back in float32: up to half again as fast on CPUs that have
    such instructions, more on GPUs, slower on others.

    Labels change where two are nearly as likely: in at most 2% of the pixels by one network call, and in more (up to
    10% with random weights) by a chain of calls, in which each change is seen by the next. They are other samples of
    nearly the same distribution.
    """
    kind = model.device.type

    def halved(name: str, module: nn.Module) -> Compute:
        @wraps(module.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(kind, dtype=torch.bfloat16):
                out = module(*args, **kwargs)
            return _each(out, Tensor.float)

        return forward

    return _replaced(model, "bfloat16", halved)


def cuda_graphs(model: StochasticSegmenter) -> StochasticSegmenter:
    """torch.compile with CUDA graphs, which record the kernels of a call and launch them as one: for small images and
    few samples, where a GPU waits for Python."""
    if model.device.type != "cuda":
        raise UserError(
            f"engine 'cuda-graphs' needs a model on an NVIDIA GPU, this one is on {model.device}; use --device cuda, "
            "or the engine compile or onnx"
        )

    def replayed(name: str, module: nn.Module) -> Compute:
        graph = torch.compile(module, mode="reduce-overhead")

        @wraps(module.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            torch.compiler.cudagraph_mark_step_begin()
            return _each(graph(*args, **kwargs), torch.clone)  # the next replay writes over its outputs

        return forward

    return _replaced(model, "cuda-graphs", replayed)


ENGINES: dict[str, Engine] = {
    "eager": eager,
    "compile": compiled,
    "onnx": onnx,
    "bfloat16": bfloat16,
    "cuda-graphs": cuda_graphs,
}


def _replaced(
    model: StochasticSegmenter, engine: str, make: Callable[[str, nn.Module], Compute]
) -> StochasticSegmenter:
    """A copy for sampling whose accelerated modules are computed by `make(name, module)`.

    Only `forward` is exchanged: attributes, weights and their names stay, and with them saving and loading.
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


def _call(target: Callable[..., Any]) -> Compute:
    """A plain function around a callable: a module in the place of `forward` would become a part of the model, and a
    copy of the model would copy the callable."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    return forward


def _each(out: Tensor | tuple[Tensor, ...], change: Callable[[Tensor], Tensor]) -> Tensor | tuple[Tensor, ...]:
    return change(out) if isinstance(out, Tensor) else tuple(change(x) for x in out)
