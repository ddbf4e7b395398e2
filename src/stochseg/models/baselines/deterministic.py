"""What models of one probability map an image share: cross-entropy, and samples that are its arg-max or pixel draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from stochseg.config import Config
from stochseg.core import SeededNoise, draw_categorical
from stochseg.models.base import Key, SamplingOptions, StochasticSegmenter, one_rating
from stochseg.networks import blended, check_tiling
from stochseg.types import Samples


class DeterministicConfig(Config):
    """How a probability map becomes samples."""

    draw: Literal["argmax", "pixels"] = Field(
        "argmax", description="samples are the arg-max n times, or independent draws of every pixel"
    )


class DeterministicSegmenter(StochasticSegmenter):
    """Cross-entropy against one random rater a step. A subclass gives `logits`."""

    Config: ClassVar[type[DeterministicConfig]] = DeterministicConfig
    tiling: tuple[int, int] | None = None
    """(tile, overlap) of the windows in which images are seen; None: whole."""

    def logits(self, image: Tensor) -> Tensor:
        """image: "b c h w" of any size. Returns "b l h w" float32."""
        raise NotImplementedError

    def tiled(self, tile: int, overlap: int) -> StochasticSegmenter:
        check_tiling(tile, overlap)
        return self._with(tiling=(tile, overlap))

    def sampling_constants(self, height: int, width: int) -> dict[str, Any]:
        return {
            "loop": "The image is extended at the bottom and right by its edge to the size of the module's input; of "
            "the logits, as many rows and columns as the image has count. Their softmax over labels is the mean. draw: "
            "argmax means that every sample is the arg-max, pixels that each pixel is drawn by itself.",
            "draw": self.config.draw,
            "num_classes": self.num_classes,
        }

    def loss(
        self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Sequence[Key]
    ) -> dict[str, Tensor]:
        y, known = one_rating(raters, mask, rater_count, keys)
        terms = F.cross_entropy(self.logits(image), y, reduction="none")
        if known is not None:
            terms = terms.masked_fill(~known, 0.0)
        return {"loss": terms.mean()}

    def draw(self, image: Tensor, n: int, keys: Sequence[Key], seed: int, options: SamplingOptions) -> Samples:
        logits = self.logits(image) if self.tiling is None else blended(self.logits, image, *self.tiling)
        log_p = logits.log_softmax(1)
        if self.config.draw == "argmax":
            labels = log_p.argmax(1, keepdim=True).expand(-1, n, -1, -1).contiguous()
        else:
            labels = torch.stack([self._draw_pixels(log_p, [(*key, i) for key in keys]) for i in range(n)], dim=1)
        weights = torch.full((len(image), n), 1 / n, device=image.device)
        return Samples(labels, log_p.exp(), weights, seed)

    @staticmethod
    def _draw_pixels(log_p: Tensor, keys: Sequence[Key]) -> Tensor:
        u = SeededNoise(keys, log_p.device).uniform((len(log_p), *log_p.shape[-2:]))
        return draw_categorical(log_p, u)
