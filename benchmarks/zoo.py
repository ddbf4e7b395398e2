"""Write docs/zoo.md: one card per model, from the docstring of its module and the registry, and the scores of
`stochseg compare` that are in benchmarks/results/.

python benchmarks/zoo.py
"""

from __future__ import annotations

import argparse
import csv
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from stochseg.experiments.comparison import markdown_table
from stochseg.experiments.method_sets import method_title
from stochseg.experiments.paper.tables import format_values
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

[A fair comparison](comparison.md): every method with the optimizer and batch size of its authors, and of the
multiples 1, 3 and 1/3 of their learning rate the best by its GED on patients kept back for this choice ("pilots" says
how many of the three were tried, "lr" which one was best), trained in bfloat16 for the same minutes of one core
({hardware}) on the central 64×64 pixels of the slices, and scored on validation slices with 16 independent samples
and at most 10 network evaluations per sample. Intervals are 95% bootstrap intervals over patients; differences are of
GED on the same slices. References are [label maps that no model drew](guide/evaluating.md#references). `ccdm-fast` is
the recipe `small`; its variants lack one of its advantages; `tower-…` are other methods on its image tower.
[benchmarks/fair.py](../benchmarks/fair.py) contains all settings.
"""
FAIR_COLUMNS = {
    "method": "method",
    "minutes": "core minutes",
    "ged_16": "GED_16",
    "interval": "interval",
    "difference": "to ccdm-fast",
    "difference_interval": "interval",
    "blind_difference": "to blind",
    "blind_interval": "interval",
    "hm_iou_16": "HM-IoU_16",
    "ece": "ECE",
    "evaluations": "evaluations",
    "image_count": "slices",
    "lr": "lr",
    "pilots": "pilots",
    "steps": "steps",
    "pairs_seen": "pairs seen",
    "note": "note",
}
CAMVID = """\
## Measured: CamVid at {height}×{width}

mIoU in % on the {images} validation images at {height}×{width}, of the map fused from 1, 5 and 10 samples by the mean
of their probabilities: mean ± standard deviation over trainings with different seeds. Budgets are minutes of one core
({hardware}), counted in CPU time; a busy machine takes fewer steps in it. Every network started with the ImageNet
weights of EfficientNet-Lite0. `fast-ce` is the network of `fast` without diffusion: it sees only noise, and is trained
with cross-entropy. `fast-late` denoises in the second half of the training only, `fast-frozen` does not train the
pretrained features, and `fast-pure0` draws t of training without a share of pure noise. Names with `warp` also turn,
scale, shift and bend the training images (`flip-jitter-warp`). Frozen parameters are not counted. Majority votes are in
the CSV file. Written by [benchmarks/camvid.py](../benchmarks/camvid.py); its recipes are `camvid-fast`, `camvid-smp`,
`camvid-unet-ce` and `camvid-ccdm`.
"""

PUBLISHED = re.compile(r"\n*^Published parameters: (.+)\.$", re.MULTILINE)
MEMBER = r"^ +({prefix}:\S+) +(\d\S*)$"
"""A model of a family and its published number of parameters, as listed in the family's docstring."""

INTRODUCTION = """\
# The models

<!-- Written by benchmarks/zoo.py from docstrings and the registry; edit those. -->

All models have one interface: `stochseg.create(name, num_classes, image_channels)`, `stochseg train name --data …` and
`model.sample(image, n)`, for any number of classes. They share data, training and metrics, so that a comparison is one
of methods and not of scripts, and one test suite checks the same properties of all. `stochseg train name` uses the
settings at the end of the model's card: those of its authors as far as they are known, and the defaults of the trainer
otherwise.

Parameters are counted with the default options (the LIDC sizes), two classes and one image channel; "published" is the
count in the tables of the CCDM paper, if there is one. Evaluations are those of the network per sample, by default and
at most; parts that run once per image are not counted.
"""


@dataclass(frozen=True)
class Card:
    """Content of the docstring of a model's module."""

    name: str
    title: str
    body: str
    published: dict[str, str]
    """Published number of parameters by model; for a family, of all its models that have one."""

    @property
    def names(self) -> list[str]:
        """The model, or the published models of the family."""
        return list(self.published) if self.name in FAMILIES else [self.name]

    @property
    def paper(self) -> str:
        """The last parentheses of the title that contain a year."""
        found = re.findall(r"\(([^()]*\b\d{4})\)", self.title)
        return found[-1] if found else "–"


def cards() -> list[Card]:
    """One card per model, sorted by name, then one per family."""
    return [card(name, MODELS[name]) for name in sorted(MODELS)] + [card(name, FAMILIES[name]) for name in FAMILIES]


def card(name: str, subject: object) -> Card:
    """The card of a model's class, or of the function that makes a family's classes."""
    module = inspect.getmodule(inspect.unwrap(subject) if inspect.isroutine(subject) else subject)
    title, _, body = inspect.getdoc(module).partition("\n\n")
    published = {found[1]: found[2] for found in re.finditer(MEMBER.format(prefix=name), body, re.MULTILINE)}
    if found := PUBLISHED.search(body):
        published[name] = found[1]
    return Card(name, " ".join(title.split()).removesuffix("."), PUBLISHED.sub("", body), published)


@torch.no_grad()
def evaluations(model: StochasticSegmenter) -> int:
    """Network evaluations per sample, by default and at most."""
    if "evaluations" not in model.sampling_choices:
        return 1
    image = torch.zeros(1, model.image_channels, 16, 16)
    return model.eval().drawing(image, [(0,)], model.default_sampling()).evaluations


def build_default(name: str) -> StochasticSegmenter:
    """The model with its default options; models of a family, which may be large, without memory for their weights."""
    with torch.device("meta" if ":" in name else "cpu"):
        return create(name)


# ---------------------------------------------------------------------- the page


def overview(all_cards: list[Card]) -> Iterator[str]:
    yield "| Model | Paper | Parameters | Published | Evaluations |"
    yield "|---|---|---|---|---|"
    for card in all_cards:
        for name in card.names:
            model = build_default(name)
            count = sum(p.numel() for p in model.parameters())
            cells = [card.paper, f"{count:,}", card.published.get(name, "–"), str(evaluations(model))]
            yield f"| [`{name}`](#{card.name}) | {' | '.join(cells)} |"


def section(card: Card) -> str:
    trained = " or ".join(dict.fromkeys(f"`{training(name)}`" for name in card.names))
    return f"## {card.name}\n\n**{card.title}.**\n\n{card.body}\n\nSettings of `stochseg train`: {trained}.\n"


def training(name: str) -> str:
    """Settings of `stochseg train name`: those of the authors, completed by the trainer's defaults."""
    config = recipe(name)
    found = {key: getattr(config, key) for key in TRAINING}
    return " ".join(f"{key}={'null' if value is None else value}" for key, value in found.items())


def read(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        return list(csv.DictReader(lines))


def measured() -> Iterator[str]:
    """One section per file of results."""
    for file in sorted(RESULTS.glob("fair-lidc-*.csv")):
        rows = read(file)
        table = markdown_table(list(fair_rows(rows)), FAIR_COLUMNS)
        yield f"{LIDC.format(**rows[0])}\n{table}{without_result(rows)}"
    for file in sorted(RESULTS.glob("camvid-*.csv")):
        rows = read(file)
        yield f"{CAMVID.format(**rows[0])}\n{markdown_table(list(camvid_rows(rows)), CAMVID_COLUMNS)}"


def fair_rows(rows: list[dict[str, str]]) -> Iterator[dict[str, str]]:
    """Rows of a fair comparison by budget, the best first, then the references; other ways of sampling are in the CSV
    file."""
    scored = [row for row in rows if row["sampling"] == "10" or row["note"] == "reference"]
    for row in sorted(scored, key=lambda row: (float(row["minutes"] or "inf"), float(row["ged_16"]))):
        yield {**row, "method": method_title(row["method"])}


def without_result(rows: list[dict[str, str]]) -> str:
    """A sentence on the methods that a fair comparison has no scores of, or nothing."""
    found = ", ".join(method_title(row["method"]).replace(",", "") for row in rows if not row["ged_16"])
    return (
        textwrap.fill(f"Without a result so far: {found}.", 120, initial_indent="\n", break_on_hyphens=False) + "\n"
        if found
        else ""
    )


CAMVID_COLUMNS = {
    "minutes": "minutes",
    "method": "method",
    "model": "model",
    "trained_parameters": "trained parameters",
    "steps": "steps",
    "seeds": "trainings",
    **{f"mean_{n}": f"{n} sample{'s' * (n > 1)}" for n in (1, 5, 10)},
}


def camvid_rows(rows: list[dict[str, str]]) -> Iterator[dict[str, str]]:
    """One row per budget and method: mean ± standard deviation over seeds."""
    for kind in dict.fromkeys((row["minutes"], row["method"]) for row in rows):
        own = [row for row in rows if (row["minutes"], row["method"]) == kind]
        scores = {f"mean_{n}": format_values([float(row[f"mean_{n}"]) for row in own], 1) for n in (1, 5, 10)}
        fewest, most = (str(limit(int(row["steps"]) for row in own)) for limit in (min, max))
        steps = most if fewest == most else f"{fewest} to {most}"
        minutes = f"{float(own[0]['minutes']):g}"
        yield {**own[0], "minutes": minutes, "steps": steps, "seeds": str(len(own)), **scores}


def page() -> str:
    all_cards = cards()
    parts = [INTRODUCTION, "\n".join(overview(all_cards)) + "\n", *(section(card) for card in all_cards)]
    return "\n".join([*parts, *measured()])


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(page())
    print(PAGE)
