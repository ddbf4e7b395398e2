"""Pionono: every rater is a Gaussian over the codes of one head (Schmidt et al., ICCV 2023).

Idea: for data whose raters have names, and need not have labeled every image. Rater r has a learned normal distribution
over codes z of 8 numbers; z is tiled, concatenated to the last features of a segmentation network, and 1×1 convolutions
predict that rater's map. The means tell the raters apart, the covariances say how much one rater varies.

    loss = E_z CE(y_r, head(features(x), z)) + β KL( N(μ_r, Σ_r) ‖ N(0, 2² I) ),   z ~ N(μ_r, Σ_r),   β = 5e-4

for the label map y_r of one rater per image and step, by the mean over 5 draws of z. A sample of "anyone" draws a rater
with the frequency of their label maps in training, then z; `sample(image, rater=NAME)` draws z of one rater. Raters
without a name share one more Gaussian: without any names, the model is a U-Net with one code that no image informs.

Note that z is independent of the map given its rater: the loss is least when the head ignores how z varies around μ_r.
What is learned are differences between raters; draws of one rater differ as far as the KL keeps Σ_r wide and the head
does not know better. With `average=logits` nothing punishes such differences, and nothing teaches them.

Differs from the original:
- the mean over the draws is that of their cross-entropies, as in the evidence bound (released: the loss of the mean
  logits, `average=logits`), and the loss is cross-entropy (released configurations: a generalized Dice loss);
- the U-Net is that of this library, from random weights, with 16 features as in the released one (ResNet-34 with
  ImageNet weights);
- the diagonal of the covariance's factor is an exponential, so that it stays positive;
- the released code predicts with the mean of one chosen "gold" rater; here every rater can be named.

Cost: the U-Net once per image, three 1×1 convolutions of 16 channels per sample.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from stochseg.core import Noise, SeededNoise, draw_normal
from stochseg.models.config import SegmenterConfig
from stochseg.models.rater_mixture import RaterSegmenter, draw_raters
from stochseg.models.raters import Target, one_rater
from stochseg.models.registry import register
from stochseg.models.sampling import Drawing, Keys, Rows, SamplingOptions, one_pass
from stochseg.networks import BackboneConfig, make_backbone, pad_to_multiple
from stochseg.networks.combiner import Combiner
from stochseg.networks.shapes import crop, fold, to_slices, unfold
from stochseg.types import DatasetInfo, Losses


class PiononoConfig(SegmenterConfig, BackboneConfig):
    """Shape of the networks, and the raters' distributions."""

    features: int = Field(16, ge=1, description="channels of the features that z joins")
    latent: int = Field(8, ge=1, description="dimensions of z")
    combining: int = Field(2, ge=1, description="1×1 convolutions between features with z and the last one")
    draws: int = Field(5, ge=1, description="codes z per image and training step")
    average: Literal["losses", "logits"] = Field(
        "losses", description="what is averaged over the codes; released: logits"
    )
    beta: float = Field(5e-4, ge=0, description="weight of the KL against the cross-entropy in nats per pixel")
    prior_sigma: float = Field(2.0, gt=0, description="deviation of the prior, and of all raters at the start")
    spread: float = Field(8.0, ge=0, description="deviation of the raters' means at the start")
    rater_lr_factor: float = Field(200.0, gt=0, description="learning rate of the distributions, in that of the run")
    l2: float = Field(1e-5, ge=0, description="weight of the norms of the head's parameters")


class RaterGaussians(nn.Module):
    """A normal distribution N(μ_r, L_r L_rᵀ) per rater; the diagonal of `raw` is log diag(L_r)."""

    def __init__(self, raters: int, config: PiononoConfig):
        super().__init__()
        self.prior_sigma = config.prior_sigma
        self.mean = nn.Parameter(config.spread * torch.randn(raters, config.latent))
        start = torch.full((config.latent,), config.prior_sigma).log().diag()
        self.raw = nn.Parameter(start.repeat(raters, 1, 1))

    @property
    def factor(self) -> Tensor:
        """L, lower triangular, "r latent latent"."""
        return self.raw.tril(-1) + torch.diag_embed(self.raw.diagonal(dim1=-2, dim2=-1).exp())

    def draw(self, rater: Tensor, eps: Tensor) -> Tensor:
        """Codes z "m latent" of raters "m" from standard normal numbers "m latent"."""
        return self.mean[rater] + torch.einsum("mij,mj->mi", self.factor[rater], eps.to(self.mean))

    def kl(self) -> Tensor:
        """KL to the prior N(0, σ² I) in nats, "r"."""
        d, variance = self.mean.shape[1], self.prior_sigma**2
        square = self.factor.square().sum((1, 2)) + self.mean.square().sum(1)
        log_det = self.raw.diagonal(dim1=-2, dim2=-1).sum(1)
        prior: Tensor = torch.tensor(self.prior_sigma).log()
        return 0.5 * (square / variance - d) + d * prior - log_det


@register("pionono")
class Pionono(RaterSegmenter):
    """A Gaussian code per rater, concatenated to the last features of a U-Net."""

    config_type: ClassVar[type[PiononoConfig]] = PiononoConfig
    accelerated_modules = ("unet", "combiner.rest")
    takes_volumes = True
    config: PiononoConfig
    training_defaults: ClassVar = {"lr": 1e-4, "batch_size": 3}

    def __init__(self, info: DatasetInfo, config: PiononoConfig):
        super().__init__(info, config)
        self.unet = make_backbone(info.image_channels, config.features, config, spatial_dims=info.spatial_dims)
        self.combiner = Combiner(config.features, config.latent, info.num_classes, config.combining)
        self.gaussians = RaterGaussians(len(self.mixture), config)

    def parameter_groups(self) -> list[dict[str, Any]]:
        own = list(self.gaussians.parameters())
        rest = [*self.unet.parameters(), *self.combiner.parameters()]
        return [{"params": rest}, {"params": own, "lr_factor": self.config.rater_lr_factor}]

    def encode(self, image: Tensor) -> Tensor:
        """Features as the combiner takes them, "b c h w" or slices "b d c h w"; runs once per image."""
        slices = to_slices(self.unet(pad_to_multiple(image, self.config.stride)))
        return crop(unfold(self.combiner.from_features(fold(slices)[0]), slices), image.shape[-2:])

    def loss_by_rater(
        self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys, rater_index: Tensor
    ) -> Losses:
        config, noise = self.config, SeededNoise(keys, image.device)
        target = one_rater(raters, mask, rater_count, noise, rater_index)
        assert target.rater is not None
        if self.training:
            self.mixture.observe(target.rater)
        rows = torch.arange(len(image), device=image.device).repeat_interleave(config.draws)
        eps = draw_normal(noise.uniform((len(image), config.draws, config.latent)))
        z = self.gaussians.draw(target.rater[rows], eps.flatten(0, 1))
        logits, compared = self.combiner(self.encode(image)[rows], z).float(), target
        if config.average == "logits":
            logits = torch.unflatten(logits, 0, (len(image), config.draws)).mean(1)
        else:
            compared = Target(target.labels[rows], None if target.mask is None else target.mask[rows])
        cross_entropy = compared.cross_entropy(logits).mean()
        kl = self.gaussians.kl()[target.rater].mean()
        norm = torch.stack([p.float().norm() for p in self.combiner.parameters()]).sum()
        total = cross_entropy + config.beta * kl + config.l2 * norm
        return {"loss": total, "cross_entropy": cross_entropy.detach(), "kl": kl.detach()}

    def drawing(self, image: Tensor, keys: Keys, options: SamplingOptions) -> Drawing:
        prepared, latent, shares = self.encode(image), self.config.latent, self.rater_probabilities(options)

        def predict(rows: Rows, noise: Noise) -> Tensor:
            u = noise.uniform((len(rows.image), 1 + latent))
            z = self.gaussians.draw(draw_raters(shares, u[:, 0]), draw_normal(u[:, 1:]))
            logits: Tensor = self.combiner(prepared[rows.image], z)
            return logits.float().softmax(1)

        return one_pass(predict)
