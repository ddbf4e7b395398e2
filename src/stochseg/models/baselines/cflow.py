"""cFlow: a probabilistic U-Net with a flow for its posterior (Selvan et al., 2020).

Idea: as in the Probabilistic U-Net, a latent vector z selects the reading of the image that a sample shows. Its
posterior given image and labels is not a single Gaussian but a Gaussian sent through K planar flows whose parameters
the posterior's encoder predicts, so that it can be skewed or multimodal.

    z_0 ~ q0 = N(m(x, y), s(x, y)²),   z_k = z_{k-1} + û_k tanh(w_k·z_{k-1} + b_k),   w_k·û_k > -1
    loss = CE(y, decoder(x, z_K)) + β KL,   KL ≈ log q0(z_0) - sum_k log |det dz_k/dz_{k-1}| - log p(z_K | x)

with one draw z_0; cross-entropy is summed over pixels, and the whole is divided by their number: nats per pixel.
Sampling draws z from the Gaussian prior p(z | x): the flow is used only in training.

Differs from the original: log q0 is evaluated at z_0, whereas the released code takes it at z_K or uses the KL of the
two Gaussians, neither of which is the KL of the flow. Flows are predicted by one perceptron without batch
normalization, and cross-entropy over any number of classes replaces its binary form. Of the two published flows only
the planar one is implemented, not Glow. There is no L2 penalty (released: 1e-5). The rest is that of `prob-unet`: its
networks, its limit of log σ, and void pixels that carry no label in the posterior's input.

Cost: U-Net and prior once per image; a sample costs a few 1×1 convolutions.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from stochseg.core import Noise
from stochseg.models.baselines.latent import draws_from
from stochseg.models.baselines.prob_unet import LatentEncoder, ProbUNet, ProbUNetConfig
from stochseg.models.registry import register
from stochseg.networks.flows import PlanarFlows
from stochseg.networks.latents import Gaussian


class CFlowConfig(ProbUNetConfig):
    """Options of the Probabilistic U-Net, and the flows. Defaults: the LIDC model."""

    flows: int = Field(4, ge=1, description="planar flows of the posterior")
    beta: float = Field(1.0, ge=0, description="weight of the KL against the sum of cross-entropies")
    l2: float = Field(0.0, ge=0, description="weight of half the squared norm of all parameters")


class FlowPosterior(LatentEncoder):
    """q(z | x, y): a Gaussian sent through flows, all predicted from the same features."""

    def __init__(self, in_channels: int, config: CFlowConfig, *, volumes: bool = False):
        super().__init__(in_channels, config, volumes=volumes)
        self.flows = PlanarFlows(config.channels[-1], config.latent, config.flows)

    def draw(self, x: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """A draw z "b latent" and its log-density "b"."""
        features = self.features(x)
        base = self.gaussian(features)
        z0 = draws_from(noise)(base)
        z, log_det = self.flows(z0, features.flatten(1))
        return z, base.log_prob(z0) - log_det


@register("cflow")
class CFlow(ProbUNet):
    """One latent vector per sample, whose posterior is a flow."""

    config_type: ClassVar[type[CFlowConfig]] = CFlowConfig
    config: CFlowConfig
    training_defaults: ClassVar = {"lr": 1e-4, "batch_size": 96}
    posterior_type: ClassVar[type[FlowPosterior]] = FlowPosterior
    posterior: FlowPosterior

    def infer(self, seen: Tensor, prior: Gaussian, noise: Noise) -> tuple[Tensor, Tensor]:
        z, log_q = self.posterior.draw(seen, noise)
        return z, log_q - prior.log_prob(z)
