"""Histograms of oriented gradients as image features."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from stochseg.networks.encoders.base import ImageEncoder
from stochseg.networks.unet import FEATURE_STRIDE


class HogEncoder(ImageEncoder):
    """Histograms of oriented gradients (Dalal and Triggs 2005) in 8×8 cells, with each cell's mean and deviation.

    It has no weights and gives the same features on every machine.
    """

    bins = 9
    channels = bins + 2
    kernels: Tensor

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
        upper = position - low
        votes = magnitude.new_zeros(len(image), self.bins, *magnitude.shape[1:])
        for index, fraction in ((low, 1 - upper), (low + 1, upper)):
            votes.scatter_add_(1, (index.long() % self.bins)[:, None], (fraction * magnitude)[:, None])
        histogram = F.normalize(F.avg_pool2d(votes, FEATURE_STRIDE), dim=1, eps=1e-3)
        mean = F.avg_pool2d(gray, FEATURE_STRIDE)
        variance = F.avg_pool2d(gray**2, FEATURE_STRIDE) - mean**2
        return torch.cat([histogram, mean, variance.clamp(min=0).sqrt()], dim=1)
