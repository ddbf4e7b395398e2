"""Every stochastic model learns both readings of an image and draws them with their frequencies."""

import pytest
import torch

from stochseg.models import MODELS, create
from stochseg.models.baselines.deterministic import DeterministicSegmenter
from stochseg.models.rater_mixture import RaterSegmenter
from tests.support.readings import learn_readings

UNET = {"base": 8, "multipliers": [1, 2], "blocks": 1, "attention": []}
FLAT_UNET = {**UNET, "multipliers": [1]}
TOWERS = {"tower": [8, 8], "light": [8, 8], "tower_blocks": 1, "num_timesteps": 20, "evaluations": 5}
# Options of the model, and how long it trains.
CASES = {
    "analog-bits": ({**UNET, "num_timesteps": 20}, {"steps": 80, "lr": 1e-2}),
    # In a short game the published weights leave one reading only. Here the calibration outweighs the adversary, and
    # the mean of 16 samples is closer to that of all samples than the mean of 5.
    "car": (
        {
            **FLAT_UNET,
            "patch_width": 8,
            "patch_levels": 1,
            "latent": 2,
            "samples": 16,
            "adversarial": 1.0,
            "calibration": 20.0,
            "discriminator_lr": 1.0,
            "calibration_steps": 0,
            "turns": (1, 0),
            "judged": 16,
            "gradient_penalty": 0.0,
        },
        {"steps": 160, "lr": 1e-2, "batch": 2},
    ),
    "ccdm": ({**UNET, "num_timesteps": 20, "evaluations": 10}, {"steps": 120, "lr": 5e-3}),
    "ccdm-fast": (TOWERS, {"steps": 80, "lr": 1e-2, "batch": 4}),
    "ccdm-fast+mixture": ({**TOWERS, "components": 3, "anneal": 40}, {"steps": 100, "lr": 1e-2, "batch": 4}),
    "cflow": ({"channels": [8], "convs": 1, "latent": 2}, {"steps": 120, "lr": 1e-2, "size": 8}),
    "cimd": (
        {**UNET, "num_timesteps": 20, "schedule": "cosine", "ambiguity_channels": [8]},
        {"steps": 100, "lr": 1e-2},
    ),
    "flow-ssn": (
        {"image_unet": {"base": 4, "multipliers": [1]}, "flow_unet": UNET, "draws": 4},
        {"steps": 80, "lr": 2e-2, "batch": 10},
    ),
    # One latent per image: a second, finer latent scale needs more steps.
    "hprob-unet": ({"channels": [8, 8, 8], "blocks": 1, "latents": [1], "share": 1.0}, {"steps": 120, "lr": 1e-2}),
    "jprob-unet": (
        {"channels": [8], "convs": 1, "latent": 2, "flow_width": 8},
        {"steps": 150, "lr": 1e-2, "size": 8},
    ),
    # Its cost counts the foreground only: two readings of two foreground classes.
    "mose": ({**FLAT_UNET, "anneal": 40}, {"steps": 120, "lr": 5e-3, "batch": 4, "readings": (1, 2)}),
    "phiseg": ({"channels": [16, 16], "convs": 1, "levels": 2}, {"steps": 300, "lr": 5e-3}),
    "pixelseg": (
        {**FLAT_UNET, "base": 4, "features": 4, "pixel_width": 12, "pixel_layers": 3, "pixel_kernel": 3},
        {"steps": 100, "lr": 1e-2, "batch": 10},
    ),
    "prob-unet": ({"channels": [8], "convs": 1, "latent": 2}, {"steps": 150, "lr": 1e-2, "size": 8}),
    "ssn": ({**FLAT_UNET, "base": 4, "rank": 3, "warmup": 20}, {"steps": 160, "lr": 2e-2, "batch": 10}),
}


def test_every_stochastic_model_is_tested():
    # Models of named raters learn who draws which reading: tests/models/test_rater_mixture.py.
    others = (DeterministicSegmenter, RaterSegmenter)
    stochastic = {name for name, cls in MODELS.items() if not issubclass(cls, others)}
    assert {name.partition("+")[0] for name in CASES} == stochastic


@pytest.mark.parametrize("case", sorted(CASES))
def test_both_readings_are_drawn_with_their_frequencies(case):
    options, training = CASES[case]
    torch.manual_seed(0)
    model = create(case.partition("+")[0], 1 + max(training.get("readings", (1,))), **options)
    first, second = learn_readings(model, **training)
    assert first + second > 0.85, "samples mix the readings"
    assert first == pytest.approx(0.7, abs=0.15)
