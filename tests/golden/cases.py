"""Recorded results: samples and losses of every model, and metrics.

`python -m tests.golden.record` adds new cases to the file. Replace recorded ones (`--all`) only when results are meant
to change, and give the reason in the commit message.
"""

from __future__ import annotations

import numpy as np
import torch

from stochseg import load, metrics
from stochseg.data import Phantoms
from stochseg.types import DatasetInfo
from tests.support.models import SMALLEST, few, images, labels, lively

CHOICES = {
    "ccdm": [
        {"sampler": sampler, "grid": grid, "noise": noise}
        for sampler, grid in [
            ("ancestral", "even"),
            ("sticky", "trailing"),
            ("ddim", "entropy"),
            ("corrector", "even"),
            ("one_step_kernel", "trailing"),
        ]
        for noise in ("independent", "latin")
    ],
    "ccdm-fast+mixture": [{"noise": "latin"}, {"sampler": "ancestral", "grid": "even"}],
    "analog-bits": [{"sampler": "ddim", "grid": "trailing", "noise": "latin"}],
    "cimd": [{"sampler": "ddpm", "noise": "latin"}],
    "flow-ssn": [{"sampler": "start", "grid": "early", "noise": "latin"}],
    "ssn": [{"noise": "latin"}],
    "prob-unet": [{"noise": "latin"}],
    "pixelseg": [{"sampler": "gibbs"}],
}


HANDS = {"anyone": {}, "rater": {"rater": "ben"}, "between": {"rater": "ben", "guidance": 0.3}}
"""Options of sampling of a model that is conditioned on raters."""


def describe(out) -> dict[str, np.ndarray]:
    return {
        "labels": out.labels.numpy().astype(np.uint8),
        "mean": out.mean.numpy(),
        "weights": out.weights.numpy(),
        "evaluations": np.array(out.evaluations),
    }


def draw(model, x, **options):
    return model.sample(x, 3, seed=7, **few(model), **options)


def sample_cases() -> dict[str, object]:
    """Each case by name, as a function that computes its arrays."""
    cases = {}
    for name in sorted(SMALLEST):
        cases[f"{name}/binary"] = lambda name=name: describe(draw(lively(name), images(2)))
        cases[f"{name}/classes"] = lambda name=name: describe(draw(lively(name, 4, 3), images(2, 3, 9, 13)))
        cases[f"{name}/loss"] = lambda name=name: loss(name)
    for name, choices in CHOICES.items():
        for options in choices:
            key = "-".join(options.values())
            cases[f"{name}/{key}"] = lambda name=name, options=options: describe(
                draw(lively(name), images(2), **options)
            )
    cases["lidc/default"] = lambda: describe(load("lidc").sample(lidc_images(), 4, seed=3))
    cases["lidc/ancestral"] = lambda: describe(
        load("lidc").sample(lidc_images()[:1], 2, seed=3, evaluations=3, sampler="ancestral", noise="independent")
    )
    cases["lidc-3d/default"] = lambda: describe(load("lidc-3d").sample(lidc_images().transpose(0, 1)[None], 4, seed=3))
    for hand, options in HANDS.items():
        cases[f"ccdm-fast+hands/{hand}"] = lambda options=options: describe(draw(conditioned(), images(2), **options))
    cases["ccdm-fast+hands/loss"] = conditioned_loss
    cases["metrics"] = metric_values
    return cases


def lidc_images():
    data = Phantoms("test", size=128, count=2)
    return torch.stack([data[i].image for i in range(2)])


def loss(name: str) -> dict[str, np.ndarray]:
    model = lively(name, 3)
    mask = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(4)) < 0.7
    parts = model(images(2), labels(2, 3, 3), mask, [(1, 0), (1, 1)])
    return {part: value.detach().numpy() for part, value in parts.items()}


def conditioned():
    info = DatasetInfo(num_classes=2, image_channels=1, rater_names=("ana", "ben"))
    return lively("ccdm-fast+mixture", info=info, rater_conditioning=True)


def conditioned_loss() -> dict[str, np.ndarray]:
    parts = conditioned()(images(2), labels(2, 2, 2), keys=[(1, 0), (1, 1)], rater_index=torch.tensor([[0, 1], [1, 0]]))
    return {part: value.detach().numpy() for part, value in parts.items()}


def metric_values() -> dict[str, np.ndarray]:
    generator = torch.Generator().manual_seed(5)
    a = torch.randint(3, (2, 6, 12, 10), generator=generator)
    b = torch.randint(3, (2, 4, 12, 10), generator=generator)
    mean = torch.rand(2, 3, 12, 10, generator=generator, dtype=torch.float64).softmax(1)
    weights = torch.rand(2, 6, generator=generator, dtype=torch.float64)
    mask = torch.rand(b.shape, generator=generator) < 0.8
    clean = metrics.without_void(a, b, mask)
    return {
        "ged": metrics.ged(a, b, 3).numpy(),
        "ged_weighted": metrics.ged(*clean, 3, weights=weights).numpy(),
        "ged_unbiased": metrics.ged(a, b, 3, unbiased=True).numpy(),
        "hm_iou": metrics.hm_iou(a, b, 3).numpy(),
        "hm_iou_weighted": metrics.hm_iou(*clean, 3, weights=weights).numpy(),
        "diversity": metrics.diversity(a, 3).numpy(),
        "iou": metrics.pairwise_iou(a, b, 3).numpy(),
        "brier": metrics.brier(mean, b, mask).numpy(),
        "ece": metrics.ece(metrics.calibration_bins(mean, b, mask=mask)).numpy(),
        "miou": metrics.miou(metrics.confusion_matrix(a[:, :4], b, 3)).numpy(),
    }
