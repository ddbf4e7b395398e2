"""Gaussian diffusion of label maps: labels as ±1 codes, the forward draw, and sampling.

A label is a vector of ±1 (its code); the map of codes is diffused, and a sample is decoded to the label whose code is
nearest. All codes have the same length, so the nearest is the one with the largest inner product, and a label that does
not exist cannot occur.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from stochseg import core
from stochseg.models.diffusion import Diffusion, DiffusionConfig
from stochseg.models.raters import draw_pairs, time_steps
from stochseg.models.sampling import Drawing, Drawn, Keys, Report, Rows, SamplingOptions
from stochseg.networks import Condition, ContinuousUNet
from stochseg.types import DatasetInfo

Prediction = tuple[Tensor, Tensor | None]
"""x0 and, if the variance is learned, v."""


class GaussianDiffusionConfig(DiffusionConfig):
    """The diffusion and the defaults of sampling."""

    sampler: str = Field("ddpm", description="ddpm or ddim")
    ahead: float = Field(0.0, ge=0, description="jumps of the sampler go further than the grid by this part")


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
    noise: core.SeededNoise

    def mean(self, terms: Tensor) -> Tensor:
        """The mean over rows, channels and pixels of terms "d c h w"; void pixels count as 0."""
        return terms.mean() if self.mask is None else terms.masked_fill(~self.mask[:, None], 0.0).mean()


class GaussianDiffusion(Diffusion):
    """Base class: a subclass provides the codes, the network, the loss and the prediction of x0."""

    config_type: ClassVar[type[GaussianDiffusionConfig]] = GaussianDiffusionConfig
    accelerated_modules = ("net.unet",)
    sampling_choices: ClassVar = {**Diffusion.sampling_choices, "sampler": core.GAUSSIAN_STEPS}
    config: GaussianDiffusionConfig
    net: ContinuousUNet
    codes: Tensor

    def __init__(self, info: DatasetInfo, config: GaussianDiffusionConfig, codes: Tensor):
        """codes: "l c" of ±1."""
        super().__init__(info, config)
        self.process = core.GaussianProcess(core.SCHEDULES[config.schedule](config.num_timesteps))
        self.register_buffer("codes", codes.float(), persistent=False)
        self.check_options(self.default_sampling())

    def predict(self, x_t: Tensor, t: Tensor, previous: Tensor | None, condition: Condition) -> Prediction:
        """Estimate x0 as a `core.GaussianDenoise` does, given the encoded images. t: "b" on the CPU."""
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

    def noised(self, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys) -> Noised:
        """Draw raters, time steps and noise."""
        rows, target, u, noise = draw_pairs(raters, mask, rater_count, keys, self.config.draws)
        t, mask = time_steps(u, self.process.num_timesteps), target.mask
        x0 = self.encode_labels(target.labels)
        if mask is not None:
            x0 = x0.masked_fill(~mask[:, None], 0.0)
        eps = core.standard_normal(noise, x0.shape)
        return Noised(rows, x0, eps, self.process.q_sample(x0, t, eps, mask), t, mask, noise)

    # ------------------------------------------------------------------ sampling

    def drawing(self, image: Tensor, keys: Keys, options: SamplingOptions) -> Drawing:
        """Walk from pure noise to a code map per sample; the image is prepared once."""
        assert options.sampler is not None
        step, grid = core.gaussian_step(options.sampler), self.time_grid(self.process.schedule, options)
        condition = self.net.encode(image)
        walk = partial(core.gaussian_walk, ahead=self.config.ahead)

        def draw(rows: Rows, noise: core.Noise, report: Report) -> Drawn:
            denoise = partial(self.predict, condition=condition[rows.image])
            x_T = core.standard_normal(noise, (len(rows.image), self.codes.shape[1], *image.shape[2:]))
            x0 = walk(denoise, x_T, grid, self.process, step, noise, lambda i, *_: report(i))
            return Drawn(self.probabilities(x0), self.decode(x0), len(grid))

        return Drawing(draw, len(grid))
