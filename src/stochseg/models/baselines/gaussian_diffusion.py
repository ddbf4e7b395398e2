"""Gaussian diffusion of label maps: labels as ±1 codes, the forward draw, and sampling.

A label is a vector of ±1 (its code); the map of codes is diffused, and a sample is decoded to the label whose code is
nearest. All codes have the same length, so the nearest is the one with the largest inner product, and a label that does
not exist cannot occur.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from stochseg.core import (
    GAUSSIAN_STEPS,
    GRIDS,
    SCHEDULES,
    GaussianProcess,
    Noise,
    SeededNoise,
    gaussian_step,
    gaussian_walk,
    make_grid,
    standard_normal,
)
from stochseg.models.base import SegmenterConfig, StochasticSegmenter
from stochseg.models.raters import pick_pairs
from stochseg.models.sampling import Drawing, Drawn, Key, Report, Rows, SamplingOptions
from stochseg.networks import Condition, ContinuousUNet
from stochseg.types import DatasetInfo


class GaussianDiffusionConfig(SegmenterConfig):
    """The diffusion and the defaults of sampling."""

    schedule: Literal["cosine", "linear"] = "cosine"
    num_timesteps: int = Field(250, ge=1, description="T")
    draws: int = Field(1, ge=1, description="(rater, t) pairs per training image")
    sampler: str = Field("ddpm", description="ddpm or ddim")
    grid: str = "even"
    evaluations: int | None = Field(None, ge=1, description="network evaluations per sample; None is all T")
    noise: str = Field("independent", description="independent, or latin: samples of an image are stratified")
    renamed_keys: ClassVar = {"num_steps": "num_timesteps", "steps": "evaluations"}


@dataclass(frozen=True)
class Noised:
    """A training batch after the forward process, `draws` rows per image.

    rows: "d", the image of each; x0, eps, x_t: "d c h w", x0 is 0 at void; t: "d" on the CPU; mask: "d h w", False =
    void, or None; noise: for further random choices.
    """

    rows: Tensor
    x0: Tensor
    eps: Tensor
    x_t: Tensor
    t: Tensor
    mask: Tensor | None
    noise: SeededNoise

    def mean(self, terms: Tensor) -> Tensor:
        """The mean over rows, channels and pixels of terms "d c h w"; void pixels count as 0."""
        return terms.mean() if self.mask is None else terms.masked_fill(~self.mask[:, None], 0.0).mean()


class GaussianDiffusion(StochasticSegmenter):
    """Base class: a subclass provides the codes, the network, the loss and the prediction of x0."""

    config_type: ClassVar[type[GaussianDiffusionConfig]] = GaussianDiffusionConfig
    sampling_choices: ClassVar = {"evaluations": (), "sampler": GAUSSIAN_STEPS, "grid": GRIDS}
    config: GaussianDiffusionConfig
    net: ContinuousUNet
    codes: Tensor

    def __init__(self, info: DatasetInfo, config: GaussianDiffusionConfig, codes: Tensor):
        """codes: "l c" of ±1."""
        super().__init__(info, config)
        self.process = GaussianProcess(SCHEDULES[config.schedule](config.num_timesteps))
        self.register_buffer("codes", codes.float(), persistent=False)
        self.check_options(self.default_sampling())

    def default_sampling(self) -> SamplingOptions:
        config = self.config
        return SamplingOptions(
            evaluations=config.evaluations or config.num_timesteps,
            sampler=config.sampler,
            grid=config.grid,
            noise=config.noise,
        )

    @property
    def max_evaluations(self) -> int:
        return self.config.num_timesteps

    def predict(
        self, x_t: Tensor, t: Tensor, previous: Tensor | None, condition: Condition
    ) -> tuple[Tensor, Tensor | None]:
        """x0 and, if the variance is learned, v, as in `core.gaussian.GaussianDenoise`. t: "b" on the CPU."""
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
        """Draw raters, time steps and noise."""
        draws = self.config.draws
        pairs = pick_pairs(keys, rater_count, draws, self.process.num_timesteps)
        rows, rater, t = pairs[0].to(device), pairs[1].to(device), pairs[2]
        mask = None if mask is None else mask[rows, rater]
        x0 = self.encode_labels(raters[rows, rater])
        if mask is not None:
            x0 = x0.masked_fill(~mask[:, None], 0.0)
        noise = SeededNoise([(*key, j) for key in keys for j in range(draws)], device)
        eps = standard_normal(noise, x0.shape)
        return Noised(rows, x0, eps, self.process.q_sample(x0, t, eps, mask), t, mask, noise)

    # ------------------------------------------------------------------ sampling

    def drawing(self, image: Tensor, keys: Sequence[Key], options: SamplingOptions) -> Drawing:
        """Walk from pure noise to a code map per sample; the image is prepared once."""
        assert options.sampler is not None and options.grid is not None  # noqa: PT018
        step = gaussian_step(options.sampler)
        grid = make_grid(options.grid, self.process.schedule, options.evaluations)
        condition = self.net.encode(image)

        def draw(rows: Rows, noise: Noise, report: Report) -> Drawn:
            local = condition[rows.image]

            def denoise(x_t: Tensor, t: Tensor, previous: Tensor | None) -> tuple[Tensor, Tensor | None]:
                return self.predict(x_t, t, previous, local)

            x_T = standard_normal(noise, (len(rows.image), self.codes.shape[1], *image.shape[2:]))
            x0 = gaussian_walk(denoise, x_T, grid, self.process, step, noise, lambda i, *_: report(i))
            return Drawn(self.probabilities(x0), self.decode(x0), len(grid))

        return Drawing(draw, len(grid))
