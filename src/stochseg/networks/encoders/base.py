"""The interface of image encoders and the config that selects one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from stochseg.config import Config
from stochseg.networks.encoders.feature_cache import FeatureCache


class EncoderConfig(Config):
    """Choice of frozen image features, or none."""

    encoder: str | None = Field(
        None,
        description="pretrained image features: hog, efficientnet-lite0 to lite2, or timm:NAME for a model of timm",
    )
    encoder_weights: str | None = Field(
        None, description='weights of timm:NAME: a file, "download" (by timm), or "random" (for experiments)'
    )
    encoder_range: tuple[float, float] = Field(
        (0.0, 255.0), description="raw intensities that a pretrained encoder sees as black and as white"
    )
    encoder_cache: str | None = Field(
        None, description="folder that caches the features of each image, for data without augmentation"
    )
    encoder_positions: Literal["dino", "timm"] | None = Field(
        None,
        description="resampling of a ViT's position embeddings to the size of the image: dino (bicubic, as in DINO's "
        "code and the paper) or timm (with antialiasing); None is dino for timm:*.dino and timm for other ViTs",
    )
    values_before: ClassVar[dict[str, object]] = {"encoder_positions": "timm"}


class ImageEncoder(nn.Module):
    """Network from an image "b c h w" (h, w multiples of 8) to features "b channels h/8 w/8", frozen in most models.

    A subclass sets `channels` and implements `features`, which resamples to 1/8 if its own stride differs. One that
    also gives maps at other strides sets `strides` and `level_channels` and implements `levels`. The weights are part
    of a saved model, so that loading it needs neither the original file nor a download.
    """

    channels: int
    variant: str = ""
    """Names what distinguishes the features from those of the same tensors, for the cache."""
    strides: tuple[int, ...] = (8,)
    level_channels: tuple[int, ...] = ()
    cache: FeatureCache | None = None

    def features(self, image: Tensor) -> Tensor:
        """Compute the features, without the cache."""
        raise NotImplementedError

    def levels(self, image: Tensor) -> tuple[Tensor, ...]:
        """Compute one map "b c h/stride w/stride" per entry of `strides`; unlike `forward`, it can be trained."""
        return (self.features(image) if self.is_trained else self(image),)

    @property
    def is_trained(self) -> bool:
        """Whether the encoder is trained with the model."""
        return any(parameter.requires_grad for parameter in self.parameters())

    def load_pretrained(self, weights: str | None) -> None:
        """Load pretrained weights if the encoder has any; `weights` as in `EncoderConfig.encoder_weights`."""

    def current_name(self, name: str) -> str:
        """Return the current name of a tensor that an older version saved as `name`, both relative to the encoder."""
        return name

    @torch.no_grad()
    def forward(self, image: Tensor) -> Tensor:
        """Return the features, from the cache if there is one."""
        return self.features(image) if self.cache is None else self.cache(self, image)

    def train(self, mode: bool = True) -> ImageEncoder:
        """Stay in evaluation mode: normalization statistics must not move while the rest of the model trains."""
        return super().train(False)


def rename_old_tensors(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give the tensors of image encoders in an older saved model their current names.

    Args:
        model: The model to load them into; its encoders answer `current_name`.
        tensors: A state of the model, with old or current names.

    Returns:
        The same tensors under current names.
    """
    encoders = {f"{name}.": module for name, module in model.named_modules() if isinstance(module, ImageEncoder)}

    def rename(key: str) -> str:
        for prefix, encoder in encoders.items():
            if key.startswith(prefix):
                return prefix + encoder.current_name(key.removeprefix(prefix))
        return key

    return {rename(key): value for key, value in tensors.items()}
