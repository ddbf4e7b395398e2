"""Frozen image features for conditioning: computed once an image, joined to the U-Net at 1/8 resolution."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stochseg.errors import unknown_name
from stochseg.networks.unet import FEATURE_STRIDE


class ImageEncoder(nn.Module):
    """Image "b c h w" (h, w multiples of 8) -> features "b channels h/8 w/8". Never trained.

    A subclass sets `channels` and writes `features`; whatever its own stride is, it resamples to 1/8 itself.
    """

    channels: int

    def features(self, image: Tensor) -> Tensor:
        raise NotImplementedError

    @torch.no_grad()
    def forward(self, image: Tensor) -> Tensor:
        return self.features(image)

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
        grey = image.mean(1, keepdim=True)
        dx, dy = F.conv2d(F.pad(grey, (1, 1, 1, 1), mode="replicate"), self.kernels).unbind(1)
        magnitude = torch.hypot(dx, dy)
        # Unsigned orientation in units of bins; each pixel votes for its two nearest bins.
        position = torch.atan2(dy, dx).remainder(math.pi) * (self.bins / math.pi)
        low = position.floor()
        share = position - low
        votes = magnitude.new_zeros(len(image), self.bins, *magnitude.shape[1:])
        for index, part in ((low, 1 - share), (low + 1, share)):
            votes.scatter_add_(1, (index.long() % self.bins)[:, None], (part * magnitude)[:, None])
        histogram = F.normalize(F.avg_pool2d(votes, FEATURE_STRIDE), dim=1, eps=1e-3)
        mean = F.avg_pool2d(grey, FEATURE_STRIDE)
        variance = F.avg_pool2d(grey**2, FEATURE_STRIDE) - mean**2
        return torch.cat([histogram, mean, variance.clamp(min=0).sqrt()], dim=1)


ENCODERS: dict[str, Callable[[int], ImageEncoder]] = {"hog": HogEncoder}


def make_encoder(name: str, image_channels: int) -> ImageEncoder:
    """The encoder `name` for images of so many channels, frozen."""
    if name not in ENCODERS:
        raise unknown_name("image encoder", name, ENCODERS)
    return ENCODERS[name](image_channels).requires_grad_(False).eval()
