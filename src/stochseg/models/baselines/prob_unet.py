"""Probabilistic U-Net (Kohl et al., NeurIPS 2018): a U-Net with one Gaussian latent for the whole image.

Idea: a vector z of 6 numbers selects the reading of the image that a sample shows. A prior net predicts p(z | x) from
the image, a posterior net q(z | x, y) from the image and a rater's map; z is tiled, concatenated to the last features
of the U-Net, and a few 1×1 convolutions predict the logits. Training draws z from q, sampling from p.

    loss = Σ_pixels CE(y, f(x, z)) + β KL(q(z | x, y) ‖ p(z | x)) + l2 · ½‖weights‖²,   z ~ q,   β = 10

Differs from the original: the whole loss is divided by the number of pixels, a constant, so that it is in nats per
pixel at any size; log σ is clamped smoothly, against the infinities that users report; the first 1×1 convolution,
linear in its concatenated inputs, is computed in two halves, so that the half for the U-Net's features runs once per
image. Void pixels carry no label in the posterior's input. With `image_tower={}` the features are those of the image
tower of `ccdm-fast`, and prior and posterior work on cells, too.

Cost: U-Net and prior once per image; a sample takes only the 1×1 convolutions.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from stochseg.core import Noise
from stochseg.models.baselines.latent import Channels, LatentConfig, LatentSegmenter, draws_from
from stochseg.models.registry import register
from stochseg.models.sampling import Keys
from stochseg.networks.cell_unet import CellUNet, TowerOption
from stochseg.networks.combiner import Combiner
from stochseg.networks.denoisers import Condition
from stochseg.networks.latents import Gaussian, GaussianHead
from stochseg.networks.pyramids import Contracting, Expanding, conv_stack
from stochseg.networks.shapes import crop, fold, to_slices, unfold
from stochseg.types import DatasetInfo, Losses


class ProbUNetConfig(LatentConfig, TowerOption):
    """Shape of the networks and weights of the loss. Defaults: the paper's LIDC model."""

    channels: Channels = (32, 64, 128, 192, 192)  # of the U-Net and of both encoders
    convs: int = Field(3, ge=1, description="convolutions per level")
    groups: int | None = Field(None, ge=1, description="groups of the normalization; None, as in the paper: none")
    latent: int = Field(6, ge=1, description="dimensions of z")
    combining: int = Field(3, ge=1, description="1×1 convolutions between features with z and logits")
    beta: float = Field(10.0, ge=0, description="weight of the KL against the sum of cross-entropies")
    l2: float = Field(1e-5, ge=0, description="weight of half the squared norm of all parameters")

    @property
    def patch(self) -> int:
        """Pixels per side of the cells on which all networks work."""
        return 1 if self.image_tower is None else self.image_tower.patch

    @property
    def stride(self) -> int:
        """Height and width are padded to multiples of this."""
        return self.common_stride(self.patch * super().stride)


class LatentEncoder(nn.Module):
    """A contracting path, the mean over all positions, and a Gaussian over "b latent"."""

    def __init__(self, in_channels: int, config: ProbUNetConfig, *, volumes: bool = False):
        super().__init__()
        stage = partial(conv_stack, convs=config.convs, groups=config.groups)
        self.patch = config.patch
        self.path = Contracting(in_channels * config.patch**2, config.channels, stage, volumes=volumes)
        self.head = GaussianHead(config.channels[-1], config.latent)

    def features(self, x: Tensor) -> Tensor:
        """Features "b c 1 1" from which the Gaussian is predicted."""
        slices = to_slices(x)
        flat, depth = fold(slices)
        levels: tuple[Tensor, ...] = self.path(F.pixel_unshuffle(flat, self.patch), depth)
        deepest = unfold(levels[-1].mean((-2, -1), keepdim=True), slices)
        return deepest.mean(1) if slices.ndim == 5 else deepest

    def forward(self, x: Tensor) -> Gaussian:
        return self.gaussian(self.features(x))

    def gaussian(self, features: Tensor) -> Gaussian:
        out = self.head(features)
        return Gaussian(out.mean.flatten(1), out.log_sigma.flatten(1))


@register("prob-unet")
class ProbUNet(LatentSegmenter):
    """One latent vector per sample, concatenated to the last features of the U-Net."""

    config_type: ClassVar[type[ProbUNetConfig]] = ProbUNetConfig
    accelerated_modules: tuple[str, ...] = ("contracting", "expanding", "prior.path", "combiner.rest")
    takes_volumes = True
    config: ProbUNetConfig
    training_defaults: ClassVar = {"lr": 1e-4, "final_lr": 1e-6, "batch_size": 32}
    posterior_type: ClassVar[type[LatentEncoder]] = LatentEncoder
    posterior: LatentEncoder

    def __init__(self, info: DatasetInfo, config: ProbUNetConfig):
        super().__init__(info, config)
        stage = partial(conv_stack, convs=config.convs, groups=config.groups)
        volumes = info.spatial_dims == 3
        if config.image_tower is None:
            self.contracting = Contracting(info.image_channels, config.channels, stage, volumes=volumes)
            self.expanding = Expanding(config.channels, stage, volumes=volumes)
        else:
            dims, width = info.spatial_dims, config.channels[0]
            self.tower = CellUNet(info.image_channels, width, config.image_tower, spatial_dims=dims)
            cast(nn.Conv2d, self.tower.head[-1]).reset_parameters()  # zero features would hide z from the gradient
            self.accelerated_modules = ("tower", "prior.path", "combiner.rest")
        self.prior = LatentEncoder(info.image_channels, config, volumes=volumes)
        self.posterior = self.posterior_type(info.image_channels + info.num_classes, config, volumes=volumes)
        width = config.channels[0]
        self.combiner = Combiner(width, config.latent, info.num_classes, config.combining)

    def encode(self, image: Tensor) -> Condition:
        """Features as the combiner takes them, and mean and log σ of the prior."""
        padded = self.padded(image)
        slices = to_slices(padded)
        prior = self.prior(padded)
        prepared = unfold(self.combiner.from_features(self._features(padded)), slices)
        return Condition((prepared, prior.mean, prior.log_sigma), tuple(image.shape[2:]))

    def _features(self, padded: Tensor) -> Tensor:
        """The last features of the U-Net, "b c h w" or "(b d) c h w"."""
        if self.config.image_tower is not None:
            return F.relu(fold(to_slices(self.tower(padded)))[0])
        flat, depth = fold(to_slices(padded))
        *finer, coarsest = self.contracting(flat, depth)
        out: Tensor = self.expanding(coarsest, *finer, depth=depth)
        return out

    def logits(self, condition: Condition, z: Tensor) -> Tensor:
        return crop(self.combiner(condition.tensors[0], z), condition.size).float()

    def decode(self, condition: Condition, noise: Noise) -> Tensor:
        return self.logits(condition, draws_from(noise)(Gaussian(*condition.tensors[1:])))

    def infer(self, seen: Tensor, prior: Gaussian, noise: Noise) -> tuple[Tensor, Tensor]:
        """A draw z "b latent" of the posterior given image and labels, and its KL to the prior, "b"."""
        posterior = self.posterior(seen)
        return draws_from(noise)(posterior), posterior.kl(prior)

    def loss(self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys) -> Losses:
        config, pixels = self.config, image[0, 0].numel()
        target, seen, noise = self.observe(image, raters, mask, rater_count, keys)
        condition = self.encode(image)
        z, divergence = self.infer(seen, Gaussian(*condition.tensors[1:]), noise)
        cross_entropy, kl = target.cross_entropy(self.logits(condition, z)).mean(), divergence.mean()
        norm = torch.stack([p.float().square().sum() for p in self.parameters()]).sum()
        total = cross_entropy + (config.beta * kl + config.l2 * norm / 2) / pixels
        return {"loss": total, "cross_entropy": cross_entropy.detach(), "kl": kl.detach()}
