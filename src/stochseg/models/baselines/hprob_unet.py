"""Hierarchical Probabilistic U-Net (Kohl et al., 2019): spatial latents at the coarsest scales of a residual U-Net.

Idea: the decoder of the U-Net joins a latent map of one channel at each of its four coarsest scales. Each is drawn
given the image and all coarser latents, concatenated to the decoder's features, and the decoder continues. A posterior
net of the same shape, which also sees a rater's map, provides the latents of training; the prior is the decoder itself.

    loss = λ (Σ_{p in P} CE_p - κ |P|) + Σ_s KL(q(z_s | z_<s, x, y) ‖ p(z_s | z_<s, x)),   z ~ q

P are 2% of the pixels, drawn without replacement with probabilities that grow with their cross-entropy (Gumbel
noise on log CE), or simply the hardest ones. GECO (Rezende and Viola 2018) sets λ: it grows while the moving average of
the cross-entropy per picked pixel is above κ, and shrinks while it is below.

Differs from the original: λ follows the multiplicative rule of GECO, λ ← λ exp(rate · (average - κ)), and is not a
parameter of the optimizer: positive by construction, the same for any optimizer, and saved with the weights; residual
branches start at zero; a residual block has two convolutions of half its channels (released: three), and there is no
L2 penalty (released: 1e-5); log σ is clamped smoothly; pixels are picked per image, whereas the original picks among
those of the batch, so that an image's loss does not depend on its neighbors; the whole loss is divided by the number of
pixels picked in a map without void, a constant. Void pixels carry no label in the posterior's input and are never
picked. The 8 scales are those of 128×128 pixels; a smaller image is padded to a power of two only, and its side of one
pixel stays one pixel at the scales that are left, whose latents are numbers for the whole image.

Cost: the encoder once per image; a sample takes the decoder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.distributed as dist
from pydantic import Field
from torch import Tensor, nn

from stochseg.core import Noise
from stochseg.errors import UserError
from stochseg.models.baselines.latent import Channels, LatentConfig, LatentSegmenter, draws_from, given
from stochseg.models.registry import register
from stochseg.models.sampling import Keys
from stochseg.networks.blocks import zeroed
from stochseg.networks.denoisers import Condition
from stochseg.networks.latents import Choose, Gaussian, GaussianHead
from stochseg.networks.pyramids import Contracting, Expanding, conv, enlarged
from stochseg.networks.shapes import crop, pad_to_multiple
from stochseg.types import DatasetInfo, Losses

MULTIPLIER_RANGE = (1e-5, 1e5)
"""Limits of GECO's λ: from beyond them it would take too long to return."""


class HProbUNetConfig(LatentConfig):
    """Shape of the networks and GECO. Defaults: the paper's LIDC model, except `convs`, which is 3 there."""

    channels: Channels = (24, 48, 96, 192, 192, 192, 192, 192)
    blocks: int = Field(3, ge=1, description="residual blocks per scale")
    convs: int = Field(2, ge=1, description="3×3 convolutions per residual block, of half its channels")
    latents: tuple[int, ...] = Field((1, 1, 1, 1), min_length=1, description="channels per scale, coarsest first")
    kappa: float = Field(0.05, gt=0, description="cross-entropy per picked pixel that GECO aims at")
    decay: float = Field(0.99, ge=0, lt=1, description="decay of the moving average of the cross-entropy")
    rate: float = Field(0.01, gt=0, description="rate of GECO's multiplier")
    share: float = Field(0.02, gt=0, le=1, description="fraction of the pixels that enter the loss")
    pick: Literal["gumbel", "hardest"] = Field("gumbel", description="how these pixels are chosen")


class BottleneckBlock(nn.Module):
    """ReLU and 3×3 convolution of half the channels, `convs` times; 1×1 back to all channels; plus the input."""

    def __init__(self, in_channels: int, out_channels: int, convs: int):
        super().__init__()
        half = max(1, out_channels // 2)
        layers: list[nn.Module] = []
        for c in [in_channels] + [half] * (convs - 1):
            layers += [nn.ReLU(), conv(c, half)]
        self.branch = nn.Sequential(*layers, zeroed(nn.Conv2d(half, out_channels, 1)))
        self.skip = nn.Identity() if in_channels == out_channels else nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.skip(x) + self.branch(x)
        return out


def residual_stage(in_channels: int, out_channels: int, blocks: int, convs: int) -> nn.Sequential:
    widths = [in_channels] + [out_channels] * (blocks - 1)
    return nn.Sequential(*[BottleneckBlock(c, out_channels, convs) for c in widths])


class LatentUNet(nn.Module):
    """An encoder, and the part of a decoder that has latents."""

    def __init__(self, in_channels: int, config: HProbUNetConfig):
        super().__init__()
        stage = partial(residual_stage, blocks=config.blocks, convs=config.convs)
        self.encoder = Contracting(in_channels, config.channels, stage)
        widths = config.channels[::-1][: len(config.latents)]  # coarsest first
        self.heads = nn.ModuleList([GaussianHead(c, z) for c, z in zip(widths, config.latents, strict=True)])
        joined = zip(widths[:-1], config.latents[:-1], widths[1:], strict=True)
        self.stages = nn.ModuleList([stage(a + z + b, b) for a, z, b in joined])

    def descend(self, features: Sequence[Tensor], choose: Choose) -> tuple[Tensor, list[Gaussian], list[Tensor]]:
        """Decode features of all scales, finest first, down to the last latent scale. Returns its features concatenated
        with its latents; the distributions and the chosen latents, both coarsest first."""
        h, gaussians, latents = features[-1], [], []
        for i, head in enumerate(self.heads):
            if i > 0:
                finer = features[-1 - i]
                h = self.stages[i - 1](torch.cat([enlarged(h, finer, "nearest"), finer], dim=1))
            gaussians.append(head(h))
            latents.append(choose(gaussians[-1]))
            h = torch.cat([h, latents[-1]], dim=1)
        return h, gaussians, latents


class Geco(nn.Module):
    """The multiplier λ of a constraint "cost ≤ target" and the moving average it follows; both are saved."""

    multiplier: Tensor
    average: Tensor
    updates: Tensor

    def __init__(self, target: float, decay: float, rate: float):
        super().__init__()
        self.target, self.decay, self.rate = target, decay, rate
        self.register_buffer("multiplier", torch.ones(()))
        self.register_buffer("average", torch.zeros(()))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def update(self, cost: Tensor) -> None:
        """Raise λ if the average cost is above the target, lower it if it is below."""
        decay = self.decay if self.updates > 0 else 0.0  # the first cost is its own average
        self.average.mul_(decay).add_((1 - decay) * cost)
        self.multiplier.mul_(torch.exp(self.rate * (self.average - self.target))).clamp_(*MULTIPLIER_RANGE)
        self.updates += 1


def picked_pixels(terms: Tensor, mask: Tensor | None, fraction: float, u: Tensor | None = None) -> Tensor:
    """Pixels that enter the loss, "b h w" bool: the hardest fraction of an image's labeled pixels (rounded up).

    terms: "b h w", cross-entropy; u: "b h w" in [0, 1), for a draw without replacement with probabilities that grow
    with the cross-entropy; without it, the hardest.
    """
    score = terms.detach().flatten(1)
    if u is not None:  # the k largest of log p + Gumbel noise are k draws without replacement
        gumbel = -torch.log(-torch.log(u.flatten(1).clamp(2.0**-25, 1 - 2.0**-24)))
        score = torch.log(score.clamp(min=1e-30)) + gumbel
    pixels = score.shape[1]
    count = torch.full((len(score), 1), pixels, device=score.device)
    if mask is not None:
        score = score.masked_fill(~mask.flatten(1), -math.inf)
        count = mask.flatten(1).sum(1, keepdim=True)
    count = torch.ceil(fraction * count - 1e-6).long()
    order = score.argsort(dim=1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(1, order, torch.arange(pixels, device=order.device).expand_as(order))
    return (rank < count).view_as(terms)


@register("hprob-unet")
class HProbUNet(LatentSegmenter):
    """Latent maps at the coarsest scales of the decoder, trained with GECO."""

    config_type: ClassVar[type[HProbUNetConfig]] = HProbUNetConfig
    accelerated_modules = ("prior.encoder", "expanding")
    config: HProbUNetConfig
    training_defaults: ClassVar = {"lr": 1e-4, "batch_size": 32}

    def __init__(self, info: DatasetInfo, config: HProbUNetConfig):
        super().__init__(info, config)
        scales, latents = len(config.channels), len(config.latents)
        if latents >= scales:
            raise UserError(
                f"{latents} latent scales need at least {latents + 1} scales, got {scales} channels; use fewer "
                "latents or more channels"
            )
        self.prior = LatentUNet(info.image_channels, config)
        self.posterior = LatentUNet(info.image_channels + info.num_classes, config)
        stage = partial(residual_stage, blocks=config.blocks, convs=config.convs)
        rest = config.channels[: scales - latents + 1]
        self.expanding = Expanding(rest, stage, coarsest=rest[-1] + config.latents[-1], mode="nearest")
        self.head = nn.Conv2d(config.channels[0], info.num_classes, 1)
        self.geco = Geco(config.kappa, config.decay, config.rate)

    def padded(self, x: Tensor, mode: str = "replicate") -> Tensor:
        """Maps in a size that the scales can halve until a side is one pixel, where it stays."""
        h, w = (min(self.config.stride, 1 << (side - 1).bit_length()) for side in x.shape[-2:])
        return pad_to_multiple(x, (h, w), mode)

    def encode(self, image: Tensor) -> Condition:
        features = self.prior.encoder(self.padded(image))
        return Condition(features, tuple(image.shape[2:]))

    def logits(self, condition: Condition, choose: Choose) -> tuple[Tensor, list[Gaussian]]:
        """Logits for the latents that `choose` returns, and the prior's distributions, coarsest first."""
        joined, gaussians, _ = self.prior.descend(condition.tensors, choose)
        finer = condition.tensors[: len(self.expanding.stages)]
        return crop(self.head(self.expanding(joined, *finer)), condition.size).float(), gaussians

    def decode(self, condition: Condition, noise: Noise) -> Tensor:
        return self.logits(condition, draws_from(noise))[0]

    def loss(self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys) -> Losses:
        config = self.config
        target, seen, noise = self.observe(image, raters, mask, rater_count, keys)
        _, posterior, latents = self.posterior.descend(self.posterior.encoder(seen), draws_from(noise))
        logits, prior = self.logits(self.encode(image), given(latents))
        terms = target.cross_entropy(logits)
        u = noise.uniform(terms.shape) if config.pick == "gumbel" else None
        picked = picked_pixels(terms, target.mask, config.share, u)
        excess = ((terms - config.kappa) * picked).sum((1, 2))
        kl = torch.stack([q.kl(p) for q, p in zip(posterior, prior, strict=True)]).sum(0)
        most = math.ceil(config.share * terms[0].numel() - 1e-6)
        multiplier = self.geco.multiplier.clone()
        total = (multiplier * excess + kl).mean() / most
        sums = torch.stack([(terms * picked).sum(), picked.sum()]).detach()
        if self.training and dist.is_available() and dist.is_initialized():
            dist.all_reduce(sums)  # all processes follow the whole batch
        cross_entropy = sums[0] / sums[1].clamp(min=1)
        if self.training and bool(sums[1] > 0):
            self.geco.update(cross_entropy)
        return {"loss": total, "cross_entropy": cross_entropy, "kl": kl.mean().detach(), "multiplier": multiplier}
