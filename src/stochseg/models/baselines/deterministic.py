"""Models of one probability map per image: cross-entropy, and samples that are its arg-max or pixel draws."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from stochseg.core import Noise, SeededNoise, draw_categorical
from stochseg.models.base import StochasticSegmenter
from stochseg.models.config import SegmenterConfig
from stochseg.models.raters import one_rater
from stochseg.models.sampling import Drawing, Drawn, Keys, Report, Rows, SamplingOptions
from stochseg.networks import Sizes, Tiling, blended
from stochseg.networks.sharing import shared_copy
from stochseg.types import Losses


class DeterministicConfig(SegmenterConfig):
    """The rule that turns a probability map into samples."""

    draw: Literal["argmax", "pixels"] = Field("argmax", description="n times the arg-max, or independent pixels")


class DeterministicSegmenter(StochasticSegmenter):
    """Base class, trained by cross-entropy against one random rater per step: a subclass implements `logits`."""

    config_type: ClassVar[type[DeterministicConfig]] = DeterministicConfig
    config: DeterministicConfig
    tiling: Tiling | None = None
    """Windows in which the network sees images; None: whole images."""

    def logits(self, image: Tensor) -> Tensor:
        """Logits "b l h w" float32 of images "b c h w" of any size."""
        raise NotImplementedError

    def tiled(self, tile: Sizes, overlap: Sizes) -> StochasticSegmenter:
        model = shared_copy(self)
        model.tiling = Tiling.of(tile, overlap, self.info.spatial_dims)
        return model

    def sampling_constants(self, height: int, width: int) -> dict[str, Any]:
        return {
            "loop": "The image is extended at the bottom and right by its edge to the size of the module's input, and "
            "the logits are cropped to the image. Their softmax over labels is the mean. draw: argmax means that "
            "every sample is the arg-max, pixels that each pixel is drawn independently.",
            "draw": self.config.draw,
            "num_classes": self.num_classes,
        }

    def loss(self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys) -> Losses:
        target = one_rater(raters, mask, rater_count, SeededNoise(keys))
        return {"loss": target.cross_entropy(self.logits(image)).mean()}

    def drawing(self, image: Tensor, keys: Keys, options: SamplingOptions) -> Drawing:
        """One probability map per image; samples are its arg-max, or independent draws of every pixel."""
        logits = self.logits(image) if self.tiling is None else blended(self.logits, image, self.tiling)
        log_p = logits.log_softmax(1)
        mean = log_p.exp()

        def draw(rows: Rows, noise: Noise, report: Report) -> Drawn:
            labels = None
            if self.config.draw == "pixels":
                labels = draw_categorical(log_p[rows.image], noise.uniform((len(rows.image), *log_p.shape[2:])))
            report(0)
            return Drawn(mean[rows.image], labels)

        return Drawing(draw, mean=mean)
