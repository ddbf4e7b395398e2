"""What segmenters with latent variables share: which reading they train on, and sampling in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from stochseg.config import Config
from stochseg.core import Noise, SeededNoise, standard_normal
from stochseg.models.base import Key, SamplingOptions, StochasticSegmenter, pick_raters
from stochseg.models.sampling import Report, check_noise, draw_in_chunks
from stochseg.networks.denoisers import Condition
from stochseg.networks.latents import Choose, Gaussian
from stochseg.networks.shapes import one_hot, pad_to_multiple
from stochseg.types import Samples


class LatentConfig(Config):
    """Levels, each of half the resolution of the one before, and how many samples are decoded at once."""

    channels: tuple[int, ...] = Field(min_length=1, description="channels a level, finest first")
    chunk: int = Field(64, ge=1, description="samples of 128×128 pixels decoded at once, scaled for other sizes")

    @property
    def stride(self) -> int:
        """Height and width are padded to multiples of this."""
        return 2 ** (len(self.channels) - 1)


@dataclass(frozen=True)
class Reading:
    """The map of one rater an image. labels: "b h w"; valid: "b h w", False = void, or None."""

    labels: Tensor
    valid: Tensor | None

    def one_hot(self, num_classes: int, multiple: int) -> Tensor:
        """ "b l h w", padded to a multiple; void and padding are no label, zero everywhere."""
        onehot = one_hot(self.labels, num_classes)
        if self.valid is not None:
            onehot = onehot * self.valid[:, None]
        return pad_to_multiple(onehot, multiple, mode="constant")

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """In nats a pixel, "b h w"; zero where void."""
        terms = F.cross_entropy(logits.float(), self.labels, reduction="none")
        return terms if self.valid is None else terms.masked_fill(~self.valid, 0.0)


def draws_from(noise: Noise) -> Choose:
    """At each level a draw from its own distribution."""

    def choose(gaussian: Gaussian) -> Tensor:
        return gaussian.draw(standard_normal(noise, gaussian.mean.shape))

    return choose


def given(values: Sequence[Tensor]) -> Choose:
    """At each level the next of these values."""
    queue = iter(values)
    return lambda gaussian: next(queue)


class LatentSegmenter(StochasticSegmenter):
    """A subclass writes `loss`, `encode` and `decode`. A sample takes one pass of the decoder."""

    Config: ClassVar[type[LatentConfig]] = LatentConfig
    choices = ("noise",)

    def encode(self, image: Tensor) -> Condition:
        """image: "b c h w" of any size. What depends on the image alone, once an image."""
        raise NotImplementedError

    def decode(self, condition: Condition, noise: Noise) -> Tensor:
        """Logits "b l h w" of one sample a row of the condition, with latents drawn from the prior."""
        raise NotImplementedError

    def check_options(self, options: SamplingOptions) -> None:
        super().check_options(options)
        check_noise(options)

    def read(
        self, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Sequence[Key]
    ) -> tuple[Reading, SeededNoise]:
        """The map of a random rater an image, and the noise for what else the loss draws."""
        noise = SeededNoise(keys, raters.device)
        rater = pick_raters(noise.uniform((len(raters), 1))[:, 0].cpu(), rater_count.cpu())[:, 0].to(raters.device)
        rows = torch.arange(len(raters), device=raters.device)
        return Reading(raters[rows, rater], None if mask is None else mask[rows, rater]), noise

    def draw(self, image: Tensor, n: int, keys: Sequence[Key], seed: int, options: SamplingOptions) -> Samples:
        """Encode once an image, decode n samples of it in chunks, take each pixel's most likely label."""
        condition = self.encode(image)

        def part(rows: Tensor, noise: Noise, report: Report) -> Tensor:
            p = self.decode(condition[rows], noise).float().softmax(1)
            report(0)
            return p

        return draw_in_chunks(
            part, image, n, keys, seed, options, num_classes=self.num_classes, chunk=self.config.chunk
        )
