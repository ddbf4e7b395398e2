"""docs/zoo.md equals the output of its generator, and every model has a complete card."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from stochseg.models import MODELS
from stochseg.models.registry import FAMILIES
from tests.support.extras import import_or_skip
from tests.support.models import fresh, images

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "zoo.py"
SPEC = importlib.util.spec_from_file_location("zoo", FILE)
zoo = sys.modules["zoo"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(zoo)
CARDS = {card.name: card for card in zoo.cards()}

# One model per sampling loop, with a number of evaluations that is not its default.
ONE_PER_LOOP = {
    "ccdm": {"num_timesteps": 7},
    "ccdm-fast": {"evaluations": 3},
    "cimd": {"num_timesteps": 5},
    "flow-ssn": {"evaluations": 4},
    "pixelseg": {"sweeps": 2},
    "prob-unet": {},
    "unet-ce": {},
}


def test_committed_page_is_up_to_date():
    import_or_skip("segmentation_models_pytorch")
    assert zoo.PAGE.read_text() == zoo.page(), "run python benchmarks/zoo.py"


def test_every_model_has_a_card():
    assert set(CARDS) == set(MODELS) | set(FAMILIES)


@pytest.mark.parametrize("name", sorted(CARDS))
def test_card_is_complete(name):
    paragraphs = CARDS[name].body.split("\n\n")
    for start in ("Idea: ", "Differs from ", "Cost: "):
        assert sum(p.startswith(start) for p in paragraphs) == 1, f"expected one paragraph that starts with {start!r}"
    assert any(p.startswith("    ") for p in paragraphs), "expected an equation"
    assert "Published parameters" not in CARDS[name].body


@pytest.mark.parametrize("name", sorted(ONE_PER_LOOP))
def test_evaluations_are_those_of_a_sample(name):
    model = fresh(name, **ONE_PER_LOOP[name])
    assert zoo.evaluations(model) == model.sample(images(1, h=8, w=8), 1).evaluations


def test_published_parameters_and_papers_are_found_in_docstrings():
    assert CARDS["mose"].published == {"mose": "9M and 42M"}
    assert CARDS["smp"].published["smp:upernet/resnet101"] == "83M"
    assert CARDS["prob-unet"].published == {}
    assert CARDS["prob-unet"].paper == "Kohl et al., NeurIPS 2018"
    assert CARDS["ccdm-fast"].paper == "–"
