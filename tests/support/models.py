"""The smallest configuration of every registered model, models made of it, and inputs that fit them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from stochseg.data import Phantoms
from stochseg.models import MODELS, StochasticSegmenter, create
from stochseg.types import Batch, DatasetInfo

M = TypeVar("M", bound=nn.Module)

UNET = {"base": 8, "multipliers": [1, 2], "blocks": 1}
TOWER = {"tower": [8, 16], "tower_blocks": 1}
TOWERS = {"tower": [8, 16], "light": [8, 8], "tower_blocks": 1}
PIXELS = {"features": 8, "pixel_width": 8, "pixel_layers": 3, "pixel_kernel": 5}
SMALLEST = {
    "analog-bits": {**UNET, "num_timesteps": 20},
    "ccdm": UNET,
    "ccdm+masked": {**UNET, "process": "masked", "num_timesteps": 20},
    "cflow": {"channels": [8, 16], "convs": 1, "latent": 3},
    "flow-ssn": {"image_unet": UNET, "flow_unet": UNET},
    "ssn": {**UNET, "rank": 3, "draws": 4, "warmup": 0},  # in the warm-up, the covariance has no gradient
    # The default weight of 1/1000 would hide the gradients of the encoders from the test that looks for them.
    "cimd": {**UNET, "num_timesteps": 20, "ambiguity_channels": [8, 8], "ambiguity_weight": 1.0},
    "unet-ce": UNET,
    "unet-ce+tower": {"image_tower": TOWER},
    "ssn+tower": {"base": 8, "image_tower": TOWER, "rank": 3, "draws": 4, "warmup": 0},
    "mose+tower": {"base": 24, "image_tower": TOWER},
    "flow-ssn+tower": {"image_tower": TOWER, "flow_unet": UNET},
    "prob-unet+tower": {"channels": [8, 16], "convs": 2, "latent": 3, "image_tower": TOWER},
    "unet-ce+pixels": {**UNET, "draw": "pixels"},
    "smp:unet/tu-test_resnet": {"encoder_depth": 2, "decoder_channels": (8, 8)},
    "smp:unet/tu-test_resnet+pixels": {"encoder_depth": 2, "decoder_channels": (8, 8), "draw": "pixels"},
    "ccdm-fast": TOWERS,
    "ccdm-fast+mixture": {**TOWERS, "components": 3},
    "ccdm-fast+masked": {**TOWERS, "process": "masked", "components": 3},
    "hprob-unet": {"channels": [8, 8, 16], "blocks": 1, "latents": [1, 1]},
    # A level is drawn at once. Of 3 latents, some would be in the remainder of a vector, where `exp` rounds differently
    # in the last bit, so that the order of a batch would show; 4 fill vectors, as the default of 8 does.
    "jprob-unet": {"channels": [8, 16], "convs": 1, "latent": 4, "flow_width": 8},
    "jprob-unet+none": {"channels": [8, 16], "convs": 1, "latent": 3, "flow_width": 8, "conditioning": "none"},
    "phiseg": {"channels": [8, 8, 16], "convs": 1, "levels": 2},
    "phiseg+wide": {"channels": [8, 8, 16], "convs": 1, "levels": 2, "joins": "wide"},
    "pionono": {**UNET, "features": 8, "latent": 3, "draws": 2, "spread": 1.0},
    "prob-unet": {"channels": [8, 16], "convs": 2, "latent": 3},
    "rater-confusion": UNET,
    "rater-confusion+pixels": {**UNET, "draw": "pixels"},
    "rater-confusion+level": {**UNET, "level": "pixel"},
    "mose": {**UNET, "base": 12},
    "car": {**UNET, "patch_width": 8, "latent": 4, "refiner_base": 8, "calibration_steps": 0},
    "car+unet": {**UNET, "patch_width": 8, "latent": 4, **MODELS["car"].config_type.values_before},
    "pixelseg": {**UNET, **PIXELS},
    "pixelseg+raster": {**UNET, **PIXELS, "sampler": "raster"},
    "mose+weighted": {**UNET, "base": 12, "weighted": True},
}
"""Options per registered model; "name+option" is the model with that option."""

SAMPLING_ONLY = ("+pixels", "+raster", "+weighted")
"""Options that change how a model samples and not how it trains."""

NEEDS_SMP = pytest.mark.skipif(find_spec("segmentation_models_pytorch") is None, reason="smp is not installed")


def as_params(names: Iterable[str]) -> list[Any]:
    """Parameters of a test that start with names of models; those of packages that are not installed are skipped."""
    return [pytest.param(name, marks=[NEEDS_SMP] if name.startswith("smp:") else []) for name in names]


def fresh(
    name: str, classes: int = 2, channels: int = 1, /, info: DatasetInfo | None = None, **config: Any
) -> StochasticSegmenter:
    """The smallest model of this name with its initial weights; `config` changes its options."""
    torch.manual_seed(0)
    return create(name.partition("+")[0], classes, channels, info=info, **{**SMALLEST[name], **config})


def perturb(model: M, scale: float = 0.1) -> M:
    """Add noise to every parameter: several layers start at zero, so that a new model ignores part of its input."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator)
    return model


def lively(
    name: str, classes: int = 2, channels: int = 1, /, info: DatasetInfo | None = None, **config: Any
) -> StochasticSegmenter:
    """The smallest model of this name, perturbed and in evaluation mode: its output depends on all of its input."""
    return perturb(fresh(name, classes, channels, info, **config)).eval()


def few(model: StochasticSegmenter) -> dict[str, int]:
    """Keyword of `sample` for few network evaluations, where the model has the choice."""
    return {"evaluations": 4} if "evaluations" in model.sampling_choices else {}


def batch_sizes(module: nn.Module) -> list[int]:
    """A list that grows by the batch size of each call of the module."""
    sizes: list[int] = []
    module.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    return sizes


def images(b: int, channels: int = 1, h: int = 16, w: int = 16) -> Tensor:
    """Random normalized images "b c h w"."""
    return torch.rand(b, channels, h, w, generator=torch.Generator().manual_seed(2)) * 2 - 1


def labels(b: int, k: int, classes: int, h: int = 16, w: int = 16) -> Tensor:
    """Random label maps of k raters, "b k h w"."""
    return torch.randint(classes, (b, k, h, w), generator=torch.Generator().manual_seed(3))


def phantoms(count: int, size: int = 16) -> Batch:
    """The first training phantoms as one batch."""
    data = Phantoms("train", size=size, count=count)
    return Batch.collate([data[i] for i in range(count)])
