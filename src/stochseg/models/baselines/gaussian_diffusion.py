"""What Gaussian diffusion models of label maps share: labels as ±1 codes, the forward draw, and sampling.

A label is a vector of ±1 (its code); the map of codes is diffused, and a sample is read back as the label whose code is
nearest. All codes have the same length, so the nearest is the one of largest inner product, and a label that does not
exist cannot come out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from stochseg.config import Config
from stochseg.core import (
    NOISES,
    SCHEDULES,
    GaussianProcess,
    Grid,
    SeededNoise,
    Step,
    gaussian_step,
    gaussian_walk,
    make_grid,
    standard_normal,
)
from stochseg.models.base import Key, SamplingOptions, StochasticSegmenter, pick_pairs
from stochseg.models.sampling import check_noise, chunks
from stochseg.networks import Condition, ContinuousUNet
from stochseg.types import DatasetInfo, Samples


class GaussianDiffusionConfig(Config):
    """The diffusion and how to sample by default."""

    schedule: Literal["cosine", "linear"] = "cosine"
    num_timesteps: int = Field(250, ge=1, description="T")
    draws: int = Field(1, ge=1, description="(rater, t) pairs a training image")
    sampler: str = Field("ddpm", description="ddpm or ddim")
    grid: str = "even"
    steps: int | None = Field(None, ge=1, description="network calls a sample by default; None is all T")
    noise: str = Field("independent", description="how the samples of an image share randomness")
    chunk: int = Field(64, ge=1, description="samples of 128×128 pixels denoised at once, scaled for other sizes")
    renamed_keys: ClassVar = {"num_steps": "num_timesteps"}


@dataclass(frozen=True)
class Noised:
    """A training batch after the forward process, `draws` rows an image.

    rows: "d", the image of each; x0, eps, x_t: "d c h w", x0 is 0 at void; t: "d"; valid: "d h w" or None;
    noise: for further random choices.
    """

    rows: Tensor
    x0: Tensor
    eps: Tensor
    x_t: Tensor
    t: Tensor
    valid: Tensor | None
    noise: SeededNoise

    def mean(self, terms: Tensor) -> Tensor:
        """The mean over rows, channels and pixels of terms "d c h w"; void pixels count as 0."""
        return terms.mean() if self.valid is None else terms.masked_fill(~self.valid[:, None], 0.0).mean()


class GaussianDiffusion(StochasticSegmenter):
    """A subclass gives the codes, the network, the loss and the prediction of x0."""

    Config: ClassVar[type[GaussianDiffusionConfig]] = GaussianDiffusionConfig
    choices = ("sampler", "grid", "noise")
    net: ContinuousUNet
    codes: Tensor

    def __init__(self, info: DatasetInfo, config: GaussianDiffusionConfig, codes: Tensor):
        """codes: "l c" of ±1."""
        super().__init__(info, config)
        self.process = GaussianProcess(SCHEDULES[config.schedule](config.num_timesteps))
        self.register_buffer("codes", codes.float(), persistent=False)
        self.check_options(SamplingOptions())

    def predict(
        self, x_t: Tensor, t: Tensor, previous: Tensor | None, condition: Condition
    ) -> tuple[Tensor, Tensor | None]:
        """x0 and, if the variance is learned, v: what `core.gaussian.GaussianDenoise` returns."""
        raise NotImplementedError

    # ------------------------------------------------------------------ labels and codes

    def encode_labels(self, labels: Tensor) -> Tensor:
        """labels "b h w" -> codes "b c h w"."""
        return self.codes[labels].permute(0, 3, 1, 2)

    def decode(self, x0: Tensor) -> Tensor:
        """x0 "b c h w" -> the labels "b h w" of the nearest codes."""
        return torch.einsum("bchw,lc->blhw", x0, self.codes).argmax(1)

    def probabilities(self, x0: Tensor) -> Tensor:
        """x0 "b c h w" in [-1, 1] -> label probabilities "b l h w": an estimate of E[bit] is a probability of the bit,
        bits are taken as independent, and codes of no label are left out."""
        p = ((1 + x0) / 2).clamp(1e-4, 1 - 1e-4)  # so that some label is always possible
        is_one = (self.codes > 0).to(x0)
        log_p = torch.einsum("bchw,lc->blhw", p.log(), is_one) + torch.einsum("bchw,lc->blhw", (-p).log1p(), 1 - is_one)
        return log_p.softmax(1)

    # ------------------------------------------------------------------ training

    def noised(
        self, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Sequence[Key], device: torch.device
    ) -> Noised:
        """Draw raters, steps and noise."""
        draws = self.config.draws
        pairs = pick_pairs(keys, rater_count, draws, self.process.num_timesteps)
        rows, rater, t = (part.to(device) for part in pairs)
        valid = None if mask is None else mask[rows, rater]
        x0 = self.encode_labels(raters[rows, rater])
        if valid is not None:
            x0 = x0.masked_fill(~valid[:, None], 0.0)
        noise = SeededNoise([(*key, j) for key in keys for j in range(draws)], device)
        eps = standard_normal(noise, x0.shape)
        return Noised(rows, x0, eps, self.process.q_sample(x0, t, eps, valid), t, valid, noise)

    # ------------------------------------------------------------------ sampling

    def check_options(self, options: SamplingOptions) -> None:
        self._plan(options)

    def _plan(self, options: SamplingOptions) -> tuple[Step, Grid]:
        check_noise(options, self.config.noise)
        steps = self.config.steps if options.steps is None else options.steps
        grid = make_grid(options.grid or self.config.grid, self.process.schedule, steps)
        return gaussian_step(options.sampler or self.config.sampler), grid

    def draw(self, image: Tensor, n: int, keys: Sequence[Key], seed: int, options: SamplingOptions) -> Samples:
        """n walks an image from pure noise, in chunks; the image is prepared once."""
        step, grid = self._plan(options)
        make_noise = NOISES[options.noise or self.config.noise]
        b, _, h, w = image.shape
        condition = self.net.encode(image)
        rows = torch.arange(b, device=image.device).repeat_interleave(n)
        labels = torch.zeros(b * n, h, w, dtype=torch.int64, device=image.device)
        mean = torch.zeros(b, self.num_classes, h, w, device=image.device)
        parts = list(chunks(b * n, (h, w), self.config.chunk))
        calls = len(parts) * len(grid)

        for number, part in enumerate(parts):
            noise = make_noise(keys, n, range(part.start, part.stop), image.device)
            local = condition[rows[part]]

            def denoise(
                x_t: Tensor, t: Tensor, previous: Tensor | None, local: Condition = local
            ) -> tuple[Tensor, Tensor | None]:
                return self.predict(x_t, t.to(x_t.device), previous, local)

            def report(i: int, *_: object, done: int = number * len(grid)) -> None:
                if options.progress is not None:
                    options.progress(done + i + 1, calls)

            x_T = standard_normal(noise, (part.stop - part.start, self.codes.shape[1], h, w))
            x0 = gaussian_walk(denoise, x_T, grid, self.process, step, noise, report)
            labels[part] = self.decode(x0)
            mean.index_add_(0, rows[part], self.probabilities(x0) / n)
        weights = torch.full((b, n), 1 / n, device=image.device)
        return Samples(labels.view(b, n, h, w), mean, weights, seed, len(grid))
