"""MoSE: a mixture of stochastic experts trained by optimal transport to all raters (Gao et al., ICLR 2023).

Idea: a label map is drawn in two steps: its mode, then a variant of the mode. A gate reads the bottleneck of a U-Net
and predicts the experts' probabilities π_1..π_K; expert k has a learned normal distribution N(μ_k, σ_k²), and a 1×1
network turns the U-Net's features and a code z from it into a label map.

Loss: S samples of each expert are matched with all raters y_j of weights v_j. With c = 1 − soft IoU (foreground, +1 in
both counts) and the coupling

    Γ = argmin Σ Γ_ij c(s_i, y_j)   over   Γ ≥ 0,   Σ_i Γ_ij = v_j,   Σ_j Γ_ij ≤ γ,

the experts minimize Σ Γ_ij c(s_i, y_j), and the gate β KL(T ‖ π), where T_k is the mass of expert k's samples, with β =
1/16. The cap γ grows from 1/2 to 1 in training: at first no single sample may serve all raters, at the end each rater
takes its nearest.

Differs from the original:
- the coupling is solved exactly (the released code is greedy);
- the KL is between experts; the released one is between all K·S = 16 samples, which differs by a term without
  gradient, and is averaged over them, so that its β = 1 is the default here;
- γ grows linearly over `anneal` steps;
- z shifts the features that the 1×1 network sees, whereas the released code also scales them by a linear map of z; the
  deviations σ start at 1/K (released: 1/8);
- the features are those of this library's U-Net, with group normalization: the size of the smaller of its two models;
  `base=70` gives that of the larger. (The released LIDC model has 9.3M parameters, which are 37 megabytes: the larger
  number in print may count megabytes.)

Sampling: by default a sample draws its expert from the gate, and all samples have the same weight. With `weighted`, as
in the paper, sample i uses expert i mod K and its weight is π_k over the number of samples of that expert (normalized
if n < K).

Cost: one pass of the U-Net per image, three 1×1 convolutions per sample.

Published parameters: 9M and 42M.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from stochseg.core import Noise, SeededNoise, draw_categorical, draw_normal
from stochseg.models.base import StochasticSegmenter
from stochseg.models.config import SegmenterConfig
from stochseg.models.registry import register
from stochseg.models.sampling import Drawing, Keys, Rows, SamplingOptions, broken_rows, mark_broken, one_pass
from stochseg.networks import BackboneConfig, CellUNet, UNet, pad_to_multiple
from stochseg.networks.shapes import crop, one_hot
from stochseg.types import DatasetInfo, Losses


class MoSEConfig(SegmenterConfig, BackboneConfig):
    """Shape of the U-Net, the experts, and the transport loss."""

    experts: int = Field(4, ge=1, description="K, the most modes an image can have")
    latent: int = Field(1, ge=1, description="dimensions of an expert's normal distribution")
    samples: int = Field(4, ge=1, description="S, samples per expert in a training step")
    cap: float = Field(0.5, ge=0.5, le=1, description="γ at the start: the most mass that one sample may take")
    anneal: int = Field(10_000, ge=1, description="training steps over which γ grows to 1")
    beta: float = Field(1 / 16, ge=0, description="weight of the gate's KL; released: 1 / (experts · samples)")
    weighted: bool = Field(False, description="samples cycle through the experts and are weighted by the gate")

    @property
    def raters_per_image(self) -> int | None:
        """Raters of an image that one training step draws; None: it takes all of them."""
        return None

    @model_validator(mode="after")
    def _enough_samples(self) -> MoSEConfig:
        if self.experts * self.samples < 2 and self.cap < 1:
            raise ValueError("one expert with one sample must take all raters; use more of either, or cap=1")
        return self


class FeatureUNet(UNet):
    """A U-Net without steps that returns its bottleneck, too."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Map x "b c h w" to "b out h w" and the bottleneck "b c' h' w'"."""
        bottleneck, skips = self.encode(x)
        return self.decode(bottleneck, skips), bottleneck


class FeatureCellUNet(CellUNet):
    """An image tower that returns its bottleneck, too."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Map x "b c h w" to "b out h w" and the bottleneck "b c' h' w'"."""
        return self.with_bottleneck(x)


class Experts(nn.Module):
    """The gate, the experts' normal distributions, and the 1×1 network all of them share.

    Note: the means start at the K middle quantiles of a standard normal and the deviations at 1/K, so that the experts
    start different.
    """

    def __init__(self, features: int, bottleneck: int, num_classes: int, config: MoSEConfig):
        super().__init__()
        k = config.experts
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
        # The first layer is linear in features and code; split in two, its part for the features runs once per image.
        self.of_features = nn.Conv2d(features, features, 1)
        self.of_code = nn.Linear(config.latent, features, bias=False)
        layers = [nn.ReLU(), nn.Conv2d(features, features, 1), nn.ReLU(), nn.Conv2d(features, num_classes, 1)]
        self.rest = nn.Sequential(*layers)

    def log_gate(self, bottleneck: Tensor) -> Tensor:
        """log π, "b k", of the bottleneck "b c h w"."""
        return torch.log_softmax(self.gate(bottleneck.mean((-2, -1))).float(), dim=1)

    def code(self, expert: Tensor, noise: Tensor) -> Tensor:
        """z ~ N(μ_k, σ_k²). expert: "r" int64; noise: "r latent" standard normal."""
        return self.mean[expert] + self.log_std[expert].exp() * noise

    def decode(self, features: Tensor, rows: Tensor, code: Tensor) -> Tensor:
        """Logits "r l h w". features: "b c h w" after `of_features`; rows: "r", index of the features of
        each; code: "r latent"."""
        logits: Tensor = self.rest(features[rows] + self.of_code(code)[:, :, None, None])
        return logits.float()


@register("mose")
class MoSE(StochasticSegmenter):
    """A gate over stochastic experts; samples can be weighted."""

    config_type: ClassVar[type[MoSEConfig]] = MoSEConfig
    accelerated_modules = ("unet", "experts.rest")
    config: MoSEConfig
    training_defaults: ClassVar = {"lr": 1e-3, "batch_size": 16}
    updates: Tensor

    def __init__(self, info: DatasetInfo, config: MoSEConfig):
        super().__init__(info, config)
        self.unet: FeatureUNet | FeatureCellUNet
        if config.image_tower is None:
            self.unet = FeatureUNet(info.image_channels, config.base, config, timed=False)
        else:
            self.unet = FeatureCellUNet(info.image_channels, config.base, config.image_tower)
        self.experts = Experts(config.base, self.unet.channels[-1], info.num_classes, config)
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    @property
    def cap(self) -> float:
        """γ at the current training step."""
        return self.config.cap + (1 - self.config.cap) * min(1.0, self.updates.item() / self.config.anneal)

    def encode(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Features for the experts "b c h w" and log π "b k"; runs once per image."""
        out, bottleneck = self.unet(pad_to_multiple(image, self.config.stride))
        return self.experts.of_features(crop(out, image.shape[2:])), self.experts.log_gate(bottleneck)

    def loss(self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys) -> Losses:
        """Match samples with all raters; a rater whose map is void everywhere takes no part."""
        config, b, device = self.config, len(image), image.device
        per_image = config.experts * config.samples
        features, log_gate = self.encode(image)
        noise = draw_normal(SeededNoise(keys).uniform((b, per_image, config.latent))).to(device)
        expert = torch.arange(config.experts, device=device).repeat_interleave(config.samples).repeat(b)
        rows = torch.arange(b, device=device).repeat_interleave(per_image)
        logits = self.experts.decode(features, rows, self.experts.code(expert, noise.flatten(0, 1)))

        mask = torch.ones_like(raters, dtype=torch.bool) if mask is None else mask
        present = torch.arange(raters.shape[1], device=device) < rater_count.to(device)[:, None]
        present &= mask.flatten(2).any(2)
        demand = present / present.sum(1, keepdim=True).clamp(min=1)
        cost = soft_iou_cost(logits.softmax(1).view(b, per_image, *logits.shape[1:]), raters, mask)
        plan = coupling(cost.detach(), demand, self.cap)
        if self.training:
            self.updates += 1

        transport = (plan * cost).sum((1, 2)).mean()
        mass = plan.sum(2).view(b, config.experts, config.samples).sum(2)
        gate = (torch.xlogy(mass, mass) - mass * log_gate).sum(1).mean()
        return {"loss": transport + config.beta * gate, "transport": transport.detach(), "gate": gate.detach()}

    def drawing(self, image: Tensor, keys: Keys, options: SamplingOptions) -> Drawing:
        config, n = self.config, options.n
        features, log_gate = self.encode(image)
        equal = torch.full((len(image), n), 1 / n, device=image.device)

        def predict(rows: Rows, noise: Noise) -> Tensor:
            u = noise.uniform((len(rows.image), 1 + config.latent))
            if config.weighted:
                expert = rows.sample % config.experts
            else:
                expert = draw_categorical(log_gate[rows.image, :, None], u[:, :1])[:, 0]
            code = self.experts.code(expert, draw_normal(u[:, 1:]))
            probabilities = self.experts.decode(features, rows.image, code).softmax(1)
            return mark_broken(probabilities, broken_rows(log_gate[rows.image]))

        return one_pass(predict, self._gate_weights(log_gate, n) if config.weighted else equal)

    @property
    def independent(self) -> bool:
        return not self.config.weighted

    def _gate_weights(self, log_gate: Tensor, n: int) -> Tensor:
        """Weights "b n" of samples that cycle through the experts."""
        expert = torch.arange(n, device=log_gate.device) % self.config.experts
        weights = log_gate.exp()[:, expert] / torch.bincount(expert)[expert]
        return weights / weights.sum(1, keepdim=True)


def soft_iou_cost(p: Tensor, raters: Tensor, mask: Tensor) -> Tensor:
    """1 − soft IoU, mean over the foreground classes, between all samples and raters, "b n k".

    p: "b n l h w" probabilities; raters: "b k h w"; mask: "b k h w", False = void, excluded from all counts.
    """
    b, k = raters.shape[:2]
    num_classes = p.shape[2]
    target = one_hot(raters.flatten(0, 1), num_classes, p.dtype)
    target = target.view(b, k, *target.shape[1:])[:, :, 1:].flatten(3)
    labeled = mask.flatten(2).to(p.dtype)
    target = target * labeled[:, :, None]
    p = p[:, :, 1:].flatten(3)
    with torch.autocast(p.device.type, enabled=False):  # 16 bits cannot count pixels
        both = torch.einsum("bnlp,bklp->bnkl", p, target)
        either = torch.einsum("bnlp,bkp->bnkl", p, labeled) + target.sum(3)[:, None] - both
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
