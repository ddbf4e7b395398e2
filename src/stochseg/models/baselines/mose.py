"""MoSE: a mixture of stochastic experts trained by optimal transport to all raters (Gao et al., ICLR 2023).

Idea: a label map is drawn in two steps, which mode and which variant of it. A gate reads the bottleneck of a U-Net and
gives the experts' probabilities π_1..π_K; expert k has a learned normal distribution N(μ_k, σ_k²) of its own, and a
1×1 network turns the U-Net's features and a code z from it into a label map.

Loss: S samples of each expert are matched with all raters y_j of weights v_j. With c = 1 − soft IoU (foreground, +1 in
both counts) and the coupling

    Γ = argmin Σ Γ_ij c(s_i, y_j)   over   Γ ≥ 0,   Σ_i Γ_ij = v_j,   Σ_j Γ_ij ≤ γ,

the experts minimize Σ Γ_ij c(s_i, y_j), and the gate β KL(T ‖ π), where T_k is the mass of expert k's samples. The
cap γ grows from 1/2 to 1 in training: at first no single sample may serve all raters, in the end each rater takes its
nearest.

Differs from the original:
- the coupling is solved exactly (the released code is greedy);
- the KL is between experts; the released one is between all K·S samples, which differs by a term without gradient, and
  is averaged over them, so that its β = 1 is 1/(K·S) of ours;
- γ grows linearly over `anneal` steps;
- z shifts the features that the 1×1 network sees, where the released code also scales them by a linear map of z; the
  deviations σ begin at 1/K (released: 1/8);
- the features are those of the library's U-Net, with group normalization: the size of the smaller of its two models,
  `base=70` that of the larger.

Sampling: an honest draw takes its expert from the gate, and all samples weigh the same. With `weighted`, as in the
paper, sample i is of expert i mod K and weighs π_k over the number of samples of its expert (normalized if n < K).

Cost: one pass of the U-Net an image, three 1×1 convolutions a sample.

Parameters in print: 9M and 42M.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from stochseg.core import Noise, SeededNoise, draw_categorical, draw_normal
from stochseg.models.base import SegmenterConfig, StochasticSegmenter
from stochseg.models.registry import register
from stochseg.models.sampling import Drawing, Drawn, Key, Report, Rows, SamplingOptions
from stochseg.networks import UNet, UNetConfig, pad_to_multiple
from stochseg.networks.shapes import one_hot
from stochseg.types import DatasetInfo


class MoSEConfig(SegmenterConfig, UNetConfig):
    """The U-Net's shape, the experts, and the transport loss."""

    experts: int = Field(4, ge=1, description="K, the most modes an image can have")
    latent: int = Field(1, ge=1, description="dimensions of an expert's normal distribution")
    samples: int = Field(4, ge=1, description="S, samples of an expert in a training step")
    cap: float = Field(0.5, ge=0.5, le=1, description="γ at the beginning: the most mass that one sample may take")
    anneal: int = Field(10_000, ge=1, description="training steps over which γ grows to 1")
    beta: float = Field(1.0, ge=0, description="weight of the gate's KL")
    weighted: bool = Field(False, description="samples go round the experts and are weighted by the gate")

    @model_validator(mode="after")
    def _enough_samples(self) -> MoSEConfig:
        if self.experts * self.samples < 2 and self.cap < 1:
            raise ValueError("one expert with one sample must take all raters; give more of either, or cap=1")
        return self


class Experts(nn.Module):
    """The gate, the experts' normal distributions, and the 1×1 network all of them share.

    Note: the means begin spread like the K middle quantiles of a standard normal and the deviations at 1/K, so that
    the experts begin as different ones.
    """

    def __init__(self, features: int, bottleneck: int, num_classes: int, config: MoSEConfig):
        super().__init__()
        width, k = features, config.experts
        self.gate = nn.Sequential(
            nn.Linear(bottleneck, bottleneck),
            nn.ReLU(),
            nn.Linear(bottleneck, bottleneck),
            nn.ReLU(),
            nn.Linear(bottleneck, k),
        )
        start = draw_normal((torch.arange(k) + 0.5) / k)
        self.mean = nn.Parameter(start[:, None].repeat(1, config.latent))
        self.log_std = nn.Parameter(torch.full((k, config.latent), 1 / k).log())
        # The first layer sees features and code side by side; kept apart, the features' share is computed once.
        self.of_features = nn.Conv2d(features, width, 1)
        self.of_code = nn.Linear(config.latent, width, bias=False)
        self.rest = nn.Sequential(nn.ReLU(), nn.Conv2d(width, width, 1), nn.ReLU(), nn.Conv2d(width, num_classes, 1))

    def log_gate(self, bottleneck: Tensor) -> Tensor:
        """log π, "b k", of the bottleneck "b c h w"."""
        return torch.log_softmax(self.gate(bottleneck.mean((-2, -1))).float(), dim=1)

    def code(self, expert: Tensor, noise: Tensor) -> Tensor:
        """z ~ N(μ_k, σ_k²). expert: "r" int64; noise: "r latent" standard normal."""
        return self.mean[expert] + self.log_std[expert].exp() * noise

    def decode(self, features: Tensor, rows: Tensor, code: Tensor) -> Tensor:
        """Logits "r l h w". features: "b c h w" after `of_features`; rows: "r", whose features; code: "r latent"."""
        return self.rest(features[rows] + self.of_code(code)[:, :, None, None]).float()


@register("mose")
class MoSE(StochasticSegmenter):
    """A gate over stochastic experts; samples may be weighted."""

    config_type: ClassVar[type[MoSEConfig]] = MoSEConfig
    config: MoSEConfig
    training_defaults: ClassVar = {"lr": 1e-3, "batch_size": 16}
    updates: Tensor

    def __init__(self, info: DatasetInfo, config: MoSEConfig):
        super().__init__(info, config)
        self.unet = UNet(info.image_channels, config.base, config, timed=False)
        self.experts = Experts(config.base, self.unet.channels[-1], info.num_classes, config)
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    @property
    def cap(self) -> float:
        """γ at this point of training."""
        return self.config.cap + (1 - self.config.cap) * min(1.0, self.updates.item() / self.config.anneal)

    def encode(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Once an image: features for the experts "b c h w" and log π "b k"."""
        h, w = image.shape[-2:]
        bottleneck, skips = self.unet.encode(pad_to_multiple(image, self.config.stride))
        features = self.experts.of_features(self.unet.decode(bottleneck, skips)[..., :h, :w])
        return features, self.experts.log_gate(bottleneck)

    def loss(
        self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Sequence[Key]
    ) -> dict[str, Tensor]:
        """Every step uses all raters. A rater with nothing but void takes no part."""
        config, b, device = self.config, len(image), image.device
        per_image = config.experts * config.samples
        features, log_gate = self.encode(image)
        noise = draw_normal(SeededNoise(keys).uniform((b, per_image, config.latent))).to(device)
        expert = torch.arange(config.experts, device=device).repeat_interleave(config.samples).repeat(b)
        rows = torch.arange(b, device=device).repeat_interleave(per_image)
        logits = self.experts.decode(features, rows, self.experts.code(expert, noise.flatten(0, 1)))

        valid = torch.ones_like(raters, dtype=torch.bool) if mask is None else mask
        counted = torch.arange(raters.shape[1], device=device) < rater_count.to(device)[:, None]
        counted &= valid.flatten(2).any(2)
        demand = counted / counted.sum(1, keepdim=True).clamp(min=1)
        cost = soft_iou_cost(logits.softmax(1).unflatten(0, (b, per_image)), raters, valid)
        plan = coupling(cost.detach(), demand, self.cap)
        if self.training:
            self.updates += 1

        transport = (plan * cost).sum((1, 2)).mean()
        share = plan.sum(2).unflatten(1, (config.experts, config.samples)).sum(2)
        gate = (torch.xlogy(share, share) - share * log_gate).sum(1).mean()
        return {
            "loss": transport + config.beta * gate,
            "transport": transport.detach(),
            "gate": gate.detach(),
        }

    def drawing(self, image: Tensor, keys: Sequence[Key], options: SamplingOptions) -> Drawing:
        config, n = self.config, options.n
        features, log_gate = self.encode(image)
        equal = torch.full((len(image), n), 1 / n, device=image.device)

        def draw(rows: Rows, noise: Noise, report: Report) -> Drawn:
            u = noise.uniform((len(rows.image), 1 + config.latent))
            if config.weighted:
                expert = rows.sample % config.experts
            else:
                expert = draw_categorical(log_gate[rows.image, :, None], u[:, :1])[:, 0]
            code = self.experts.code(expert, draw_normal(u[:, 1:]))
            report(0)
            return Drawn(self.experts.decode(features, rows.image, code).softmax(1))

        return Drawing(draw, weights=self._gate_weights(log_gate, n) if config.weighted else equal)

    @property
    def independent(self) -> bool:
        return not self.config.weighted

    def _gate_weights(self, log_gate: Tensor, n: int) -> Tensor:
        """Weights "b n" of samples that go round the experts."""
        expert = torch.arange(n, device=log_gate.device) % self.config.experts
        weights = log_gate.exp()[:, expert] / torch.bincount(expert)[expert]
        return weights / weights.sum(1, keepdim=True)


def soft_iou_cost(p: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """1 − soft IoU, mean over the foreground classes, between all samples and raters, "b n k".

    p: "b n l h w" probabilities; labels: "b k h w"; valid: "b k h w", False = void, which no count includes.
    """
    b, k = labels.shape[:2]
    num_classes = p.shape[2]
    target = one_hot(labels.flatten(0, 1), num_classes, p.dtype).unflatten(0, (b, k))[:, :, 1:].flatten(3)
    known = valid.flatten(2).to(p.dtype)
    target = target * known[:, :, None]
    p = p[:, :, 1:].flatten(3)
    with torch.autocast(p.device.type, enabled=False):  # 16 bits cannot count pixels
        both = torch.einsum("bnlp,bklp->bnkl", p, target)
        either = torch.einsum("bnlp,bkp->bnkl", p, known) + target.sum(3)[:, None] - both
    return 1 - ((both + 1) / (either + 1)).mean(3)


def coupling(cost: Tensor, demand: Tensor, cap: float) -> Tensor:
    """The cheapest plan "b n k" that brings each rater its demand and takes at most `cap` >= 1/2 from a sample.

    cost: "b n k", n >= 2 unless cap is 1; demand: "b k", sum at most 1.

    Exact: let each rater take its nearest sample. As cap >= 1/2, at most one sample then gives more than cap, and
    whatever is taken off it (at most 1 − cap in all) fits on any other. Under the cap of that sample alone the best is
    to move its excess to the raters' second nearest samples where that costs least more; and as this breaks no other
    cap, it is the best under all of them.
    """
    if cap >= 1:
        return torch.zeros_like(cost).scatter_(1, cost.argmin(1, keepdim=True), demand[:, None].to(cost.dtype))
    demand = demand.to(cost.dtype)
    price, place = cost.topk(2, dim=1, largest=False)
    plan = torch.zeros_like(cost).scatter_(1, place[:, :1], demand[:, None])
    most, fullest = plan.sum(2).max(1)
    excess = (most - cap).clamp(min=0)[:, None]
    held = torch.where(place[:, 0] == fullest[:, None], demand, 0.0)
    order = torch.where(held > 0, price[:, 1] - price[:, 0], torch.inf).argsort(1)
    amount = held.gather(1, order)
    moved = torch.minimum((excess - (amount.cumsum(1) - amount)).clamp(min=0), amount)
    moved = torch.zeros_like(moved).scatter_(1, order, moved)[:, None]
    return plan.scatter_add_(1, place[:, :1], -moved).scatter_add_(1, place[:, 1:], moved)
