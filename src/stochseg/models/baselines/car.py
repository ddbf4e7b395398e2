"""CAR: calibrated adversarial refinement (Kassapis et al., ICCV 2021).

Idea: a calibration network F learns the probabilities of each pixel by cross-entropy; a refinement network G turns the
image, F's probabilities and a code z ~ N(0, 1) of 8 dimensions into one coherent map. A patch discriminator D makes
single maps look like raters' maps, and a calibration loss ties their mean to F:

    F:  CE(F(x), y)
    G:  10 · −log D(x, G(x, F(x), z))  +  5 · KL( mean of 5 samples ‖ F(x) )
    D:  −log D(x, y) − log(1 − D(x, G(x, F(x), z))) + 10 · ‖gradient of D's logit at (x, y)‖²

G is light (0.6M parameters): four convolutions that halve the resolution, four that double it. z enters it through a
scale and a shift of the feature maps at its three finest levels. F is a U-Net, as large as those of other methods.

Each term reaches only the parameters of its own network: G plays against a D with detached parameters, D sees detached
samples, and G sees a detached F. F learns alone in the first `calibration_steps` steps. Then G learns in every step,
and D, as in the released code, in 50 of 250, from one sample per image, unless it is right in 85% of the cases already;
F continues to learn in the steps of D. The learning rate of a run is that of G (2e-4 in the paper); `parameter_groups`
sets those of F and D, and the betas (0.5, 0.99) of all.

Differs from the original:
- F is a U-Net of this library (released: a SegNet on VGG-19 with ImageNet weights), and learns on while G does;
- D judges patches and takes any image size, whereas the released one ends in one linear layer of a fixed size; its
  gradient penalty is that of the mean logit of all patches (released: of the probability), and its accuracy that of the
  patches of the current batch (released: of the images of the last one);
- group normalization instead of batch normalization, and no dropout (released: 0.1 in G);
- where the drawn rater left pixels void, both the rater's map and the samples are blanked for D.

Cost: F, G's encoder and the first half of its decoder once per image, the second half once per sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor, nn

from stochseg.core import Noise, SeededNoise, draw_normal, standard_normal
from stochseg.models.base import StochasticSegmenter
from stochseg.models.config import SegmenterConfig
from stochseg.models.raters import pick_raters
from stochseg.models.registry import register
from stochseg.models.sampling import Drawing, Keys, Rows, SamplingOptions, one_pass
from stochseg.networks import UNet, UNetConfig, pad_to_multiple
from stochseg.networks.blocks import group_norm
from stochseg.networks.shapes import one_hot
from stochseg.types import DatasetInfo, Losses

MODULATED_LEVELS = 3
GROUPS = 8
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
    refiner: Literal["light", "unet"] = Field("light", description="network of G; unet: one of the shape of F")
    refiner_base: int = Field(32, ge=1, description="channels of the light G at half resolution")
    calibration_steps: int = Field(200, ge=0, description="first training steps, in which F learns alone")
    turns: tuple[PositiveInt, NonNegativeInt] = Field((50, 200), description="steps that D learns and pauses, in turn")
    judged: int = Field(1, ge=1, description="samples per image that D sees")
    accuracy_cap: float = Field(0.85, gt=0, description="D does not learn in a step in which it is right this often")
    gradient_penalty: float = Field(10.0, ge=0, description="weight of D's squared gradient at raters' maps")
    values_before: ClassVar[dict[str, object]] = {
        "refiner": "unet",
        "calibration_steps": 0,
        "turns": (1, 0),
        "judged": 5,
        "accuracy_cap": 2.0,
        "gradient_penalty": 0.0,
    }


@dataclass(frozen=True)
class Turn:
    """Networks that learn in a training step."""

    calibrates: bool = True
    refines: bool = True
    discriminates: bool = True


class Injection(nn.Module):
    """Scale and shift maps "b c h w" by linear functions of a code "b latent", then a 1×1 convolution."""

    def __init__(self, latent: int, channels: int, out_channels: int):
        super().__init__()
        self.modulation = nn.Linear(latent, 2 * channels)
        self.conv = nn.Conv2d(channels, out_channels, 1)

    def forward(self, x: Tensor, code: Tensor) -> Tensor:
        modulation: Tensor = self.modulation(code)[:, :, None, None]
        scale, shift = modulation.chunk(2, dim=1)
        out: Tensor = self.conv(x * (1 + scale) + shift)
        return out


def _normalized(layer: nn.Conv2d | nn.ConvTranspose2d) -> nn.Sequential:
    return nn.Sequential(layer, group_norm(layer.out_channels, GROUPS), nn.LeakyReLU(0.2))


def _down(in_channels: int, out_channels: int) -> nn.Sequential:
    return _normalized(nn.Conv2d(in_channels, out_channels, 3, stride=2, padding=1))


def _up(in_channels: int, out_channels: int) -> nn.Sequential:
    return _normalized(nn.ConvTranspose2d(in_channels, out_channels, 2, stride=2))


class LightEncoder(nn.Module):
    """The part of the light G that does not see the code: "b c h w" -> maps at 1/4, 1/4 and 1/2 of the resolution."""

    def __init__(self, in_channels: int, base: int):
        super().__init__()
        widths = [in_channels, *(base * 2**i for i in range(4))]
        self.down = nn.ModuleList([_down(a, b) for a, b in pairwise(widths)])
        self.up = nn.ModuleList([_up(8 * base, 4 * base), _up(8 * base, 2 * base)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        levels = []
        for down in self.down:
            x = down(x)
            levels.append(x)
        x = self.up[1](torch.cat([self.up[0](x), levels[2]], dim=1))
        return x, levels[1], levels[0]


class LightDecoder(nn.Module):
    """The part of the light G that runs once per sample: a code "b latent" and encoded maps -> logits "b l h w"."""

    def __init__(self, num_classes: int, base: int, latent: int):
        super().__init__()
        self.up = nn.ModuleList([_up(4 * base, base), _up(2 * base, base)])
        widths = [(2 * base, 2 * base), (base, base), (base, num_classes)]
        self.injections = nn.ModuleList([Injection(latent, a, b) for a, b in widths])

    def forward(self, code: Tensor, quarter: Tensor, quarter_skip: Tensor, half_skip: Tensor) -> Tensor:
        x = quarter
        for injection, up, skip in zip(self.injections, self.up, (quarter_skip, half_skip), strict=False):
            x = up(torch.cat([F.leaky_relu(injection(x, code), 0.2), skip], dim=1))
        out: Tensor = self.injections[-1](x, code)
        return out


class LightRefiner(nn.Module):
    """G as published: image and probabilities once, then one code per sample."""

    stride = 16

    def __init__(self, image_channels: int, num_classes: int, config: CARConfig):
        super().__init__()
        self.encoder = LightEncoder(image_channels + num_classes, config.refiner_base)
        self.decoder = LightDecoder(num_classes, config.refiner_base, config.latent)

    def encode(self, image: Tensor, p: Tensor) -> Sequence[Tensor]:
        """Encode images "b c h w" and F's probabilities p "b l h w" for `forward`."""
        encoded: tuple[Tensor, ...] = self.encoder(torch.cat([image, p], dim=1))
        return encoded

    def forward(self, encoded: Sequence[Tensor], rows: Tensor, code: Tensor) -> Tensor:
        """Logits "r l h w". rows: "r", index of the encoding of each; code: "r latent"."""
        out: Tensor = self.decoder(code, *(x[rows] for x in encoded))
        return out


class UNetRefiner(nn.Module):
    """G as a U-Net of the shape of F, with the code at the three finest levels of its decoder."""

    def __init__(self, image_channels: int, num_classes: int, config: CARConfig):
        super().__init__()
        self.stride = config.stride
        self.unet = UNet(image_channels + num_classes, num_classes, config, timed=False)
        widths = self.unet.channels[:MODULATED_LEVELS]
        self.modulations = nn.ModuleList([nn.Linear(config.latent, 2 * c) for c in widths])

    def encode(self, image: Tensor, p: Tensor) -> Sequence[Tensor]:
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
    accelerated_modules: tuple[str, ...] = ("calibrated", "refiner.encoder", "refiner.decoder")
    config: CARConfig
    training_defaults: ClassVar = {"lr": 2e-4, "weight_decay": 5e-4, "batch_size": 32}
    idle_parameters = True
    updates: Tensor

    def __init__(self, info: DatasetInfo, config: CARConfig):
        super().__init__(info, config)
        channels, labels = info.image_channels, info.num_classes
        self.calibrated = UNet(channels, labels, config, timed=False)
        self.refiner: LightRefiner | UNetRefiner
        if config.refiner == "light":
            self.refiner = LightRefiner(channels, labels, config)
        else:
            self.refiner = UNetRefiner(channels, labels, config)
            self.accelerated_modules = ("calibrated",)
        self.discriminator = PatchDiscriminator(channels + labels, config.patch_width, config.patch_levels)
        self.stride = max(config.stride, self.refiner.stride)
        if config.calibration_steps or config.turns[1]:
            self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def parameter_groups(self) -> list[dict[str, Any]]:
        config = self.config
        rates = {self.refiner: 1.0, self.calibrated: config.calibration_lr, self.discriminator: config.discriminator_lr}
        return [{"params": list(net.parameters()), "lr_factor": r, "betas": BETAS} for net, r in rates.items()]

    # ------------------------------------------------------------------ training

    def turn(self) -> Turn:
        """Networks that learn in the current step; it is counted. In evaluation mode, all."""
        config = self.config
        if not self.training or "updates" not in self._buffers:
            return Turn()
        step = int(self.updates.item()) - config.calibration_steps
        self.updates += 1
        discriminates = step >= 0 and step % sum(config.turns) < config.turns[0]
        return Turn(step < 0 or discriminates, step >= 0, discriminates)

    def loss(self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys) -> Losses:
        config, b, turn = self.config, len(image), self.turn()
        h, w = image.shape[-2:]
        u = SeededNoise(keys).uniform((b, 1 + config.samples * config.latent))
        rater = pick_raters(u[:, 0], rater_count.cpu())[:, 0].to(image.device)
        one = torch.arange(b, device=image.device)
        y = raters[one, rater]
        valid = torch.ones_like(y, dtype=torch.bool) if mask is None else mask[one, rater]

        padded = pad_to_multiple(image, self.stride)
        with torch.set_grad_enabled(turn.calibrates and torch.is_grad_enabled()):
            logits = self.calibrated(padded).float()
            cross_entropy = F.cross_entropy(logits[..., :h, :w], y, reduction="none").masked_fill(~valid, 0.0).mean()
        if not turn.refines:
            return {"loss": cross_entropy, "cross_entropy": cross_entropy.detach()}

        log_f = torch.log_softmax(logits.detach(), dim=1)
        code = draw_normal(u[:, 1:]).view(b * config.samples, config.latent).to(image.device)
        rows = one.repeat_interleave(config.samples)
        refined = self.refiner(self.refiner.encode(padded, log_f.exp()), rows, code)[..., :h, :w].float()
        log_p = torch.log_softmax(refined, dim=1).view(b, config.samples, -1, h, w)
        log_mean = log_p.logsumexp(1) - math.log(config.samples)
        kl = (log_mean.exp() * (log_mean - log_f[..., :h, :w])).sum(1)
        calibration = kl.masked_fill(~valid, 0.0).mean()

        known = valid[:, None]
        samples = (log_p[:, : config.judged].exp() * known[:, None]).flatten(0, 1)
        seen = image.repeat_interleave(len(samples) // b, dim=0)
        fixed = {name: p.detach() for name, p in self.discriminator.named_parameters()}
        judged = torch.func.functional_call(self.discriminator, fixed, (seen, samples))
        adversarial = F.softplus(-judged).mean()
        parts = {"cross_entropy": cross_entropy, "adversarial": adversarial, "calibration": calibration}
        total = config.adversarial * adversarial + config.calibration * calibration
        if turn.calibrates:
            total = total + cross_entropy
        if turn.discriminates:
            real = image, one_hot(y, self.num_classes) * known
            game, accuracy = self._game(real, (seen, samples.detach()))
            parts |= {"discriminator": game, "accuracy": accuracy}
            if not self.training or accuracy < config.accuracy_cap:
                total = total + game
        return {"loss": total, **{name: part.detach() for name, part in parts.items()}}

    def _game(self, real: tuple[Tensor, Tensor], fake: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """D's loss and its accuracy; real and fake: images and maps."""
        weight = self.config.gradient_penalty
        with torch.enable_grad():  # of the penalty, also where the loss is only computed
            inputs = [x.detach().requires_grad_() for x in real]
            r = self.discriminator(*inputs)
            penalty = squared_gradient(r, inputs).mean() if weight else r.new_zeros(())
        f = self.discriminator(*fake)
        game = F.softplus(-r).mean() + F.softplus(f).mean() + weight * penalty
        return game, ((r > 0).float().mean() + (f < 0).float().mean()) / 2

    # ------------------------------------------------------------------ sampling

    def drawing(self, image: Tensor, keys: Keys, options: SamplingOptions) -> Drawing:
        h, w = image.shape[-2:]
        padded = pad_to_multiple(image, self.stride)
        encoded = self.refiner.encode(padded, self.calibrated(padded).float().softmax(1))

        def predict(rows: Rows, noise: Noise) -> Tensor:
            code = standard_normal(noise, (len(rows.image), self.config.latent))
            logits: Tensor = self.refiner(encoded, rows.image, code)
            return logits[..., :h, :w].float().softmax(1)

        return one_pass(predict)


def squared_gradient(logits: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """Squared norm "b" of the gradient of each image's mean logit with respect to its inputs; logits: "b 1 h' w'"."""
    gradients = torch.autograd.grad(logits.mean((1, 2, 3)).sum(), inputs, create_graph=True)
    return torch.stack([g.flatten(1).square().sum(1) for g in gradients]).sum(0)
