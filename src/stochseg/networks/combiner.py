"""The head that joins features of an image with one latent vector for the whole image."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from stochseg.networks.pyramids import conv, conv_stack
from stochseg.networks.shapes import fold, to_slices, unfold


class Combiner(nn.Module):
    """Features "b c h w", or slices "b d c h w", and z "b latent" -> logits: z tiled, concatenated to the features,
    then 1×1 convolutions.

    Args:
        width: Channels of the features and of the hidden layers.
        latent: Dimensions of z.
        num_classes: Channels of the logits.
        convs: Convolutions between features with z and the last one.

    Example:
        >>> combiner = Combiner(8, 2, 3, convs=2)
        >>> combiner(combiner.from_features(torch.zeros(4, 8, 5, 6)), torch.zeros(4, 2)).shape
        torch.Size([4, 3, 5, 6])
    """

    def __init__(self, width: int, latent: int, num_classes: int, convs: int):
        super().__init__()
        first = conv(width + latent, width, 1)
        # The one convolution of [features, tiled z] as a convolution of features and a matrix for z.
        self.from_features = nn.Conv2d(width, width, 1)
        self.from_latent = nn.Linear(latent, width, bias=False)
        with torch.no_grad():
            self.from_features.weight.copy_(first.weight[:, :width])
            cast(Tensor, self.from_features.bias).copy_(cast(Tensor, first.bias))
            self.from_latent.weight.copy_(first.weight[:, width:, 0, 0])
        rest = [conv_stack(width, width, convs - 1, kernel=1)] if convs > 1 else []
        self.rest = nn.Sequential(nn.ReLU(), *rest, nn.Conv2d(width, num_classes, 1))

    def forward(self, prepared: Tensor, z: Tensor) -> Tensor:
        """Map `from_features` of the features and z to logits "b l *space"."""
        flat, depth = fold(prepared)
        shift = self.from_latent(z) if depth == 1 else self.from_latent(z).repeat_interleave(depth, dim=0)
        return to_slices(unfold(self.rest(flat + shift[:, :, None, None]), prepared))
