"""Rater confusion: one true label, and a confusion matrix per rater (Tanno et al., CVPR 2019; Zhang et al., 2020).

Idea: for data whose raters have names, and need not have labeled every image. A network predicts the distribution of a
label that nobody observed, the true one; rater r writes label i where the truth is j with probability A_r[i, j]. The
matrices are learned with the network, from the raters' labels alone. A penalty on their traces decides between equally
good explanations: of all, the raters are assumed to be the least reliable.

    loss = CE(y_r, A_r softmax f(x)) + λ trace A_r,    A_r[i, j] = P(rater r writes i | truth j),   λ = 0.01

for the label map y_r of one rater per image and step. With `level=global` a rater has one matrix (Tanno), with `pixel`
the network adds to its logits at every pixel (Zhang). `truth` and `confusion` return what was learned.

Samples: given a rater, the model holds all pixels to be independent, so that drawing them (`draw=pixels`) is exact and
speckled: no rater makes such maps. By default a sample is the most probable map of a rater, who is drawn with the
frequency of their label maps in training, or named: `sample(image, rater=NAME)`. Such maps are as coherent as the level
sets of the network's probabilities. There is one per rater, so that their draws do not differ; one matrix for all
pixels moves the threshold of uncertain pixels and knows nothing of shapes: of a rater who always leaves out the rim of
an object, it can only say that part of the object is missing. `pixel` can tell where. `Samples.mean` is the exact
mixture of probabilities in both cases. Raters without a name share one more matrix: without any names, all samples of
an image are equal.

Differs from the original:
- the matrices start near the identity, 0.9 on the diagonal, which replaces a warm-up;
- the loss is the log-likelihood of the labels; the released code of Zhang et al. applies a second softmax to the
  probabilities A_r p, so that its weights of the trace (0.1; 1.5 in its readme) do not carry over;
- at the level of pixels, one convolution per rater on the U-Net's last features (released: a network of its own);
  low-rank matrices, for many classes, are missing.

Cost: one pass of the U-Net per image, for any n.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from stochseg.core import Noise, SeededNoise, draw_categorical
from stochseg.models.config import SegmenterConfig
from stochseg.models.rater_mixture import RaterSegmenter, draw_raters
from stochseg.models.raters import one_rater
from stochseg.models.registry import register
from stochseg.models.sampling import Drawing, Drawn, Keys, Report, Rows, SamplingOptions
from stochseg.networks import BackboneConfig, make_backbone, pad_to_multiple
from stochseg.networks.shapes import crop
from stochseg.types import DatasetInfo, Losses

SMALLEST = torch.finfo(torch.float32).tiny
"""Bound of probabilities in the loss, against log 0 where a softmax underflows."""


class RaterConfusionConfig(SegmenterConfig, BackboneConfig):
    """Shape of the U-Net, the matrices, and the rule that turns probabilities into samples."""

    level: Literal["global", "pixel"] = Field("global", description="one matrix per rater, or one per rater and pixel")
    trace: float = Field(0.01, ge=0, description="λ, the weight of the matrices' trace")
    diagonal: float = Field(0.9, gt=0, lt=1, description="diagonal of the matrices at the start")
    rater_lr_factor: float = Field(100.0, gt=0, description="learning rate of the matrices, in that of the run")
    draw: Literal["argmax", "pixels"] = Field("argmax", description="the most probable map of a rater, or its pixels")


@register("rater-confusion")
class RaterConfusion(RaterSegmenter):
    """A U-Net for the true label, and a confusion matrix per rater."""

    config_type: ClassVar[type[RaterConfusionConfig]] = RaterConfusionConfig
    accelerated_modules = ("unet",)
    takes_volumes = True
    config: RaterConfusionConfig
    training_defaults: ClassVar = {"lr": 1e-4, "batch_size": 2}

    def __init__(self, info: DatasetInfo, config: RaterConfusionConfig):
        super().__init__(info, config)
        labels = info.num_classes
        per_pixel = len(self.mixture) * labels**2 if config.level == "pixel" else 0
        self.unet = make_backbone(info.image_channels, labels + per_pixel, config, spatial_dims=info.spatial_dims)
        odds = config.diagonal / (1 - config.diagonal) * (labels - 1)
        start = math.log(odds) * torch.eye(labels)
        self.matrices = nn.Parameter(start.repeat(len(self.mixture), 1, 1))

    def parameter_groups(self) -> list[dict[str, Any]]:
        own = {"params": [self.matrices], "lr_factor": self.config.rater_lr_factor}
        return [{"params": list(self.unet.parameters())}, own]

    def outputs(self, image: Tensor) -> Tensor:
        """Logits of the true label and, at the level of pixels, additions to those of all matrices: "b c *space"."""
        return crop(self.unet(pad_to_multiple(image, self.config.stride)), image.shape[2:]).float()

    def truth(self, out: Tensor) -> Tensor:
        """Probabilities of the true label, "m l *space"."""
        return out[:, : self.num_classes].softmax(1)

    def confusion(self, out: Tensor, rater: Tensor) -> Tensor:
        """Matrices "m l l *space" of the raters "m", with axes of one entry where all pixels share them."""
        labels = self.num_classes
        raw = self.matrices[rater].float().view(-1, labels, labels, *[1] * (out.ndim - 2))
        if self.config.level == "pixel":
            added = torch.unflatten(out[:, labels:], 1, (len(self.mixture), labels, labels))
            raw = raw + added[torch.arange(len(out), device=out.device), rater]
        return raw.softmax(1)

    def written(self, out: Tensor, rater: Tensor) -> Tensor:
        """Probabilities of the labels that the raters "m" write, "m l *space"."""
        matrices, truth = self.confusion(out, rater), self.truth(out)
        with torch.autocast(out.device.type, enabled=False):
            if self.config.level == "pixel":
                return (matrices * truth[:, None]).sum(2)
            return (matrices.flatten(2) @ truth.flatten(2)).view_as(truth)

    def loss_by_rater(
        self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys, rater_index: Tensor
    ) -> Losses:
        target = one_rater(raters, mask, rater_count, SeededNoise(keys), rater_index)
        out, rater = self.outputs(image), target.rater
        assert rater is not None
        if self.training:
            self.mixture.observe(rater)
        cross_entropy = target.cross_entropy(self.written(out, rater).clamp(min=SMALLEST).log()).mean()
        diagonal = self.confusion(out, rater).diagonal(dim1=1, dim2=2)  # "m *space l"
        trace = diagonal.sum(-1).mean()
        total = cross_entropy + self.config.trace * trace
        return {"loss": total, "cross_entropy": cross_entropy.detach(), "trace": trace.detach()}

    def drawing(self, image: Tensor, keys: Keys, options: SamplingOptions) -> Drawing:
        """One pass per image; a sample is the most probable map of a rater, or independent draws of its pixels."""
        out = self.outputs(image)
        shares, everyone = self.rater_probabilities(options), range(len(self.mixture))
        mean = sum(shares[r] * self.written(out, torch.full((len(out),), r, device=out.device)) for r in everyone)
        assert isinstance(mean, Tensor)

        def draw(rows: Rows, noise: Noise, report: Report) -> Drawn:
            m, labels = len(rows.image), None
            rater = torch.zeros(m, dtype=torch.int64, device=out.device)
            if len(self.mixture) > 1:
                rater = draw_raters(shares, noise.uniform((m, 1))[:, 0])
            p = self.written(out[rows.image], rater)
            if self.config.draw == "pixels":
                labels = draw_categorical(p.log(), noise.uniform((m, *p.shape[2:])))
            report(0)
            return Drawn(p, labels)

        return Drawing(draw, mean=mean)
