"""CCDM: the conditional categorical diffusion model (Zbinden, Doorenbos et al., ICCV 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from stochseg.core import OBJECTIVES, SAMPLERS, SCHEDULES, CategoricalProcess, Grid, Sampler, SeededNoise, make_grid
from stochseg.errors import unknown_name
from stochseg.models.base import Key, SamplingOptions, StochasticSegmenter, pick_raters
from stochseg.models.registry import register
from stochseg.networks import ConcatUNet, UNetConfig, make_encoder
from stochseg.types import DatasetInfo, Samples


class CCDMConfig(UNetConfig):
    """The U-Net's shape, the diffusion, and how to sample by default. Defaults: the paper's LIDC 9M model."""

    schedule: Literal["cosine", "linear"] = "cosine"
    num_steps: int = Field(250, ge=1, description="T")
    objective: Literal["kl", "cross-entropy"] = Field("kl", description="the paper's bound, or cross-entropy on x0")
    encoder: str | None = Field(None, description="frozen image features at 1/8, by name")
    draws: int = Field(1, ge=1, description="(rater, t) pairs a training image, all served by one encoding")
    sampler: str = "ancestral"
    grid: str = "even"
    steps: int | None = Field(None, ge=1, description="network calls a sample by default; None is all T")
    chunk: int = Field(64, ge=1, description="samples of 128×128 pixels denoised at once, scaled for other sizes")


@register("ccdm")
class CCDM(StochasticSegmenter):
    """Diffusion over label maps, conditioned on the image by concatenation and, if asked, frozen features."""

    Config: ClassVar[type[CCDMConfig]] = CCDMConfig

    def __init__(self, info: DatasetInfo, config: CCDMConfig):
        super().__init__(info, config)
        encoder = None if config.encoder is None else make_encoder(config.encoder, info.image_channels)
        self.denoiser = ConcatUNet(info.num_classes, info.image_channels, config, encoder)
        self.process = CategoricalProcess(SCHEDULES[config.schedule](config.num_steps), info.num_classes)

        self.check_options(SamplingOptions())

    def check_options(self, options: SamplingOptions) -> None:
        self._plan(options)

    def _plan(self, options: SamplingOptions) -> tuple[Sampler, Grid]:
        """The sampler and its time grid."""
        name = options.sampler or self.config.sampler
        if name not in SAMPLERS:
            raise unknown_name("sampler", name, SAMPLERS)
        steps = self.config.steps if options.steps is None else options.steps
        return SAMPLERS[name], make_grid(self.config.grid, self.process.schedule, steps)

    def loss(
        self, image: Tensor, labels: Tensor, mask: Tensor | None, raters: Tensor, keys: Sequence[Key]
    ) -> dict[str, Tensor]:
        """CCDM Alg. 1 for `draws` pairs of a rater and a step an image.

        Several draws of an image take different raters in turn and steps spread evenly over 1..T: each pair is
        distributed as a single one. Note: the paper sums over pixels; here the sum is divided by their number (and
        the bound multiplied by T), constants both, so that the loss is in nats a pixel at any size.
        """
        b, draws = len(image), self.config.draws
        u_rater, u_step = SeededNoise(keys).uniform((b, 2)).unbind(1)
        rater = pick_raters(u_rater, raters.cpu(), draws).flatten().to(image.device)
        spread = (u_step[:, None] + torch.arange(draws) / draws) % 1.0
        t = 1 + (spread * self.process.num_steps).long().flatten().to(image.device)
        rows = torch.arange(b, device=image.device).repeat_interleave(draws)

        x0 = labels[rows, rater]
        valid = None if mask is None else mask[rows, rater]
        noise = SeededNoise([(*key, j) for key in keys for j in range(draws)], image.device)
        x_t = self.process.q_sample(x0, t, noise, valid)
        logits = self.denoiser(x_t, t, self.denoiser.encode(image)[rows])
        terms = OBJECTIVES[self.config.objective](self.process, torch.log_softmax(logits.float(), 1), x0, x_t, t, valid)
        return {"loss": terms.mean()}

    def draw(self, image: Tensor, n: int, keys: Sequence[Key], seed: int, options: SamplingOptions) -> Samples:
        """CCDM Alg. 2, n times an image: encode once, denoise in chunks."""
        sampler, grid = self._plan(options)
        b, _, h, w = image.shape
        condition = self.denoiser.encode(image)
        streams = [(*key, i) for key in keys for i in range(n)]
        rows = torch.arange(b, device=image.device).repeat_interleave(n)
        labels = torch.empty(b * n, h, w, dtype=torch.int64, device=image.device)
        mean = torch.zeros(b, self.num_classes, h, w, device=image.device)
        chunk = max(1, self.config.chunk * 128 * 128 // (h * w))
        calls = -(-b * n // chunk) * len(grid)

        for number, start in enumerate(range(0, b * n, chunk)):
            part = slice(start, start + chunk)
            noise = SeededNoise(streams[part], image.device)
            local = condition[rows[part]]

            def denoise(x_t: Tensor, t: Tensor, local=local) -> Tensor:
                return self.denoiser(x_t, t, local).float()

            def report(i: int, *_: object, done: int = number * len(grid)) -> None:
                if options.progress is not None:
                    options.progress(done + i + 1, calls)

            x_T = self.process.prior((len(streams[part]), h, w), noise)
            out = sampler(denoise, x_T, grid, self.process, noise, report)
            labels[part] = out.labels
            mean.index_add_(0, rows[part], out.log_p0.exp() / n)
        weights = torch.full((b, n), 1 / n, device=image.device)
        return Samples(labels.view(b, n, h, w), mean, weights, seed, len(grid))
