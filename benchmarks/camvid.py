"""mIoU on CamVid under one budget: categorical diffusion, the same U-Net with cross-entropy, and established networks.

OMP_NUM_THREADS=1 python benchmarks/camvid.py data/camvid.h5 fast unet-ce --runs runs/camvid --minutes 8
python benchmarks/camvid.py data/camvid.h5 --runs runs/camvid

The table has the form of that for Cityscapes in the CCDM paper: mIoU of the map fused from 1, 5 and 10 samples, by the
mean of their probabilities and by majority vote, for three trainings per method. All start with the same ImageNet
weights (EfficientNet-Lite0). The budget is CPU time of one core: as many steps as fit, from the CPU time of a few
steps, so that other work on the machine does not matter. Runs, step times and finished rows are kept in --runs: calls
can be repeated, and made for other methods, seeds or budgets. A call without methods writes the table of all finished
rows.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
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
from stochseg.training.precision import has_bfloat16

COUNTS = (1, 5, 10)
METHODS: dict[str, tuple[str, list[str]]] = {
    "fast": ("camvid-fast", []),
    # Only pure noise as input: the network of camvid-fast as an ordinary one, trained with cross-entropy.
    "fast-ce": (
        "camvid-fast",
        ["model.options.pure=1", "model.options.draws=1", "model.options.evaluations=1"],
    ),
    "fast-frozen": ("camvid-fast", ["model.options.encoder_lr=0"]),
    "fast-pure0": ("camvid-fast", ["model.options.pure=0"]),
    "smp": ("camvid-smp", []),
    "unet-ce": ("camvid-unet-ce", []),
    "ccdm": ("camvid-ccdm", []),
}
"""Recipes and what is changed in them."""
TIMED = (4, 16)
"""Steps of two short trainings; the difference of their CPU times is that of the steps between."""
QUIET = Console(stderr=True, quiet=True)


def settings_of(name: str, steps: int, seed: int, arguments: argparse.Namespace) -> TrainConfig:
    height, width = arguments.size
    base, changed = METHODS[name]
    overrides = [
        *changed,
        f"steps={steps}",
        f"seed={seed}",
        f"data.size=[{height}, {width}]",
        "data.workers=0",
        "validation.every=1000000000",
        "validation.images=2",
        "validation.num_samples=2",
        "validation.calibration_images=0",
    ]
    return recipe(base, overrides, arguments.data)


def seconds_per_step(name: str, arguments: argparse.Namespace) -> float:
    """CPU seconds of an optimizer step, measured once for all seeds."""
    kept = arguments.runs / name / "step.json"
    if not kept.exists():
        spent = []
        for steps in TIMED:
            with TemporaryDirectory() as folder:
                start = time.process_time()
                train(settings_of(name, steps, 0, arguments), Path(folder) / "run", device="cpu", console=QUIET)
                spent.append(time.process_time() - start)
        seconds = (spent[1] - spent[0]) / (TIMED[1] - TIMED[0])
        write_text(kept, json.dumps({"cpu_seconds_per_step": seconds}))
    return float(json.loads(kept.read_text())["cpu_seconds_per_step"])


def row_of(name: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train and evaluate one method with one seed, or read the row of an earlier call."""
    folder = arguments.runs / name / f"{arguments.minutes:g}-minutes-seed-{seed}"
    kept = folder / "row.json"
    if kept.exists():
        return dict(json.loads(kept.read_text()))
    steps = round(60 * arguments.minutes / seconds_per_step(name, arguments))
    train(settings_of(name, steps, seed, arguments), folder / "run", resume=True, device="cpu", console=Console())
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
        "steps": steps,
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
    """mIoU of a method, mean ± standard deviation over seeds."""
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
    for name in arguments.methods:
        print(summary([row_of(name, seed, arguments) for seed in arguments.seeds]), flush=True)
    if not arguments.methods:
        rows = [json.loads(kept.read_text()) for kept in arguments.runs.glob("*/*/row.json")]
        order = list(METHODS)
        rows.sort(key=lambda row: (row["minutes"], order.index(row["method"]), row["seed"]))
        print(write_csv("camvid", rows, arguments.out))


if __name__ == "__main__":
    main()
