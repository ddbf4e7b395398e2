"""GED on PAPILA under one budget: `ccdm-fast` and other methods on towers of the same size, and the raters' hands.

OMP_NUM_THREADS=1 python benchmarks/papila.py data/papila.h5 ccdm-fast ssn --runs runs/papila
python benchmarks/papila.py data/papila.h5 --runs runs/papila

All take the images, augmentation, optimizer, learning rate, batch size and precision of the recipe `papila`, and the
same CPU time of one core. `raters` is the recipe with `rater_conditioning`, whose samples are of either expert. Scores
are of 16 samples of every validation image; the interval is of the difference to `ccdm-fast`, by bootstrap over
patients. Runs and finished rows are kept in --runs. A call without methods writes the table of all finished rows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from harness import argument_parser, provenance, scores_of, write_csv
from stochseg.data import open_path
from stochseg.evaluation import evaluate
from stochseg.experiments.fair_table import difference
from stochseg.experiments.recipes import recipe
from stochseg.files import write_text
from stochseg.memory import keep_freed_memory
from stochseg.models import load
from stochseg.models.sampling import SamplingOptions
from stochseg.training import train
from stochseg.training.log import last_step

OURS = "ccdm-fast"
TOWER = "{image_tower: {patch: 4, tower: [48, 64, 96, 128], tower_blocks: 1}}"
METHODS = {
    OURS: [],
    "raters": ["model.options.rater_conditioning=true"],
    **{name: [f"model={{name: {name}, options: {TOWER}}}"] for name in ("ssn", "prob-unet", "unet-ce")},
}
"""What is changed in the recipe."""
SAMPLES = 16


def row_of(name: str, data: Path, runs: Path, minutes: float) -> dict[str, Any]:
    """Train and evaluate one method, or read the row of an earlier call. `images`: GED of each."""
    folder = runs / name
    kept = folder / "row.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    settings = recipe("papila", [*METHODS[name], f"minutes={minutes}", "clock=cpu", "steps=100000"], data)
    train(settings, folder / "run", resume=True, device="cpu", console=Console())
    model = load(folder / "run")
    result = evaluate(model, open_path(data, "val"), options=SamplingOptions(n=SAMPLES), keep=0)
    row = {
        "method": name,
        "minutes": minutes,
        "steps": last_step(folder / "run"),
        **scores_of(result),
        **provenance(),
        "images": {image["id"]: image[f"ged_{SAMPLES}"] for image in result.images},
    }
    write_text(kept, json.dumps(row))
    return row


def table(rows: list[dict[str, Any]], data: Path) -> list[dict[str, Any]]:
    """The rows with the number of images and the difference of GED to `OURS`, best first."""
    val = open_path(data, "val")
    patients = {(each := val[i]).id: each.group or each.id for i in range(len(val))}
    ours: dict[str, float] = next((row["images"] for row in rows if row["method"] == OURS), {})
    done = []
    for row in sorted(rows, key=lambda row: float(row["ged_16"])):
        images, facts = row["images"], {key: value for key, value in row.items() if key != "images"}
        mean, interval = difference(images, ours if images is not ours else {}, patients)
        low, high = interval or (None, None)
        compared = {"difference": mean, "low": low, "high": high}
        rounded = {key: "" if value is None else round(value, 4) for key, value in compared.items()}
        done.append({**facts, "images": len(images), **rounded})
    return done


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    parser = argument_parser(__doc__)
    parser.add_argument("data", type=Path, help="packed store of PAPILA (stochseg data import folder …)")
    parser.add_argument("methods", nargs="*", help=f"train these; known: {' '.join(METHODS)}")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--minutes", type=float, default=15.0, help="core-minutes of training per method")
    arguments = parser.parse_args()
    for name in arguments.methods:
        row = row_of(name, arguments.data, arguments.runs, arguments.minutes)
        print(f"{name}: GED {row['ged_16']} after {row['steps']} steps", flush=True)
    if not arguments.methods:
        rows = [json.loads(kept.read_text()) for kept in sorted(arguments.runs.glob("*/row.json"))]
        for row in table(rows, arguments.data):
            print(row)
        print(write_csv("papila", table(rows, arguments.data), arguments.out))


if __name__ == "__main__":
    main()
