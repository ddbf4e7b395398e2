"""Write docs/zoo.md: a card a model from its module's docstring, what the registry says of it, and the scores of
`stochseg compare` where they are in results/.

python benchmarks/zoo.py
"""

from __future__ import annotations

import argparse
import csv
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from stochseg.errors import UserError
from stochseg.experiments.compare import COLUMNS, markdown_table
from stochseg.experiments.recipes import recipe
from stochseg.models import MODELS, StochasticSegmenter, create
from stochseg.models.registry import FAMILIES

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "zoo.md"
RESULTS = ROOT / "benchmarks" / "results"
TRAINING = (
    "optimizer",
    "weight_decay",
    "lr",
    "final_lr",
    "decay",
    "power",
    "warmup",
    "batch_size",
    "ema",
    "clip",
    "precision",
)
LIDC = """\
## Measured: LIDC

Every method had ten minutes of one CPU core with the same optimizer and saw the central 64×64 of the slices
(`data.options.center=64`); scored on 100 val slices, 16 samples each, from at most 10 denoising steps. So little time
favours what learns fast: this ranks methods by what they reach in it, not by what they are at the end of a long
training; all began with random weights. [benchmarks/compare.py](../benchmarks/compare.py) has all terms; `stochseg
compare` takes any others.
"""
CAMVID = """\
## Measured: CamVid

mIoU in % of the fused map of 1, 5 and 10 samples, fused by the mean of their probabilities or by majority vote, on the
{images} val images at {height}×{width}. Every network trained for {minutes} minutes ({hardware}); the frozen encoder's
own parameters are not counted, and it alone was pretrained. Made by [benchmarks/camvid.py](../benchmarks/camvid.py).
"""

PRINTED = re.compile(r"\n*^Parameters in print: (.+)\.$", re.MULTILINE)
MEMBER = r"^ +({prefix}:\S+) +(\d\S*)$"
"""A model of a family, with its parameters in print, as the family's docstring lists them."""

INTRODUCTION = """\
# The zoo

<!-- Written by benchmarks/zoo.py from the docstrings and the registry; edit those. -->

All models have one interface: `stochseg.create(name, num_classes, image_channels)`, `stochseg train name --data …`,
`model.sample(image, n)`. They share data, trainer and metrics, so that methods can be compared and not their scripts,
and one test suite holds them to the same promises. Trained by its name a model has the settings at the end of its
card: its authors', and the trainer's own where none of theirs is known.

Parameters are those of the defaults, the LIDC sizes, with two classes and one image channel; beside them the count that
is in print, in the CCDM paper's tables, if there is one. Passes are the calls of the network that a sample makes by
default, at the most; what runs once an image is not among them.
"""


@dataclass(frozen=True)
class Card:
    """What the docstring of a model's module says."""

    name: str
    title: str
    body: str
    printed: dict[str, str]
    """Parameters in print by model; for a family all its models that are in print."""

    @property
    def names(self) -> list[str]:
        """The model, or the models of the family that are in print."""
        return list(self.printed) if self.name in FAMILIES else [self.name]

    @property
    def paper(self) -> str:
        """The last brackets of the title with a year in them."""
        found = re.findall(r"\(([^()]*\b\d{4})\)", self.title)
        return found[-1] if found else "–"


def cards() -> list[Card]:
    """One a model, in the order of their names, then one a family."""
    return [card(name, MODELS[name]) for name in sorted(MODELS)] + [card(name, FAMILIES[name]) for name in FAMILIES]


def card(name: str, subject: object) -> Card:
    """subject: the model's class, or the function that makes a family's classes."""
    module = inspect.getmodule(inspect.unwrap(subject) if inspect.isroutine(subject) else subject)
    title, _, body = inspect.getdoc(module).partition("\n\n")
    printed = {found[1]: found[2] for found in re.finditer(MEMBER.format(prefix=name), body, re.MULTILINE)}
    if found := PRINTED.search(body):
        printed[name] = found[1]
    return Card(name, " ".join(title.split()).removesuffix("."), PRINTED.sub("", body), printed)


def passes(model: StochasticSegmenter) -> int:
    """Network evaluations per sample by default, at most."""
    extra = 1 if model.name == "pixelseg" else 0  # the step to the full resolution
    return (model.default_sampling().evaluations or 1) + extra


def classes(name: str) -> str:
    try:
        fresh(name, 5)
    except UserError:
        return "two"
    return "any"


def fresh(name: str, num_classes: int = 2) -> StochasticSegmenter:
    """At its default size. Weights of a family's model, which may be large, are left out."""
    with torch.device("meta" if ":" in name else "cpu"):
        return create(name, num_classes, 1)


# ---------------------------------------------------------------------- the page


def overview(all_cards: list[Card]) -> Iterator[str]:
    yield "| Model | Paper | Parameters | In print | Passes a sample | Classes |"
    yield "|---|---|---|---|---|---|"
    for card in all_cards:
        for name in card.names:
            model = fresh(name)
            count = sum(p.numel() for p in model.parameters())
            cells = [card.paper, f"{count:,}", card.printed.get(name, "–"), str(passes(model)), classes(name)]
            yield f"| [`{name}`](#{card.name}) | {' | '.join(cells)} |"


def section(card: Card) -> str:
    trained = " or ".join(dict.fromkeys(f"`{training(name)}`" for name in card.names))
    return f"## {card.name}\n\n**{card.title}.**\n\n{card.body}\n\nTraining by its name: {trained}.\n"


def training(name: str) -> str:
    """The settings of a model trained by its name: its authors', and the trainer's where they leave any out."""
    config = recipe(name)
    found = {key: getattr(config, key) for key in TRAINING}
    return " ".join(f"{key}={'null' if value is None else value}" for key, value in found.items())


def read(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def measured() -> Iterator[str]:
    """The results that are there."""
    for file in sorted(RESULTS.glob("compare-lidc-*.csv")):
        yield f"{LIDC}\n{markdown_table(read(file), COLUMNS)}"
    for file in sorted(RESULTS.glob("camvid-*.csv")):
        rows = read(file)
        columns = {"method": "method", "trained_parameters": "trained parameters"}
        columns |= {f"{rule}_{n}": f"{rule}, {n}" for rule in ("mean", "vote") for n in (1, 5, 10)}
        yield f"{CAMVID.format(**rows[0])}\n{markdown_table(rows, columns)}"


def page() -> str:
    all_cards = cards()
    parts = [INTRODUCTION, "\n".join(overview(all_cards)) + "\n", *(section(card) for card in all_cards)]
    return "\n".join([*parts, *measured()])


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(page())
    print(PAGE)
