"""Learning, small: after seconds of training at 16×16 the model samples the modes with their probabilities.

The full-size check is `benchmarks/learning.py`.
"""

from __future__ import annotations

import pytest
from rich.console import Console

from stochseg.data import Phantoms
from stochseg.evaluation import Evaluation, evaluate
from stochseg.metrics import ged
from stochseg.models import load
from stochseg.models.sampling import SamplingOptions
from stochseg.training import TrainConfig, open_split, train

CONFIG = TrainConfig.parse(
    {
        "data": {
            "name": "phantom",
            "options": {"size": 16},
            "train": {"count": 1024},
            "val": {"count": 32},
            "augment": "flip-rotate",
        },
        "model": {
            "name": "ccdm",
            "options": {
                "base": 16,
                "multipliers": [1, 2, 4],
                "blocks": 1,
                "attention": [4],
                "num_timesteps": 50,
                "evaluations": 10,
            },
        },
        "steps": 250,
        "batch_size": 16,
        "optimizer": "muon",
        "lr": 3e-3,
        "final_lr": 1e-4,
        "warmup": 20,
        "ema": 0.99,
        "clip": 1.0,
        "validation": {"every": 250, "images": 2, "num_samples": 2, "calibration_images": 0},
    }
)


@pytest.fixture(scope="module")
def data() -> Phantoms:
    return open_split(CONFIG, "test")


@pytest.fixture(scope="module")
def result(data, tmp_path_factory) -> Evaluation:
    out = train(CONFIG, tmp_path_factory.mktemp("learning") / "run", device="cpu", console=Console(quiet=True))
    return evaluate(load(out), data, options=SamplingOptions(n=32))


def test_the_frequencies_of_modes_match_their_probabilities(result):
    """Over all images within 0.15; per image within 0.25, of which about 0.09 is the noise of 32 samples."""
    average = abs(result.modes.truth.mean(0) - result.modes.frequency.mean(0)).sum() / 2
    assert average < 0.15
    assert result.metrics["mode_tv"] < 0.25
    assert result.metrics["mode_iou"] > 0.7


def test_samples_are_far_closer_to_the_truth_than_any_single_mode(result, data):
    """The best single mode per image, chosen with knowledge of the truth, bounds what a deterministic model can do."""
    best = []
    for i in range(len(data)):
        truth = data.truth(i)
        modes, weights = truth.modes[None], truth.probabilities[None]
        best.append(min(ged(mode[None, None], modes, 2, rater_weights=weights).item() for mode in truth.modes))
    assert result.metrics["ged_truth_unbiased"] < 0.5 * sum(best) / len(best)
