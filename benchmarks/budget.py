"""Trainings of one budget on LIDC, scored alike: the table of equal budgets in README.md.

python benchmarks/budget.py data/lidc.h5 lidc-fast-s:1=runs/fast ccdm:1=runs/ccdm unet-ce:1=runs/unet-ce

A run is given as name:cores=folder (OMP_NUM_THREADS=1 stochseg compare METHOD … --budget 60m, or any other of the same
core-minutes). The last weights of all are scored on the same images, the center of the val slices, to which the
two-tower model is held anyway; with the model's own noise and, where that is another, with independent noise.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from harness import scores_of, write_csv
from stochseg.data import open_dataset
from stochseg.evaluation import evaluate
from stochseg.inference import with_engine
from stochseg.memory import keep_freed_memory
from stochseg.models import load
from stochseg.models.sampling import SamplingOptions

CENTRE = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the packed store of LIDC (stochseg data import lidc-slices …)")
    parser.add_argument("runs", nargs="+", metavar="NAME:CORES=FOLDER")
    parser.add_argument("--limit", type=int, default=500, help="val images, evenly spread")
    parser.add_argument("--evaluations", type=int, default=10, help="network evaluations of models that make more")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="sampling seeds")
    parser.add_argument("--engine", default="bfloat16")
    parser.add_argument("--out", type=Path, help="CSV to write (default: results/, named by the hardware)")
    arguments = parser.parse_args()
    keep_freed_memory()
    data = open_dataset("store", "val", path=str(arguments.data), center=CENTRE)
    runs = []
    for text in arguments.runs:
        about, _, folder = text.partition("=")
        name, _, cores = about.partition(":")
        last = Path(folder) / "last"
        runs.append((name, int(cores), load(last), json.loads((last / "state" / "progress.json").read_text())))
    rows: list[dict[str, object]] = []
    for name, cores, model, progress in runs:
        own = model.default_sampling().evaluations or 0
        evaluations = arguments.evaluations if own > arguments.evaluations else None
        fast = with_engine(model, arguments.engine)
        for noise in dict.fromkeys((model.default_sampling().noise, "independent")):
            for seed in arguments.seeds:
                result = evaluate(
                    fast,
                    data,
                    options=SamplingOptions(n=16, evaluations=evaluations, noise=noise, seed=seed),
                    limit=arguments.limit,
                    keep=0,
                )
                row: dict[str, object] = {
                    "method": name,
                    "parameters": sum(p.numel() for p in model.parameters()),
                    "train_steps": progress["step"],
                    "train_core_minutes": round(cores * progress["seconds"] / 60, 1),
                    "images": result.settings["images"],
                    "evaluations": int(result.metrics["evaluations_per_sample"]),
                    "noise": noise,
                    "seed": seed,
                    "engine": arguments.engine,
                }
                rows.append(row | scores_of(result))
                print(rows[-1], flush=True)
                path = write_csv("budget-lidc", rows, arguments.out)
    print(path)


if __name__ == "__main__":
    main()
