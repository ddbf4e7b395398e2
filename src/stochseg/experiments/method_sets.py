"""Words that stand for several methods in `stochseg compare --protocol fair`."""

from __future__ import annotations

from collections.abc import Sequence

from stochseg.errors import UserError
from stochseg.experiments.recipes import TOWER_HEADS
from stochseg.models import MODELS

FAST = "small"
"""The recipe of `ccdm-fast` with all its advantages, and the same without one of them at a time."""
ABLATIONS = (
    f"{FAST} model.options.components=1",
    f"{FAST} optimizer=adam lr=1e-3",
    f"{FAST} model.options.patch=1",
    f"{FAST} model.options.draws=1",
)
HEADS = tuple(f"tower-{name}" for name in TOWER_HEADS)
"""Recipes of other methods on the image tower of `ccdm-fast`: the method differs, not the backbone."""
PUBLISHED = (
    "mose model.options.base=70",
    "cimd model.options.base=50",
    "flow-ssn model.options.image_unet.blocks=2",
)
"""Models at the larger size in print, where the default is another."""


def method_title(method: str) -> str:
    """Short name of a method with its settings.

    >>> method_title("small model.options.patch=1"), method_title("ssn")
    ('ccdm-fast, patch=1', 'ssn')
    """
    name, *settings = method.split()
    words = " ".join(setting.removeprefix("model.options.") for setting in settings)
    return ", ".join(filter(None, ("ccdm-fast" if name == FAST else name, words)))


def fair_methods(names: Sequence[str]) -> list[str]:
    """The methods of a comparison, in which some words stand for several.

    ablations: `ccdm-fast` without its advantages one by one; heads: other methods on its image tower; published: models
    at their larger size in print; all: every registered model, ablations and heads.
    """
    models = [name for name in MODELS if name != "ccdm-fast"]
    sets = {
        "all": [FAST, *ABLATIONS, *HEADS, *models],
        "ablations": [FAST, *ABLATIONS],
        "heads": list(HEADS),
        "published": list(PUBLISHED),
    }
    found = [method for name in names for method in sets.get(name, [name])]
    if len(set(found)) < len(found):
        raise UserError(f"compare: expected every method once, got {', '.join(found)}")
    return found
