"""Export for other languages: the networks of a model as ONNX files, with the constants of its sampling loop."""

from __future__ import annotations

import copy
import inspect
import json
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stochseg._version import __version__
from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.files import replaced_folder
from stochseg.inference.engines import eager
from stochseg.inference.graphs import Call, make_graph, output_names
from stochseg.models import StochasticSegmenter
from stochseg.models.io import CONFIG, read_json, write_description
from stochseg.networks.sharing import shared_copy

FORMAT = "stochseg-export"
VERSION = 1
DESCRIPTION = "export.json"


def export(model: StochasticSegmenter, folder: str | Path, size: tuple[int, int] = (128, 128)) -> Path:
    """Write a model for use in other languages, all or nothing; an export that exists there is replaced.

    The folder contains one .onnx file per accelerated module, for any batch size; `config.json`, as in a saved model,
    with the normalization of raw images; and `export.json`, with inputs, outputs and the constants for sampling.

    Args:
        model: The model.
        folder: The folder to write.
        size: Height and width of the images.

    Returns:
        The folder.

    Raises:
        UserError: The model has no modules to export, uses an encoder outside of them, the size is below 1, the folder
            contains something else, or onnx is not installed.

    Example:
        `export(stochseg.load("lidc"), "exported", (128, 128))` writes exported/export.json and the files it lists.
    """
    for package in ("onnx", "onnxscript"):
        require(package, "onnx", "ONNX")
    if not model.accelerated_modules:
        raise UserError(f"model {model.name!r} names no modules that could be exported")
    encoder = getattr(model.config, "encoder", None)
    if encoder is not None:
        raise UserError(
            f"model {model.name!r} sees image features of the encoder {encoder!r}, which is not exported; export a "
            "model without an encoder"
        )
    if min(size) < 1:
        raise UserError(f"export: height and width must be at least 1, got {tuple(size)}")
    if model.info.fit not in (None, tuple(size)):
        height, width = model.info.fit
        raise UserError(
            f"export: the network takes images resized and padded to {height}×{width}, got {size[0]}×{size[1]}; pass "
            f"--size {height}x{width}"
        )
    folder = Path(folder)
    with replaced_folder(folder, ours=is_export, kind="an exported model") as scratch:
        plain = copy.deepcopy(eager(model)).cpu().eval()
        modules = []
        for name, call in first_calls(plain, size).items():
            module = plain.get_submodule(name)
            file = f"{name}.onnx"
            (scratch / file).write_bytes(make_graph(module, call, any_size=False))
            modules.append({"name": name, "file": file, **_describe(module, call)})
        description = {
            "format": FORMAT,
            "version": VERSION,
            "stochseg": __version__,
            "model": model.name,
            "image": {"channels": model.image_channels, "height": size[0], "width": size[1]},
            "modules": modules,
            "sampling": plain.sampling_constants(*size),
        }
        write_description(plain, scratch)
        (scratch / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    return folder


def is_export(folder: Path) -> bool:
    """Whether a folder contains an exported model and no other files."""
    try:
        description = read_json(folder / DESCRIPTION)
        ours = {CONFIG, DESCRIPTION, *(part["file"] for part in description.get("modules", ()))}
    except (UserError, KeyError, TypeError):
        return False
    return description.get("format") == FORMAT and {file.name for file in folder.iterdir()} <= ours


class _AllCalled(Exception):
    """Ends the sampling once every accelerated module was called."""


def first_calls(model: StochasticSegmenter, size: tuple[int, int]) -> dict[str, Call]:
    """Sample images of this size and record the first call of each accelerated module, by its name."""
    model = shared_copy(model)
    calls: dict[str, Call] = {}

    def record(name: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.setdefault(name, Call(args, kwargs))

    def stop_when_complete(*_: object) -> None:
        if len(calls) == len(model.accelerated_modules):
            raise _AllCalled

    for name in model.accelerated_modules:
        module = model.get_submodule(name)
        module.register_forward_pre_hook(partial(record, name), with_kwargs=True)
        module.register_forward_hook(stop_when_complete)
    images = torch.rand(2, model.image_channels, *size, generator=torch.Generator().manual_seed(0)) * 2 - 1
    with suppress(_AllCalled):
        model.sample(images, 1, allow_unusual_input=True)
    missing = [name for name in model.accelerated_modules if name not in calls]
    if missing:
        raise UserError(
            f"model {model.name!r} samples without its modules {', '.join(missing)}; export needs their calls"
        )
    return calls


@torch.no_grad()
def _describe(module: nn.Module, call: Call) -> dict[str, Any]:
    outputs = call.apply(module)
    return {
        "about": inspect.getdoc(type(module)) or "",
        "call": inspect.getdoc(type(module).forward) or "",
        "inputs": [_slot(name, x) for name, x in zip(call.names(module), call.tensors, strict=True)],
        "outputs": [_slot(name, x) for name, x in zip(output_names(len(outputs)), outputs, strict=True)],
    }


def _slot(name: str, x: Tensor) -> dict[str, Any]:
    return {"name": name, "dtype": str(x.dtype).removeprefix("torch."), "shape": ["batch", *x.shape[1:]]}
