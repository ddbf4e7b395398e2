"""Checkpoints of the CCDM authors' released code, converted to saved models.

Their U-Net is the one of `networks.UNet` under other names: every tensor has one counterpart. Rows of `qkv` are ordered
(head, q k v, channel) there and (q k v, head, channel) here, and 1×1 convolutions of attention have one axis less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from stochseg.data.importers.cityscapes import IMAGENET, NAMES, PALETTE
from stochseg.data.importers.lidc import INFO
from stochseg.errors import UserError, lookup
from stochseg.models.base import StochasticSegmenter
from stochseg.models.ccdm import CCDM
from stochseg.models.io import save
from stochseg.models.registry import build
from stochseg.networks.blocks import SelfAttention
from stochseg.networks.encoders.timm_encoder import TimmEncoder
from stochseg.networks.unet import Stage, UNet
from stochseg.networks.weight_files import read_tensor_file
from stochseg.types import VOID, DatasetInfo

WEIGHTS, ENCODER = "average_model", "cond_encoder"
"""Keys of a checkpoint: the Polyak average of the U-Net, and the frozen DINO where it was saved too."""


@dataclass(frozen=True)
class Released:
    """A published checkpoint: facts about its data, and the options of `ccdm` that give its network."""

    info: DatasetInfo
    options: Mapping[str, Any]


CHECKPOINTS: dict[str, Released] = {
    "ccdm-lidc": Released(INFO.model_copy(update={"name": "lidc-v1"}), {"base": 32, "multipliers": (1, 2, 2, 4, 5)}),
    # Void is a label there, the last one: noised and predicted, but without a loss.
    "ccdm-cityscapes-dino": Released(
        DatasetInfo(
            name="cityscapes-256x512",
            num_classes=len(NAMES) + 1,
            image_channels=3,
            class_names=(*NAMES, VOID),
            palette=(*PALETTE, "#000000"),
            normalization=IMAGENET,
            size=(256, 512),
        ),
        {
            "base": 64,
            "multipliers": (1, 1, 2, 2, 4, 4),
            "encoder": "timm:vit_small_patch8_224.dino",
            "encoder_positions": "dino",
            "feature_block": 2,
        },
    ),
}
"""The published checkpoints by name."""


def convert_checkpoint(
    name: str, file: str | Path, out: str | Path, *, encoder_weights: str | None = None
) -> StochasticSegmenter:
    """Convert a checkpoint of the CCDM authors' released code to a saved model.

    The weights are the Polyak average, `average_model` in the file; a file with the tensors of a U-Net alone is read,
    too. No code of the file is run. Nothing is written unless every tensor fits.

    Args:
        name: a name of `CHECKPOINTS`: "ccdm-lidc" or "ccdm-cityscapes-dino".
        file: the checkpoint.
        out: folder of the saved model; it must not exist.
        encoder_weights: weights of DINO's ViT-S/8 for a checkpoint without them: a file, or "download" (by timm).

    Returns:
        The model, which `stochseg.load(out)` opens.

    Raises:
        UserError: if `out` exists, or the file is not such a checkpoint.
    """
    released, file, out = lookup("checkpoint", CHECKPOINTS, name), Path(file), Path(out)
    if out.exists():
        raise UserError(f"{out} exists; choose the path of a new folder")
    if encoder_weights is not None and "encoder" not in released.options:
        raise UserError(f"encoder_weights: {name!r} has no image encoder; leave it out")
    content = read_tensor_file(file, "checkpoint")
    tensors = content.get(WEIGHTS, content) if isinstance(content, dict) else None
    if not isinstance(tensors, Mapping):
        raise UserError(f"checkpoint: {file} contains no named tensors; expected the key {WEIGHTS!r}")
    model = cast(CCDM, build("ccdm", released.info, {"schedule": "cosine-released", **released.options}))
    load_released_unet(model.denoiser.unet, tensors, f"{file} ({name})")
    if isinstance(model.denoiser.encoder, TimmEncoder):
        _load_dino(model.denoiser.encoder, content.get(ENCODER), encoder_weights, f"{file} ({name})")
    save(model, out)
    return model


# ---------------------------------------------------------------------- the U-Net


def load_released_unet(unet: UNet, tensors: Mapping[str, Any], where: str) -> None:
    """Load the tensors of the released code's U-Net.

    Args:
        unet: the U-Net of the same shape; it is changed.
        tensors: by their names in the released code, with or without the prefix of data parallelism.
        where: the source of the tensors, for error messages.

    Raises:
        UserError: if tensors are missing, unknown or of another shape; the first few are listed.
    """
    names = _released_names(unet)
    own = unet.state_dict()
    attention = {f"{name}.": module for name, module in unet.named_modules() if isinstance(module, SelfAttention)}

    def is_flat(name: str) -> bool:
        return name.startswith(tuple(attention)) and own[name].ndim == 4

    shapes = {theirs: own[name].shape[: 3 if is_flat(name) else 4] for name, theirs in names.items()}
    found = _check_tensors(_without_prefix(tensors, "module."), shapes, where)
    state = {}
    for name, theirs in names.items():
        value = found[theirs]
        module, qkv, _ = name.rpartition("qkv.")
        if qkv:  # rows of (head, q k v, channel) become (q k v, head, channel)
            value = value.reshape(attention[module].heads, 3, -1).transpose(0, 1)
        state[name] = value.reshape(own[name].shape)
    unet.load_state_dict(state)


def _released_names(unet: UNet) -> dict[str, str]:
    """Names of the tensors of a U-Net in the released code, by their names here."""
    modules = {"time.perceptron": "time_embed", "stem": "input_blocks.0.0", "head": "out"}
    count = 1
    for i, stage in enumerate(cast("list[Stage]", unet.encoder)):
        if stage.down is not None:
            modules[f"encoder.{i}.down"] = f"input_blocks.{count}.0.op"
            count += 1
        for j in range(len(stage.blocks)):
            modules |= _layer_names(f"encoder.{i}.blocks.{j}", f"input_blocks.{count}")
            count += 1
    modules |= _layer_names("middle.0", "middle_block") | _layer_names("middle.1", "middle_block", first=2)
    count = 0
    for i, stage in enumerate(cast("list[Stage]", unet.decoder)):
        for j, layer in enumerate(stage.blocks):
            modules |= _layer_names(f"decoder.{i}.blocks.{j}", f"output_blocks.{count}")
            if stage.up is not None and j == len(stage.blocks) - 1:
                place = 2 if isinstance(layer.attention, SelfAttention) else 1
                modules[f"decoder.{i}.up"] = f"output_blocks.{count}.{place}"
            count += 1

    def rename(name: str) -> str:
        module = next(prefix for prefix in modules if name.startswith(f"{prefix}."))
        return modules[module] + name.removeprefix(module)

    return {name: rename(name) for name in unet.state_dict()}


def _layer_names(own: str, theirs: str, first: int = 0) -> dict[str, str]:
    """Names of the modules of a `Layer`; `first` is the number of its residual block in the released code."""
    block, attention = f"{theirs}.{first}", f"{theirs}.{first + 1}"
    return {
        f"{own}.block.first": f"{block}.in_layers",
        f"{own}.block.time": f"{block}.emb_layers",
        f"{own}.block.second.0": f"{block}.out_layers.0",
        f"{own}.block.second.2": f"{block}.out_layers.3",
        f"{own}.block.skip": f"{block}.skip_connection",
        f"{own}.attention.norm": f"{attention}.norm",
        f"{own}.attention.qkv": f"{attention}.qkv",
        f"{own}.attention.out": f"{attention}.proj_out",
    }


# ---------------------------------------------------------------------- DINO


def _load_dino(encoder: TimmEncoder, saved: Any, weights: str | None, where: str) -> None:
    """Load DINO from a file, or as it was saved next to the U-Net.

    The released code orders the keys by (channel, head) and timm by (head, channel). The U-Net normalizes consecutive
    channels together, so that its weights cannot be reordered instead. Only the keys of the last block are used.
    """
    if weights is not None:
        encoder.load_pretrained(weights)
    elif isinstance(saved, Mapping):
        shapes = {name: value.shape for name, value in encoder.body.state_dict().items()}
        found = _without_prefix(_without_prefix(saved, "module."), "extractor.model.")
        encoder.body.load_state_dict(_check_tensors(found, shapes, f"{where}, {ENCODER}"))
    else:
        raise UserError(
            f"{where} does not contain DINO ({ENCODER!r}); pass the weights of its ViT-S/8 as encoder_weights: a file, "
            'or "download" to download them with timm'
        )
    attention = encoder.body.blocks[-1].attn
    with torch.no_grad():
        for tensor in (attention.qkv.weight, attention.qkv.bias):
            keys = tensor.chunk(3)[1]
            keys.copy_(keys.unflatten(0, (attention.num_heads, -1)).transpose(0, 1).flatten(0, 1))


# ---------------------------------------------------------------------- names and shapes


def _without_prefix(tensors: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Remove a prefix that all names have."""
    named = {str(name): value for name, value in tensors.items()}
    if not all(name.startswith(prefix) for name in named):
        return named
    return {name.removeprefix(prefix): value for name, value in named.items()}


def _check_tensors(tensors: Mapping[str, Any], shapes: Mapping[str, torch.Size], where: str) -> dict[str, Tensor]:
    """Return the tensors in float32; raise a UserError unless they have exactly these names and shapes."""
    misshapen = [
        f"{name} {tuple(getattr(tensors[name], 'shape', ()))} instead of {tuple(shape)}"
        for name, shape in shapes.items()
        if name in tensors and getattr(tensors[name], "shape", None) != shape
    ]
    missing, unknown = (sorted(a - b) for a, b in ((shapes.keys(), tensors.keys()), (tensors.keys(), shapes.keys())))
    problems = [
        f"{len(names)} {kind} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for kind, names in (("missing", missing), ("unknown", unknown), ("of another shape", misshapen))
        if names
    ]
    if problems:
        raise UserError(
            f"{where}: expected {len(shapes)} tensors of the released code, got {'; '.join(problems)}. The file is "
            "damaged or belongs to another network; download it again"
        )
    return {name: tensors[name].float() for name in shapes}
