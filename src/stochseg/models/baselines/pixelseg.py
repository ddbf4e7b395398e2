"""PixelSeg: an autoregressive model of the label map at half resolution (Zhang et al., ACM MM 2022).

Idea: with y the label map at every second pixel, in raster order,

    log p(y | x) = Σ_i log p(y_i | y_1..y_{i-1}, x),     logits_i = A f_i(x) + B g_i(y_1..y_{i-1}),

where f are features of a U-Net and g those of a PixelCNN of 8 masked 7×7 convolutions with 64 channels. A 1×1
convolution then predicts the full resolution from the U-Net's own logits and from the half-resolution map.

Loss: cross-entropy at full resolution plus cross-entropy at half resolution with class weights (background 1,
foreground 3) divided by the number of pixels, against one random rater per step.

Differs from the original:
- class weights w tilt what is learned to q ∝ w·p; sampling divides by w again, so that frequencies are those of the
  raters. The released code samples from q;
- the last convolution also sees the sampled half map, not only its logits, which do not know their own pixel;
- sweeps keep their random numbers. In the released sweeps each pixel is drawn anew given the others' last values, so
  that in the end a pixel and those before it come from different draws. With fixed numbers, s sweeps make at least the
  first s pixels those of the exact raster sample, and the sweeps converge to it, usually long before there are as many
  as pixels. The released rule is the sampler `gibbs`;
- normalization over the channels of a pixel instead of over the batch, which would let pixels see later ones;
- the weighted cross-entropy is not divided by the sum of its weights, so that an image's loss does not depend on how
  much foreground its neighbors have;
- any number of classes: closing fills only background, and the median is the majority of the 3×3 pixels.

Cost: one pass of the U-Net per image; `sweeps` passes of the PixelCNN per sample, at 1/4 of the pixels. The sampler
`raster` is exact: one small step per pixel, which add up to the arithmetic of a single pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field, field_validator
from torch import Tensor, nn

from stochseg.core import Noise, SeededNoise, draw_categorical
from stochseg.models.base import StochasticSegmenter
from stochseg.models.config import SegmenterConfig
from stochseg.models.raters import one_rater
from stochseg.models.registry import register
from stochseg.models.sampling import Drawing, Drawn, Keys, Report, Rows, SamplingOptions
from stochseg.networks import UNet, UNetConfig, pad_to_multiple
from stochseg.networks.pixel_cnn import PixelCNN
from stochseg.networks.shapes import one_hot
from stochseg.types import DatasetInfo, Losses


class PixelSegConfig(SegmenterConfig, UNetConfig):
    """Shape of the U-Net and the PixelCNN, the class weights, and the defaults of sampling."""

    features: int = Field(32, ge=1, description="channels of the image features at half resolution")
    pixel_width: int = Field(64, ge=1, description="channels of the PixelCNN")
    pixel_layers: int = Field(8, ge=1, description="masked convolutions of the PixelCNN")
    pixel_kernel: int = Field(7, ge=1, description="side of a masked convolution, odd")
    foreground_weight: float = Field(3.0, gt=0, description="class weight of all classes except 0 at half resolution")
    sampler: str = Field("sweeps", description="sweeps, raster (exact) or gibbs (the released rule)")
    sweeps: int = Field(16, ge=1, description="passes of the PixelCNN per sample, except with raster")
    smooth: bool = Field(True, description="3×3 closing and median of the samples")

    @field_validator("pixel_kernel")
    @classmethod
    def _odd(cls, value: int) -> int:
        if value % 2 == 0:
            raise ValueError("the kernel must have a center: use an odd number")
        return value


@register("pixelseg")
class PixelSeg(StochasticSegmenter):
    """Label maps drawn pixel by pixel at half resolution, then brought to full resolution."""

    config_type: ClassVar[type[PixelSegConfig]] = PixelSegConfig
    accelerated_modules = ("unet", "pixels")
    sampling_choices: ClassVar = {"evaluations": (), "sampler": ("gibbs", "raster", "sweeps")}
    config: PixelSegConfig
    training_defaults: ClassVar = {"lr": 1e-4, "batch_size": 12}
    log_weights: Tensor

    def __init__(self, info: DatasetInfo, config: PixelSegConfig):
        super().__init__(info, config)
        labels, c = info.num_classes, config.features
        self.unet = UNet(info.image_channels, labels + c, config, timed=False)
        self.to_half = nn.Sequential(nn.Conv2d(c, c, 2, stride=2), nn.SiLU(), nn.Conv2d(c, labels, 1))
        self.pixels = PixelCNN(labels, config.pixel_width, config.pixel_layers, config.pixel_kernel)
        self.from_pixels = nn.Conv2d(config.pixel_width, labels, 1, bias=False)
        self.full = nn.Conv2d(3 * labels, labels, 1)
        weights = torch.full((labels,), config.foreground_weight)
        weights[0] = 1
        self.register_buffer("log_weights", weights.log()[:, None, None], persistent=False)
        self.check_options(self.default_sampling())

    def default_sampling(self) -> SamplingOptions:
        return SamplingOptions(evaluations=self.config.sweeps, sampler=self.config.sampler, noise="independent")

    # ------------------------------------------------------------------ the two resolutions

    def encode(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the image at full resolution "b l h w" and its part of those at half, "b l h/2 w/2"; runs once per
        image."""
        h, w = image.shape[-2:]
        out = self.unet(pad_to_multiple(image, max(2, self.config.stride)))
        logits, features = out.split([self.num_classes, self.config.features], dim=1)
        return logits[..., :h, :w].float(), self.to_half(features)[..., : -(-h // 2), : -(-w // 2)].float()

    def half_logits(self, from_image: Tensor, onehot: Tensor) -> Tensor:
        """Logits of every pixel given those before it, "b l h w", tilted by the class weights.

        from_image: the image's part, "b l h w"; onehot: the map "b l h w", all zero where the label is unknown.
        """
        from_pixels: Tensor = self.from_pixels(self.pixels(onehot))
        return from_image + from_pixels.float()

    def full_logits(self, image_logits: Tensor, half_logits: Tensor, onehot: Tensor) -> Tensor:
        """Logits at full resolution from the map at half resolution and the image's own logits."""
        h, w = image_logits.shape[-2:]
        # The half resolution learns only from its own likelihood.
        smooth = F.interpolate(half_logits.detach(), scale_factor=2.0, mode="bilinear", align_corners=False)
        cells = F.interpolate(onehot, scale_factor=2.0, mode="nearest")
        logits: Tensor = self.full(torch.cat([image_logits, smooth[..., :h, :w], cells[..., :h, :w]], dim=1))
        return logits.float()

    def loss(self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys) -> Losses:
        target = one_rater(raters, mask, rater_count, SeededNoise(keys))
        mask = torch.ones_like(target.labels, dtype=torch.bool) if target.mask is None else target.mask
        y_half, mask_half = target.labels[:, ::2, ::2], mask[:, ::2, ::2]

        image_logits, from_image = self.encode(image)
        onehot = one_hot(y_half, self.num_classes) * mask_half[:, None]
        half_logits = self.half_logits(from_image, onehot)
        weight = self.log_weights.exp().flatten()
        half = F.cross_entropy(half_logits, y_half, weight, reduction="none").masked_fill(~mask_half, 0.0).mean()
        full = target.cross_entropy(self.full_logits(image_logits, half_logits, onehot)).mean()
        return {"loss": full + half, "full": full.detach(), "half": half.detach()}

    # ------------------------------------------------------------------ sampling

    def drawing(self, image: Tensor, keys: Keys, options: SamplingOptions) -> Drawing:
        assert options.sampler is not None and options.evaluations is not None  # noqa: PT018
        sampler, sweeps = SAMPLERS[options.sampler], options.evaluations
        image_logits, from_image = self.encode(image)

        def draw(rows: Rows, noise: Noise, report: Report) -> Drawn:
            local = from_image[rows.image]
            half, calls = sampler(self, local, noise, sweeps)
            onehot = one_hot(half, self.num_classes)
            logits = self.full_logits(image_logits[rows.image], self.half_logits(local, onehot), onehot)
            drawn = draw_categorical(torch.log_softmax(logits, dim=1), noise.uniform((len(half), *image.shape[2:])))
            report(sweeps)
            labels = smoothed(drawn, self.num_classes) if self.config.smooth else drawn
            return Drawn(logits.softmax(1), labels, calls + 1)

        return Drawing(draw, sweeps + 1)

    def _draw_all(self, from_image: Tensor, maps: Tensor, u: Tensor) -> Tensor:
        """Draw every pixel given the values before it in `maps`."""
        logits = self.half_logits(from_image, one_hot(maps, self.num_classes)) - self.log_weights
        return draw_categorical(torch.log_softmax(logits, dim=1), u)


def by_sweeps(model: PixelSeg, from_image: Tensor, noise: Noise, sweeps: int) -> tuple[Tensor, int]:
    """Draw all pixels at once, repeatedly with the same random numbers, until nothing changes: the raster sample of
    these numbers. With fewer sweeps the pixels beyond some position have not converged."""
    maps = torch.zeros_like(from_image[:, 0], dtype=torch.int64)
    u = noise.uniform(maps.shape)
    for done in range(sweeps):
        drawn = model._draw_all(from_image, maps, u)
        if torch.equal(drawn, maps):
            return maps, done + 1
        maps = drawn
    return maps, sweeps


def by_gibbs(model: PixelSeg, from_image: Tensor, noise: Noise, sweeps: int) -> tuple[Tensor, int]:
    """The released rule: draw all pixels at once, given the last map, with new random numbers each time."""
    maps = torch.zeros_like(from_image[:, 0], dtype=torch.int64)
    for _ in range(sweeps):
        maps = model._draw_all(from_image, maps, noise.uniform(maps.shape))
    return maps, sweeps


def by_raster(model: PixelSeg, from_image: Tensor, noise: Noise, sweeps: int) -> tuple[Tensor, int]:
    """Draw pixel by pixel, exactly; `sweeps` has no effect."""
    maps = torch.zeros_like(from_image[:, 0], dtype=torch.int64)
    u = noise.uniform(maps.shape)
    from_image = from_image - model.log_weights
    onehot = torch.zeros_like(from_image)
    matrix = model.from_pixels.weight.flatten(1)
    for i, j, features in model.pixels.walk(onehot):
        log_p = torch.log_softmax(from_image[:, :, i, j] + F.linear(features, matrix).float(), dim=1)
        maps[:, i, j] = draw_categorical(log_p[:, :, None, None], u[:, i, j, None, None])[:, 0, 0]
        onehot[:, :, i, j] = F.one_hot(maps[:, i, j], model.num_classes).to(onehot.dtype)
    return maps, maps[0].numel()


SAMPLERS: dict[str, Callable[[PixelSeg, Tensor, Noise, int], tuple[Tensor, int]]] = {
    "gibbs": by_gibbs,
    "raster": by_raster,
    "sweeps": by_sweeps,
}
"""(model, the image's part of the logits per row, noise, sweeps) -> (maps at half resolution, network evaluations)."""


def smoothed(labels: Tensor, num_classes: int) -> Tensor:
    """3×3 closing of the foreground, then the majority of the 3×3 pixels (of two classes: their median). "b h w"."""
    masks = one_hot(labels, num_classes)[:, 1:]
    closed = -F.max_pool2d(-F.max_pool2d(masks, 3, stride=1, padding=1), 3, stride=1, padding=1)
    filled = torch.where((labels == 0) & (closed.amax(1) > 0), closed.argmax(1) + 1, labels)
    masks = one_hot(filled, num_classes)
    votes = F.avg_pool2d(F.pad(masks, (1, 1, 1, 1), mode="replicate"), 3, stride=1) * 9
    return (votes.round() + 0.5 * masks).argmax(1)  # of equal votes, the pixel's own
