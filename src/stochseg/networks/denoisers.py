"""Denoisers: networks from x_t, t and an image condition to logits of x0, or to real-valued maps.

`encode` computes everything that depends on the image alone, once per image; `propose` and `forward` run once per step
and sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from stochseg.networks.encoders.base import ImageEncoder
from stochseg.networks.shapes import crop, one_hot, pad_to_multiple, slice_wise
from stochseg.networks.unet import UNet, UNetConfig

MAX_HELD = 2**26
"""Pixels of the maps of all components of one image that are held at once."""
Choose: TypeAlias = Callable[[Tensor], Tensor]
"""Draws one of m choices per row: log-probabilities "b m" -> "b" int64."""


@dataclass(frozen=True)
class Condition:
    """Encoded images.

    Attributes:
        tensors: Tensors whose first axis is the image.
        size: Spatial size of the images before padding, such as (h, w).
    """

    tensors: tuple[Tensor, ...]
    size: tuple[int, ...]

    def __getitem__(self, rows: Tensor) -> Condition:
        """Return the condition of these images; an index may repeat, for several samples per image."""
        return Condition(tuple(x[rows] for x in self.tensors), self.size)


class Denoiser(nn.Module):
    """Interface of the networks in categorical diffusion models."""

    components: int = 1
    """Number m of the products over pixels that `propose` mixes."""

    def holds(self, size: Sequence[int]) -> bool:
        """Whether the maps of all components of an image of this size are held at once."""
        return self.components * math.prod(size) <= MAX_HELD

    def encode(self, image: Tensor) -> Condition:
        """Encode an image "b c *space" of any size. Runs once per image."""
        raise NotImplementedError

    def propose(self, x_t: Tensor, t: Tensor, condition: Condition) -> tuple[Tensor, Tensor]:
        """Predict p0 as a mixture of m products over pixels; most denoisers have m = 1. Runs once per step and sample.

        Args:
            x_t: Noisy labels "b *space" int64.
            t: Steps "b".
            condition: The encoded images, one per row.

        Returns:
            log_weight "b m", log-probabilities of the components, and logits "b m l *space" of x0 in each.
        """
        raise NotImplementedError

    def propose_chosen(self, x_t: Tensor, t: Tensor, condition: Condition, choose: Choose) -> tuple[Tensor, Tensor]:
        """Return a mixture as `propose`, or one component of it that `choose` drew by the weights, as m = 1."""
        return self.propose(x_t.long(), t, condition)

    def forward(self, x_t: Tensor, t: Tensor, condition: Condition) -> Tensor:
        """Return the logits "b l *space" of each pixel's marginal p0; arguments as for `propose`."""
        log_weight, logits = self.propose(x_t, t, condition)
        if logits.shape[1] == 1:
            return logits[:, 0]
        log_weight = log_weight.reshape(*log_weight.shape, *(1 for _ in logits.shape[2:]))
        return (log_weight + torch.log_softmax(logits, dim=2)).logsumexp(1)


class ConcatUNet(Denoiser):
    """The paper's denoiser: one U-Net over one-hot x_t, concatenated with the image, and optional features at 1/8.

    Sizes that are not a multiple of the stride are padded inside at the end of each axis (the image by its edge, the
    one-hot map by zeros, which are no label) and the logits are cropped.

    Args:
        num_classes: Number of labels.
        image_channels: Channels of the image.
        config: Shape of the U-Net.
        encoder: Frozen image features, or None.
        spatial_dims: 2 for images, 3 for volumes.

    Example:
        >>> net = ConcatUNet(2, 1, UNetConfig(base=8, multipliers=(1, 2)))
        >>> condition = net.encode(torch.zeros(1, 1, 5, 7))
        >>> net(torch.zeros(1, 5, 7, dtype=torch.int64), torch.tensor([3]), condition).shape
        torch.Size([1, 2, 5, 7])
    """

    def __init__(
        self,
        num_classes: int,
        image_channels: int,
        config: UNetConfig,
        encoder: ImageEncoder | None = None,
        *,
        spatial_dims: int = 2,
    ):
        super().__init__()
        self.num_classes = num_classes
        self.encoder = encoder
        channels, features = num_classes + image_channels, encoder.channels if encoder else 0
        self.unet = UNet(channels, num_classes, config, feature_channels=features, spatial_dims=spatial_dims)

    def encode(self, image: Tensor) -> Condition:
        padded = pad_to_multiple(image, self.unet.config.stride)
        tensors = (padded,) if self.encoder is None else (padded, slice_wise(self.encoder, padded))
        return Condition(tensors, tuple(image.shape[2:]))

    def propose(self, x_t: Tensor, t: Tensor, condition: Condition) -> tuple[Tensor, Tensor]:
        image, *features = condition.tensors
        onehot = pad_to_multiple(one_hot(x_t, self.num_classes, image.dtype), self.unet.config.stride, mode="constant")
        logits = self.unet(torch.cat([onehot, image], dim=1), t, *features)
        return torch.zeros(len(x_t), 1, device=x_t.device), crop(logits, condition.size)[:, None]


class ContinuousUNet(nn.Module):
    """One U-Net over real-valued maps "b m h w", concatenated with the image, for diffusion with Gaussian noise.

    Args:
        map_channels: Channels m of the maps.
        image_channels: Channels of the image.
        out_channels: Channels of the output.
        config: Shape of the U-Net.
    """

    def __init__(self, map_channels: int, image_channels: int, out_channels: int, config: UNetConfig):
        super().__init__()
        self.unet = UNet(map_channels + image_channels, out_channels, config)

    def encode(self, image: Tensor) -> Condition:
        """Pad an image "b c h w" of any size, once per image."""
        return Condition((pad_to_multiple(image, self.unet.config.stride),), tuple(image.shape[2:]))

    def forward(self, maps: Tensor, t: Tensor, condition: Condition) -> Tensor:
        """Map "b m h w" at steps t "b" to "b out h w"."""
        (image,) = condition.tensors
        padded = pad_to_multiple(maps.to(image.dtype), self.unet.config.stride, mode="constant")
        out: Tensor = self.unet(torch.cat([padded, image], dim=1), t)
        return crop(out, condition.size).float()
