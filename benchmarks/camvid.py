"""mIoU on CamVid under one budget: categorical diffusion, the same U-Net with cross-entropy, and established networks.

OMP_NUM_THREADS=1 python benchmarks/camvid.py data/camvid.h5 fast unet-ce --runs runs/camvid --minutes 8
python benchmarks/camvid.py data/camvid.h5 --runs runs/camvid

The table has the form of that for Cityscapes in the CCDM paper: mIoU of the map fused from 1, 5 and 10 samples, by the
mean of their probabilities and by majority vote, for three trainings per method. All start with the same ImageNet
weights (EfficientNet-Lite0). The budget is CPU time of one core, and the learning rate decays over it. Other work on
the machine slows steps down, so the methods take turns: all with the first seed, then all with the next. Runs and
finished rows are kept in --runs: calls can be repeated, and made for other methods, seeds or budgets. A call without
methods writes the table of all finished rows.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from rich.console import Console

from harness import argument_parser, provenance, write_csv
from stochseg.data import Resized, open_path
from stochseg.evaluation import evaluate
from stochseg.experiments.recipes import recipe
from stochseg.files import write_text
from stochseg.inference import with_engine
from stochseg.memory import keep_freed_memory
from stochseg.models import load
from stochseg.models.sampling import SamplingOptions
from stochseg.training import TrainConfig, train
from stochseg.training.log import last_step
from stochseg.training.precision import has_bfloat16

COUNTS = (1, 5, 10)
METHODS: dict[str, tuple[str, list[str]]] = {
    "fast": ("camvid-fast", []),
    # Only pure noise as input: the network of camvid-fast as an ordinary one, trained with cross-entropy.
    "fast-ce": (
        "camvid-fast",
        ["model.options.pure=1", "model.options.draws=1", "model.options.evaluations=1"],
    ),
    # Cross-entropy alone in the first half of the training.
    "fast-late": ("camvid-fast", ["model.options.denoise_from=0.5"]),
    "fast-frozen": ("camvid-fast", ["model.options.encoder_lr=0"]),
    "fast-pure0": ("camvid-fast", ["model.options.pure=0"]),
    # Also turned, scaled, shifted and bent images.
    "fast-warp": ("camvid-fast", ["data.augment=flip-jitter-warp"]),
    "smp": ("camvid-smp", []),
    "unet-ce": ("camvid-unet-ce", []),
    "unet-ce-warp": ("camvid-unet-ce", ["data.augment=flip-jitter-warp"]),
    "ccdm": ("camvid-ccdm", []),
}
"""Recipes and what is changed in them."""


def settings_of(name: str, seed: int, arguments: argparse.Namespace) -> TrainConfig:
    height, width = arguments.size
    base, changed = METHODS[name]
    overrides = [
        *changed,
        f"minutes={arguments.minutes}",
        "clock=cpu",
        "steps=1000000",  # more than fit
        f"seed={seed}",
        f"data.size=[{height}, {width}]",
        "data.workers=0",
        "validation.every=1000000000",
        "validation.images=2",
        "validation.num_samples=2",
        "validation.calibration_images=0",
        "save_every=100",
    ]
    return recipe(base, overrides, arguments.data)


def row_of(name: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train and evaluate one method with one seed, or read the row of an earlier call."""
    folder = arguments.runs / name / f"{arguments.minutes:g}-minutes-seed-{seed}"
    kept = folder / "row.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    train(settings_of(name, seed, arguments), folder / "run", resume=True, device="cpu", console=Console())
    model = load(folder / "run" / "last")
    size = tuple(arguments.size)
    val = Resized(open_path(arguments.data, "val"), size)
    evaluations = model.default_sampling().evaluations or 1
    fast = evaluations > 1 and has_bfloat16(torch.device("cpu"))
    sampling = with_engine(model, "bfloat16") if fast else model
    options = SamplingOptions(n=max(COUNTS), noise="independent")
    scores = evaluate(sampling, val, options=options, keep=0).metrics
    row: dict[str, Any] = {
        "method": name,
        "model": model.name,
        "seed": seed,
        "trained_parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "minutes": arguments.minutes,
        "steps": last_step(folder / "run"),
        "images": len(val),
        "height": size[0],
        "width": size[1],
        "evaluations": evaluations,
    }
    row |= {f"{rule}_{n}": round(100 * scores[f"miou_{rule}_{n}"], 2) for rule in ("mean", "vote") for n in COUNTS}
    row |= provenance()
    write_text(kept, json.dumps(row))
    return row


def summary(rows: list[dict[str, Any]]) -> str:
    """mIoU of a method so far, mean ± standard deviation over seeds."""
    values = {n: [row[f"mean_{n}"] for row in rows] for n in COUNTS}
    parts = [f"{n}: {mean(found):.1f} ± {stdev(found) if len(found) > 1 else 0:.1f}" for n, found in values.items()]
    return f"{rows[0]['method']}: mIoU by number of samples {', '.join(parts)}"


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    parser = argument_parser(__doc__)
    parser.add_argument("data", type=Path, help="packed store of CamVid (stochseg data import camvid …)")
    parser.add_argument("methods", nargs="*", help=f"train these; known: {' '.join(METHODS)}")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--minutes", type=float, default=8.0, help="core-minutes of training per network")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--size", type=int, nargs=2, default=(120, 160), help="height and width of the images")
    arguments = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in arguments.methods}
    for seed in arguments.seeds:  # outside, so that a call that is stopped leaves as many rows of each method
        for name, done in rows.items():
            done.append(row_of(name, seed, arguments))
            print(summary(done), flush=True)
    if not arguments.methods:
        found = [json.loads(kept.read_text()) for kept in arguments.runs.glob("*/*/row.json")]
        order = list(METHODS)
        found.sort(key=lambda row: (row["minutes"], order.index(row["method"]), row["seed"]))
        print(write_csv("camvid", found, arguments.out))


if __name__ == "__main__":
    main()
