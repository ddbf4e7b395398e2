"""Any model of timm as an image encoder."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.networks.encoders.base import EncoderConfig
from stochseg.networks.encoders.pretrained import DOWNLOAD, RANDOM, PretrainedEncoder
from stochseg.networks.timm_models import check_timm_name
from stochseg.networks.unet import FEATURE_STRIDE
from stochseg.networks.weight_files import check_loaded, read_weights
from stochseg.types import DatasetInfo

PREFIX = "timm:"


class TimmEncoder(PretrainedEncoder):
    """Any model of timm: the keys of the last block of a ViT, the map nearest to 1/8 of any other network.

    The keys of DINO's ViT-S/8 (`timm:vit_small_patch8_224.dino`) are the CCDM paper's features: 384 channels at 1/8,
    without the class token. Images whose size is not a multiple of a ViT's patch are first resized to the nearest one.

    Note: position embeddings of DINO are resampled to the size of the image as in its own code, and thus as in the
    paper. With timm's antialiasing, features differ by 0.4 to 2.1% (RMS) at the sizes of Cityscapes.
    """

    body: Any  # a network of timm, which has no type hints

    def __init__(self, info: DatasetInfo, config: EncoderConfig):
        super().__init__(info, config)
        self.architecture = str(config.encoder).removeprefix(PREFIX)
        self.options = self._find_options()
        self.body = self._build()
        self.is_vit = self._is_vit(self.body)
        self.channels = int(self.body.embed_dim if self.is_vit else self.body.feature_info.channels()[-1])
        own = self.timm.data.resolve_data_config(pretrained_cfg=dict(self.body.pretrained_cfg))
        self.set_normalization(tuple(own["mean"]), tuple(own["std"]))
        positions = config.encoder_positions or ("dino" if self.architecture.endswith(".dino") else "timm")
        if positions == "dino":
            self._check_dino_positions()
            self.variant = " dino positions"

    @property
    def timm(self) -> Any:
        """The package timm."""
        return require("timm", "zoo", f"the encoder {self.name}")

    def _is_vit(self, body: nn.Module) -> bool:
        return isinstance(body, self.timm.models.vision_transformer.VisionTransformer)

    def _find_options(self) -> dict[str, Any]:
        """Keywords that build this model as a feature extractor for images of any size."""
        check_timm_name(self.timm, self.architecture)
        with torch.device("meta"):
            if self._is_vit(self.timm.create_model(self.architecture, num_classes=0)):
                return {"num_classes": 0, "dynamic_img_size": True}
            try:
                levels = self.timm.create_model(self.architecture, features_only=True).feature_info.reduction()
            except (RuntimeError, AttributeError, AssertionError, TypeError) as error:
                raise UserError(
                    f"encoder {self.name!r}: timm has no feature maps of this model ({error}); use a ViT or a "
                    "convolutional network"
                ) from None
        level = min(range(len(levels)), key=lambda i: abs(math.log2(levels[i] / FEATURE_STRIDE)))
        sized = {"strict_img_size": False} if self.architecture.startswith("swin") else {}
        return {"features_only": True, "out_indices": (level,), **sized}

    def _build(self, **pretrained: Any) -> Any:
        return self.timm.create_model(self.architecture, **self.options, **pretrained)

    def load_pretrained(self, weights: str | None) -> None:
        if weights is None:
            raise UserError(
                f"encoder {self.name!r} is frozen and needs pretrained weights; set encoder_weights to a file or to "
                f'"{DOWNLOAD}" to download them with timm'
            )
        if weights == RANDOM:
            return
        if weights == DOWNLOAD:
            self.body = self._build(pretrained=True)
            return
        tensors = read_weights(weights)
        try:
            self.body = self._build(pretrained=True, pretrained_cfg_overlay={"file": weights})
        except (RuntimeError, KeyError) as error:
            detail = str(error.args[0] if error.args else error).splitlines()[0]
            raise UserError(
                f"pretrained weights: {weights} belongs to another network than {self.architecture}: {detail}"
            ) from None
        check_loaded(self.body, tensors, weights)

    def features(self, image: Tensor) -> Tensor:
        normalized = self.renormalize(image)
        if self.is_vit:
            return self.resize_to_eighth(self._keys(normalized), image)
        (maps,) = self.body(normalized)
        if getattr(self.body, "output_fmt", None) == "NHWC":
            maps = maps.permute(0, 3, 1, 2)
        return self.resize_to_eighth(maps, image)

    def _keys(self, image: Tensor) -> Tensor:
        """Keys of the last block: a linear map of the tokens that enter it, so that its attention is not computed."""
        patch = self.body.patch_embed.patch_size
        grid = [max(1, round(n / p)) for n, p in zip(image.shape[-2:], patch, strict=True)]
        size = [n * p for n, p in zip(grid, patch, strict=True)]
        if list(image.shape[-2:]) != size:
            image = F.interpolate(image, size=size, mode="bilinear", align_corners=False, antialias=True)
        tokens = self._tokens_with_dino_positions(image) if self.variant else self._tokens(image)
        block = self.body.blocks[-1]
        keys = slice(self.body.embed_dim, 2 * self.body.embed_dim)
        weight, bias = block.attn.qkv.weight, block.attn.qkv.bias
        out = F.linear(block.norm1(tokens), weight[keys], None if bias is None else bias[keys])
        return out.transpose(1, 2).reshape(len(image), -1, *grid)

    def _tokens(self, image: Tensor) -> Tensor:
        """Tokens "b hw c" of the patches that enter the last block."""
        before_last = len(self.body.blocks) - 2
        (tokens,) = self.body.forward_intermediates(
            image, indices=[before_last], stop_early=True, output_fmt="NLC", intermediates_only=True
        )
        return cast(Tensor, tokens)

    def _check_dino_positions(self) -> None:
        alike = self.is_vit and self.body.num_prefix_tokens == 1 and not self.body.no_embed_class
        if not (alike and self.body.pos_embed is not None and isinstance(self.body.norm_pre, nn.Identity)):
            raise UserError(
                f"encoder_positions: dino needs a ViT with a class token and position embeddings like those of DINO, "
                f"got {self.architecture}; leave the key out"
            )

    def _tokens_with_dino_positions(self, image: Tensor) -> Tensor:
        """Tokens as of `_tokens`, with DINO's resampling of the position embeddings."""
        patches = self.body.patch_embed(image)
        class_position, positions = self.body.pos_embed.tensor_split([1], dim=1)
        native, grid = self.body.patch_embed.grid_size, patches.shape[1:3]
        if grid != native:
            # DINO's code adds 0.1 to the size, against rounding, and samples at the coordinates of that scale.
            scale = tuple((new + 0.1) / old for new, old in zip(grid, native, strict=True))
            maps = positions.unflatten(1, native).permute(0, 3, 1, 2)
            maps = F.interpolate(maps, scale_factor=scale, mode="bicubic", align_corners=False)
            positions = maps.flatten(2).transpose(1, 2)
        start = (self.body.cls_token + class_position).expand(len(image), -1, -1)
        tokens = torch.cat([start, patches.flatten(1, 2) + positions], dim=1)
        return cast(Tensor, self.body.blocks[:-1](tokens)[:, 1:])
