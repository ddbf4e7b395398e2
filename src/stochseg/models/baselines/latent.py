"""Segmenters with latent variables: their options, and sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from stochseg.core import Noise, SeededNoise, standard_normal
from stochseg.models.base import StochasticSegmenter
from stochseg.models.config import SegmenterConfig
from stochseg.models.raters import Target, one_rater
from stochseg.models.sampling import Drawing, Keys, SamplingOptions, one_pass
from stochseg.networks.denoisers import Condition
from stochseg.networks.latents import Choose, Gaussian
from stochseg.networks.shapes import one_hot, pad_to_multiple

Channels = Annotated[tuple[int, ...], Field(min_length=1, description="channels per level, finest first")]


class LatentConfig(SegmenterConfig):
    """Levels, each of half the resolution of the one before."""

    channels: Channels

    @property
    def stride(self) -> int:
        """Height and width are padded to multiples of this."""
        return 1 << (len(self.channels) - 1)


def draws_from(noise: Noise) -> Choose:
    """Choose a draw from the distribution of each level."""

    def choose(gaussian: Gaussian) -> Tensor:
        return gaussian.draw(standard_normal(noise, gaussian.mean.shape))

    return choose


def given(values: Sequence[Tensor]) -> Choose:
    """Choose the next of these values at each level."""
    queue = iter(values)
    return lambda gaussian: next(queue)


class LatentSegmenter(StochasticSegmenter):
    """Base class: a subclass implements `loss`, `encode` and `decode`."""

    config_type: ClassVar[type[LatentConfig]] = LatentConfig
    config: LatentConfig

    def encode(self, image: Tensor) -> Condition:
        """Compute everything that depends on the image "b c h w" alone, once per image."""
        raise NotImplementedError

    def decode(self, condition: Condition, noise: Noise) -> Tensor:
        """Logits "b l h w" of one sample per row of the condition, with latents drawn from the prior."""
        raise NotImplementedError

    def padded(self, x: Tensor, mode: str = "replicate") -> Tensor:
        """Maps "b c *space" in a size that all levels can halve."""
        return pad_to_multiple(x, self.config.stride, mode)

    def observe(
        self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys
    ) -> tuple[Target, Tensor, SeededNoise]:
        """The label map of a random rater per image, the posterior's input, and noise for further random choices.

        The input is the image and the one-hot map, padded; the map is all zero at void pixels and in the padding.
        """
        noise = SeededNoise(keys, raters.device)
        target = one_rater(raters, mask, rater_count, noise)
        labels = one_hot(target.labels, self.num_classes)
        if target.mask is not None:
            labels = labels * target.mask[:, None]
        seen = torch.cat([self.padded(image), self.padded(labels, "constant")], dim=1)
        return target, seen, noise

    def drawing(self, image: Tensor, keys: Keys, options: SamplingOptions) -> Drawing:
        """Encode each image once; a sample takes one pass of the decoder and each pixel's most probable label."""
        condition = self.encode(image)
        return one_pass(lambda rows, noise: self.decode(condition[rows.image], noise).float().softmax(1))
