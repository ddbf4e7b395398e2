"""The page of models is what the docstrings and the registry say, and every model has a whole card."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from stochseg.models import MODELS, create
from stochseg.models.registry import FAMILIES
from tests.support.extras import import_or_skip

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "zoo.py"
SPEC = importlib.util.spec_from_file_location("zoo", FILE)
zoo = sys.modules["zoo"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(zoo)
CARDS = {card.name: card for card in zoo.cards()}

UNET = {"base": 4, "multipliers": [1], "blocks": 1, "attention": []}
# Of every kind of sampling one model, small, with a number of passes of its own.
SAMPLED = {
    "ccdm": {**UNET, "num_timesteps": 7},
    "ccdm-fast": {"tower": [4], "light": [4], "evaluations": 3},
    "cimd": {**UNET, "ambiguity_channels": [4], "num_timesteps": 5},
    "flow-ssn": {"image_unet": UNET, "flow_unet": UNET, "evaluations": 4},
    "pixelseg": {**UNET, "pixel_width": 4, "pixel_layers": 1, "sweeps": 2},
    "prob-unet": {"channels": [4], "convs": 1},
    "unet-ce": UNET,
}


def test_the_committed_page_is_what_the_generator_gives():
    import_or_skip("segmentation_models_pytorch")
    assert zoo.PAGE.read_text() == zoo.page(), "run python benchmarks/zoo.py"


def test_every_model_has_a_card():
    assert set(CARDS) == set(MODELS) | set(FAMILIES)


@pytest.mark.parametrize("name", sorted(CARDS))
def test_a_card_is_whole(name):
    paragraphs = CARDS[name].body.split("\n\n")
    for begin in ("Idea: ", "Differs from ", "Cost: "):
        assert sum(p.startswith(begin) for p in paragraphs) == 1, f"one paragraph that begins with {begin!r}"
    assert any(p.startswith("    ") for p in paragraphs), "an equation"
    assert "Parameters in print" not in CARDS[name].body


@pytest.mark.parametrize("name", sorted(SAMPLED))
def test_passes_are_what_a_sample_takes(name):
    model = create(name, 2, 1, **SAMPLED[name])
    assert zoo.passes(model) == model.sample(torch.zeros(1, 1, 8, 8), 1).evaluations


def test_numbers_in_print():
    assert CARDS["mose"].printed == {"mose": "9M and 42M"}
    assert CARDS["smp"].printed["smp:upernet/resnet101"] == "83M"
    assert CARDS["prob-unet"].printed == {}
    assert CARDS["prob-unet"].paper == "Kohl et al., NeurIPS 2018"
    assert CARDS["ccdm-fast"].paper == "–"
