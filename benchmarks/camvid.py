"""mIoU on CamVid under one budget: categorical diffusion and cross-entropy, with and without frozen features.

python benchmarks/camvid.py data/camvid.h5 --runs runs/camvid

The table has the form of that for Cityscapes in the CCDM paper: mIoU of the map fused from 1, 5 and 10 samples, by the
mean of their probabilities and by majority vote. Every network is trained for the same time. Runs and finished rows are
kept in --runs: several processes can work on different methods, and a last call without methods writes the table.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from rich.console import Console

from harness import argument_parser, write_csv
from stochseg.data import Resized, open_path
from stochseg.evaluation import evaluate
from stochseg.experiments.recipes import recipe
from stochseg.files import write_text
from stochseg.inference import with_engine
from stochseg.models import load
from stochseg.models.sampling import SamplingOptions
from stochseg.training import TrainConfig, train

COUNTS = (1, 5, 10)
UNET = {"base": 32, "multipliers": [1, 2, 2, 4], "blocks": 1, "attention": [8]}
FEATURES = {"encoder": "efficientnet-lite0"}
DIFFUSION = {**UNET, "objective": "cross-entropy", "t_power": 2, "grid": "entropy", "evaluations": 10}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ccdm": ("ccdm", DIFFUSION),
    "ccdm + EfficientNet-Lite0": ("ccdm", {**DIFFUSION, **FEATURES}),
    "unet-ce": ("unet-ce", UNET),
    "unet-ce + EfficientNet-Lite0": ("unet-ce", {**UNET, **FEATURES}),
    "smp:deeplabv3/resnet50": ("smp:deeplabv3/resnet50", {}),
}


def settings_of(name: str, arguments: argparse.Namespace) -> TrainConfig:
    model_name, options = CASES[name]
    config = recipe("small", [], arguments.data)
    return config.model_copy(
        update={
            "data": config.data.model_copy(update={"size": tuple(arguments.size), "augment": "flip-jitter"}),
            "model": config.model.model_copy(update={"name": model_name, "options": options}),
            "steps": 10**9,
            "minutes": arguments.minutes,
            "batch_size": 8,
            "optimizer": "adam",
            "lr": 5e-4,
            "decay": "cosine",
            "tail": 0.25,
            "warmup": 100,
            "precision": "auto",
            "validation": config.validation.model_copy(update={"every": 10**9, "images": 2, "num_samples": 2}),
        }
    )


def row_of(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train and evaluate one method, or read the row of an earlier call."""
    folder = arguments.runs / re.sub("[^a-z0-9]+", "-", name.lower())
    kept = folder / f"row-{arguments.limit or 'all'}-{arguments.engine}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    train(settings_of(name, arguments), folder, resume=True, device="cpu", console=Console(stderr=True))
    model = load(folder / "last")
    val = Resized(open_path(arguments.data, "val"), tuple(arguments.size))
    sampling = with_engine(model, arguments.engine) if model.accelerated_modules else model
    options = SamplingOptions(n=max(COUNTS), noise="independent")
    scores = evaluate(sampling, val, options=options, limit=arguments.limit, keep=0).metrics
    height, width = arguments.size
    row: dict[str, Any] = {
        "method": name,
        "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "minutes": f"{arguments.minutes:g}",
        "images": arguments.limit or len(val),
        "height": height,
        "width": width,
        "engine": sampling.engine,
    }
    row |= {f"{rule}_{n}": round(100 * scores[f"miou_{rule}_{n}"], 1) for rule in ("mean", "vote") for n in COUNTS}
    write_text(kept, json.dumps(row))
    return row


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("data", type=Path, help="packed store of CamVid (stochseg data import camvid …)")
    parser.add_argument("methods", nargs="*", help=f"train only these and write no table; known: {', '.join(CASES)}")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--minutes", type=float, default=6.0, help="training time per network")
    parser.add_argument("--size", type=int, nargs=2, default=(96, 128), help="height and width of the images")
    parser.add_argument("--limit", type=int, help="maximum number of validation images, evenly spaced; default: all")
    parser.add_argument("--engine", default="eager", help="inference engine, for models that support it")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.methods or CASES:
        rows.append(row_of(name, arguments))
        print(rows[-1], flush=True)
    if not arguments.methods:
        print(write_csv("camvid", rows, arguments.out))


if __name__ == "__main__":
    main()
