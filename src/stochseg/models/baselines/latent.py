"""Segmenters with latent variables: their options, and sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field
from torch import Tensor

from stochseg.core import Noise, SeededNoise, standard_normal
from stochseg.models.base import SegmenterConfig, StochasticSegmenter
from stochseg.models.raters import Target, one_rater
from stochseg.models.sampling import Drawing, Drawn, Keys, Report, Rows, SamplingOptions
from stochseg.networks.denoisers import Condition
from stochseg.networks.latents import Choose, Gaussian


class LatentConfig(SegmenterConfig):
    """Levels, each of half the resolution of the one before."""

    channels: tuple[int, ...] = Field(min_length=1, description="channels per level, finest first")

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
        """What depends on the image "b c h w" alone; runs once per image."""
        raise NotImplementedError

    def decode(self, condition: Condition, noise: Noise) -> Tensor:
        """Logits "b l h w" of one sample per row of the condition, with latents drawn from the prior."""
        raise NotImplementedError

    def pick_target(
        self, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys
    ) -> tuple[Target, SeededNoise]:
        """The label map of a random rater per image, and the noise for the other random choices of the loss."""
        noise = SeededNoise(keys, raters.device)
        return one_rater(raters, mask, rater_count, noise), noise

    def drawing(self, image: Tensor, keys: Keys, options: SamplingOptions) -> Drawing:
        """Encode each image once; a sample takes one pass of the decoder and each pixel's most probable label."""
        condition = self.encode(image)

        def draw(rows: Rows, noise: Noise, report: Report) -> Drawn:
            p = self.decode(condition[rows.image], noise).float().softmax(1)
            report(0)
            return Drawn(p)

        return Drawing(draw)
