"""Analog Bits (Chen, Zhang and Hinton 2023): labels as bits of ±1, carried by ordinary Gaussian diffusion.

Idea: a label 0..L-1 is written with ceil(log2 L) bits, each bit is -1 or +1, and the map of bits is diffused like a
real-valued image. The network predicts the bits themselves:

    loss = E || f(x_t, t, x0~, image) - bits ||^2

With self-conditioning, f also reads an earlier estimate x0~ of the bits: in training, with probability one half, its
own estimate from x0~ = 0 (without a gradient through it), otherwise 0; in sampling, the estimate of the previous step.
Thresholding at 0 gives the labels of a sample.

Differs from the original: where L is not a power of two, some thresholded codes do not belong to a label, and the
nearest code that does is used instead. Time is discrete (T = 250, as in the CCDM comparison) and t uniform. The
asymmetric time intervals, a remedy for few steps, are the option `ahead`, 0 by default: with the exact jumps of
`core.gaussian` no gain was seen (one small network, 48 phantoms, 10 steps, `ahead` 0, ½ and 1: GED .280, .290 and .293,
HM-IoU .615, .620 and .624; differences this small were not tested for significance). Per-pixel probabilities (for
`Samples.mean`) interpret the last estimate of a bit, an expectation, as the probability of the bit.

Cost: one U-Net pass per step and sample; in training 1.5 passes per draw.

Published parameters: 9M.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from stochseg.models.baselines.gaussian_diffusion import GaussianDiffusion, GaussianDiffusionConfig, Noised, Prediction
from stochseg.models.ccdm import CCDM
from stochseg.models.registry import register
from stochseg.models.sampling import Keys
from stochseg.networks import Condition, ContinuousUNet, UNetConfig
from stochseg.types import DatasetInfo, Losses


class AnalogBitsConfig(GaussianDiffusionConfig, UNetConfig):
    """Shape of the U-Net and the diffusion. Defaults: the LIDC 9M network, all T = 250 steps."""

    self_conditioning: float = Field(0.5, ge=0, le=1, description="probability that training sees its own estimate")


def bit_codes(num_classes: int) -> Tensor:
    """The labels in binary, lowest bit first, as ±1: "l bits"."""
    bits = max(1, (num_classes - 1).bit_length())
    return 2.0 * (torch.arange(num_classes)[:, None] >> torch.arange(bits) & 1) - 1


@register("analog-bits")
class AnalogBits(GaussianDiffusion):
    """Gaussian diffusion of the bits of the labels, with self-conditioning."""

    config_type: ClassVar[type[AnalogBitsConfig]] = AnalogBitsConfig
    config: AnalogBitsConfig
    training_defaults: ClassVar = CCDM.training_defaults  # as the paper trained it for its tables

    def __init__(self, info: DatasetInfo, config: AnalogBitsConfig):
        super().__init__(info, config, bit_codes(info.num_classes))
        bits = self.codes.shape[1]
        self.net = ContinuousUNet(2 * bits, info.image_channels, bits, config)

    def predict(self, x_t: Tensor, t: Tensor, previous: Tensor | None, condition: Condition) -> Prediction:
        if previous is None or self.config.self_conditioning == 0:  # training never showed one
            previous = torch.zeros_like(x_t)
        return self.net(torch.cat([x_t, previous], dim=1), t.to(x_t.device), condition), None

    def loss(self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys) -> Losses:
        batch = self.noised(raters, mask, rater_count, keys)
        condition = self.net.encode(image)
        x0, _ = self.predict(batch.x_t, batch.t, self._own_estimate(batch, condition), condition[batch.rows])
        return {"loss": batch.mean((x0 - batch.x0) ** 2)}

    def _own_estimate(self, batch: Noised, condition: Condition) -> Tensor:
        """x0~ "d c h w": the network's estimate in rows drawn with probability `self_conditioning`, otherwise 0."""
        u = batch.noise.uniform((len(batch.rows), 1))[:, 0]
        chosen = torch.nonzero(u < self.config.self_conditioning)[:, 0]
        previous = torch.zeros_like(batch.x_t)
        if len(chosen):
            with torch.no_grad():
                local = condition[batch.rows[chosen]]
                x0, _ = self.predict(batch.x_t[chosen], batch.t[chosen.cpu()], None, local)
            # Older torch would reuse the 16-bit copies of the weights made here, which have no gradient.
            torch.clear_autocast_cache()
            previous[chosen] = x0.clamp(-1, 1)  # as in the sampler
        return previous
