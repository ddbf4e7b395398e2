"""Shared by the tests of prediction: small models, random images and samples, and results read back."""

import json
from pathlib import Path

import numpy as np
import torch

from stochseg.inference import PredictOptions, predict
from stochseg.types import DatasetInfo, Samples
from tests.support.models import lively

QUICK = PredictOptions(n=3)
RNG = np.random.default_rng(0)
CLASSES = DatasetInfo(num_classes=3, image_channels=1, class_names=("background", "nodule", "vessel"))


def small_model(classes=2, channels=1, info=None, **config):
    """A `ccdm-fast` that takes milliseconds and whose labels depend on the image."""
    return lively("ccdm-fast", classes, channels, info, num_timesteps=20, evaluations=3, **config)


def gray(h=20, w=24) -> np.ndarray:
    """A random 8-bit image."""
    return RNG.integers(0, 256, (h, w), dtype=np.uint8)


def random_samples(s=5, n=4, h=12, w=10, classes=3) -> Samples:
    """Random label maps with random mean probabilities."""
    generator = torch.Generator().manual_seed(3)
    mean = torch.rand(s, classes, h, w, generator=generator) ** 3
    labels = torch.randint(classes, (s, n, h, w), generator=generator)
    return Samples(labels, mean / mean.sum(1, keepdim=True), torch.full((s, n), 1 / n), seed=0)


def failure(model, file: Path, tmp_path: Path, options=QUICK) -> str:
    """Predict one input that must fail without a trace; returns the problem."""
    (outcome,) = predict(model, [file], tmp_path / "out", options)
    assert outcome.status == "failed"
    assert not (tmp_path / "out").exists()
    return outcome.problem


def read_result(folder: Path) -> dict:
    """Read result.json."""
    return json.loads((folder / "result.json").read_text())
