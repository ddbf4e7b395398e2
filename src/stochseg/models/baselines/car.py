"""CAR: calibrated adversarial refinement (Kassapis et al., ICCV 2021).

Idea: a calibration network F learns the probabilities of each pixel by cross-entropy; a refinement network G turns the
image, F's probabilities and a code z ~ N(0, 1) of 8 dimensions into one coherent map. A patch discriminator D makes
single maps look like raters' maps, and a calibration loss ties their mean to F:

    F:  CE(F(x), y)
    G:  10 · E −log D(x, G(x, F(x), z))  +  5 · KL( mean of 5 samples ‖ F(x) )
    D:  −log D(x, y) − E log(1 − D(x, G(x, F(x), z)))

z enters G through a scale and a shift of the feature maps at its three finest decoder levels.

All three learn at once, by one loss in which each term reaches only the parameters of its own network: G plays against
a D with detached parameters, D sees detached samples, and G sees a detached F. The learning rate of a run is that of G
(2e-4 in the paper); `parameter_groups` sets those of F and D, and the betas (0.5, 0.99) of all.

Differs from the original:
- F and G are U-Nets of this library, and F is trained together with G rather than before;
- D judges patches and takes any image size, whereas the released one ends in one linear layer of a fixed size; it is
  updated at every step (the released schedule freezes it for 200 of 250 steps) at its 20 times lower rate, and has no
  gradient penalty (the released loss adds ten times its squared gradient at raters' maps, and skips steps of a D that
  is right in 85% of the cases); there is no weight decay (released: 5e-4);
- where the drawn rater left pixels void, both the rater's map and the samples are blanked for D.

Cost: F and G's encoder once per image, G's decoder once per sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from stochseg.core import Noise, SeededNoise, draw_normal, standard_normal
from stochseg.models.base import SegmenterConfig, StochasticSegmenter
from stochseg.models.raters import pick_raters
from stochseg.models.registry import register
from stochseg.models.sampling import Drawing, Keys, Rows, SamplingOptions, one_pass
from stochseg.networks import UNet, UNetConfig, pad_to_multiple
from stochseg.networks.shapes import one_hot
from stochseg.types import DatasetInfo, Losses

MODULATED_LEVELS = 3
BETAS = (0.5, 0.99)


class CARConfig(SegmenterConfig, UNetConfig):
    """Shape of both U-Nets and of the discriminator, and the weights of the loss."""

    latent: int = Field(8, ge=1, description="dimensions of the code z")
    samples: int = Field(5, ge=1, description="samples per image in a training step, whose mean is tied to F")
    adversarial: float = Field(10.0, ge=0, description="weight of the refinement network's adversarial loss")
    calibration: float = Field(5.0, ge=0, description="weight of KL(mean of the samples ‖ F)")
    patch_width: int = Field(64, ge=1, description="channels of the discriminator's first layers")
    patch_levels: int = Field(3, ge=1, description="times the discriminator halves the resolution")
    calibration_lr: float = Field(2.5, gt=0, description="learning rate of F, in units of the refinement network's")
    discriminator_lr: float = Field(0.05, gt=0, description="learning rate of D, in units of the refinement network's")


class Refiner(nn.Module):
    """G: image and probabilities once, then one code per sample."""

    def __init__(self, image_channels: int, num_classes: int, config: CARConfig):
        super().__init__()
        self.unet = UNet(image_channels + num_classes, num_classes, config, timed=False)
        widths = self.unet.channels[:MODULATED_LEVELS]
        self.modulations = nn.ModuleList([nn.Linear(config.latent, 2 * c) for c in widths])

    def encode(self, image: Tensor, p: Tensor) -> list[Tensor]:
        """Encode images "b c h w" and F's probabilities p "b l h w" for `forward`."""
        bottleneck, skips = self.unet.encode(torch.cat([image, p], dim=1))
        return [bottleneck, *skips]

    def forward(self, encoded: Sequence[Tensor], rows: Tensor, code: Tensor) -> Tensor:
        """Logits "r l h w". rows: "r", index of the encoding of each; code: "r latent"."""

        def modulate(level: int, h: Tensor) -> Tensor:
            if level >= len(self.modulations):
                return h
            modulation: Tensor = self.modulations[level](code)[:, :, None, None]
            scale, shift = modulation.chunk(2, dim=1)
            return h * (1 + scale) + shift

        bottleneck, *skips = (x[rows] for x in encoded)
        out: Tensor = self.unet.decode(bottleneck, skips, modulate=modulate)
        return out


class PatchDiscriminator(nn.Module):
    """D: an image and a map "b c h w" of any size -> logits "b 1 h' w'" of each patch being real."""

    def __init__(self, in_channels: int, width: int, levels: int):
        super().__init__()
        self.stride = 2**levels
        layers: list[nn.Module] = []
        current = in_channels
        for _ in range(3):
            layers += [nn.Conv2d(current, width, 3, padding=1), nn.LeakyReLU(0.2)]
            current = width
        for level in range(levels):
            c = width * min(2**level, 8)
            layers += [nn.Conv2d(current, c, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
            current = c
        self.layers = nn.Sequential(*layers, nn.Conv2d(current, 1, 3, padding=1))

    def forward(self, image: Tensor, maps: Tensor) -> Tensor:
        out: Tensor = self.layers(pad_to_multiple(torch.cat([image, maps], dim=1), self.stride))
        return out.float()


@register("car")
class CAR(StochasticSegmenter):
    """A calibrated network, and an adversarial refinement into coherent maps."""

    config_type: ClassVar[type[CARConfig]] = CARConfig
    config: CARConfig
    training_defaults: ClassVar = {"lr": 2e-4}

    def __init__(self, info: DatasetInfo, config: CARConfig):
        super().__init__(info, config)
        channels, labels = info.image_channels, info.num_classes
        self.calibrated = UNet(channels, labels, config, timed=False)
        self.refiner = Refiner(channels, labels, config)
        self.discriminator = PatchDiscriminator(channels + labels, config.patch_width, config.patch_levels)

    def parameter_groups(self) -> list[dict[str, Any]]:
        config = self.config
        rates = {self.refiner: 1.0, self.calibrated: config.calibration_lr, self.discriminator: config.discriminator_lr}
        return [{"params": list(net.parameters()), "lr_factor": r, "betas": BETAS} for net, r in rates.items()]

    # ------------------------------------------------------------------ training

    def loss(self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys) -> Losses:
        config, b, device = self.config, len(image), image.device
        h, w = image.shape[-2:]
        u = SeededNoise(keys).uniform((b, 1 + config.samples * config.latent))
        rater = pick_raters(u[:, 0], rater_count.cpu())[:, 0].to(device)
        one = torch.arange(b, device=device)
        y = raters[one, rater]
        valid = torch.ones_like(y, dtype=torch.bool) if mask is None else mask[one, rater]

        padded = pad_to_multiple(image, config.stride)
        logits = self.calibrated(padded).float()
        cross_entropy = F.cross_entropy(logits[..., :h, :w], y, reduction="none").masked_fill(~valid, 0.0).mean()

        log_f = torch.log_softmax(logits.detach(), dim=1)
        code = draw_normal(u[:, 1:]).view(b * config.samples, config.latent).to(device)
        rows = one.repeat_interleave(config.samples)
        refined = self.refiner(self.refiner.encode(padded, log_f.exp()), rows, code)[..., :h, :w].float()
        log_p = torch.log_softmax(refined, dim=1)
        log_mean = log_p.view(b, config.samples, *log_p.shape[1:]).logsumexp(1) - math.log(config.samples)
        kl = (log_mean.exp() * (log_mean - log_f[..., :h, :w])).sum(1)
        calibration = kl.masked_fill(~valid, 0.0).mean()

        known = valid[:, None]
        samples = log_p.exp() * known[rows]
        fixed = {name: p.detach() for name, p in self.discriminator.named_parameters()}
        judged = torch.func.functional_call(self.discriminator, fixed, (image[rows], samples))
        adversarial = F.softplus(-judged).mean()

        real = self.discriminator(image, one_hot(y, self.num_classes) * known)
        fake = self.discriminator(image[rows], samples.detach())
        discriminator = F.softplus(-real).mean() + F.softplus(fake).mean()

        refiner = config.adversarial * adversarial + config.calibration * calibration
        return {
            "loss": cross_entropy + refiner + discriminator,
            "cross_entropy": cross_entropy.detach(),
            "adversarial": adversarial.detach(),
            "calibration": calibration.detach(),
            "discriminator": discriminator.detach(),
        }

    # ------------------------------------------------------------------ sampling

    def drawing(self, image: Tensor, keys: Keys, options: SamplingOptions) -> Drawing:
        h, w = image.shape[-2:]
        padded = pad_to_multiple(image, self.config.stride)
        encoded = self.refiner.encode(padded, self.calibrated(padded).float().softmax(1))

        def predict(rows: Rows, noise: Noise) -> Tensor:
            code = standard_normal(noise, (len(rows.image), self.config.latent))
            logits: Tensor = self.refiner(encoded, rows.image, code)
            return logits[..., :h, :w].float().softmax(1)

        return one_pass(predict)
