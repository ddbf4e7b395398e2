"""Segmentation networks by name: every architecture and encoder of segmentation_models_pytorch, and HRNet on the
features of timm (extra `zoo`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from stochseg.errors import UserError, unknown_name
from stochseg.extras import require
from stochseg.networks.encoders.efficientnet_lite import package_file, timm_name
from stochseg.networks.hrnet import HRNet
from stochseg.networks.timm_models import check_timm_name
from stochseg.networks.weight_files import adapt_channels, check_loaded, read_weights

HRNET = "hrnet"
UNIVERSAL = "tu-"
"""Prefix of the encoders that segmentation_models_pytorch takes from timm."""
PACKAGE = "package"
"""In place of a file: weights of an installed Python package."""
PACKAGED = "tu-tf_efficientnet_lite"
"""Encoders for which there are such packages: 0, 1 and 2."""


def build_network(
    architecture: str,
    encoder: str,
    image_channels: int,
    num_classes: int,
    options: Mapping[str, Any],
    weights: str | Path | None = None,
) -> nn.Module:
    """Build a network from images "b c h w" (h, w multiples of 32) to logits "b l h w".

    The architecture is a name of segmentation_models_pytorch or "hrnet", the encoder one of its names, or "tu-NAME" for
    a model of timm; `options` are keywords of the constructor. `weights` is a file of the encoder's pretrained weights,
    with the names of timm for "tu-NAME" and of segmentation_models_pytorch otherwise, or "package" for those of a
    Python package (tu-tf_efficientnet_lite0 to 2).
    """
    _check_encoder(encoder)
    if weights == PACKAGE:
        return _build_packaged(architecture, encoder, image_channels, num_classes, options)
    tensors = None if weights is None else read_weights(weights)
    options = dict(options)
    if tensors is not None and encoder.startswith(UNIVERSAL):
        options["pretrained_cfg_overlay"] = {"file": str(weights)}
    try:
        network = _build(architecture, encoder, image_channels, num_classes, options)
        if tensors is not None:
            body = cast(nn.Module, network.encoder)
            if not encoder.startswith(UNIVERSAL):
                _fill(body, tensors)
            check_loaded(body, tensors, str(weights))
    except UserError:
        raise
    except (KeyError, ValueError, TypeError, RuntimeError, AssertionError) as error:
        detail = str(error.args[0] if error.args else error).splitlines()[0]
        if tensors is not None:
            raise UserError(
                f"pretrained weights: {weights} belongs to another network than {encoder}: {detail}"
            ) from error
        raise UserError(f"smp:{architecture}/{encoder} cannot be built with {options}: {detail}") from error
    return network


def _build_packaged(
    architecture: str, encoder: str, image_channels: int, num_classes: int, options: Mapping[str, Any]
) -> nn.Module:
    variant = encoder.removeprefix(PACKAGED)
    if variant not in ("0", "1", "2"):
        raise UserError(
            f"encoder_weights: expected an encoder {PACKAGED}0, 1 or 2 for the weights of a package, got {encoder!r}; "
            "give a file instead"
        )
    file = package_file(variant)
    network = build_network(architecture, encoder, image_channels, num_classes, options)
    body = cast(nn.Module, cast(nn.Module, network.encoder).model)
    depths = [len(cast(nn.Sequential, stage)) for stage in cast(nn.Sequential, body.blocks)]
    tensors = {timm_name(name, depths): value for name, value in read_weights(file).items()}
    _fill(body, tensors)
    check_loaded(body, tensors, file)
    return network


def _check_encoder(encoder: str) -> None:
    """Raise a UserError for an unknown encoder, before its name reaches a library that would look for it on a hub."""
    if encoder.startswith(UNIVERSAL):
        check_timm_name(require("timm", "zoo", f"the encoder {encoder}"), encoder.removeprefix(UNIVERSAL))
        return
    known = require("segmentation_models_pytorch", "zoo", "a model named smp:...").encoders.get_encoder_names()
    if encoder not in known:
        raise unknown_name("encoder", encoder, [*known, f"{UNIVERSAL}NAME (a model of timm)"])


def _build(
    architecture: str, encoder: str, image_channels: int, num_classes: int, options: Mapping[str, Any]
) -> nn.Module:
    if architecture == HRNET:
        if not encoder.startswith(UNIVERSAL + "hrnet"):
            raise UserError(f"smp:hrnet/...: expected an HRNet of timm such as tu-hrnet_w48, got {encoder!r}")
        return HRNet(encoder.removeprefix(UNIVERSAL), image_channels, num_classes, options)
    smp = require("segmentation_models_pytorch", "zoo", "a model named smp:...")
    if architecture not in smp.MODEL_ARCHITECTURES_MAPPING:
        raise unknown_name("architecture", architecture, [HRNET, *smp.MODEL_ARCHITECTURES_MAPPING])
    network: nn.Module = smp.create_model(
        architecture,
        encoder,
        encoder_weights=True if "pretrained_cfg_overlay" in options else None,
        in_channels=image_channels,
        classes=num_classes,
        **options,
    )
    return network


def _fill(encoder: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load the tensors that the encoder has; adapt an input convolution for RGB to the encoder's channels."""
    own = encoder.state_dict()
    fitting = {key: value for key, value in weights.items() if key in own}
    for key, value in fitting.items():
        if value.ndim == 4 and value.shape[1] == 3 != own[key].shape[1]:
            fitting[key] = adapt_channels(value, own[key].shape[1])
    nn.Module.load_state_dict(encoder, fitting, strict=False)
