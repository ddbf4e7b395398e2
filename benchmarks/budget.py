"""Score trainings of equal budget on LIDC: the table of equal budgets.

python benchmarks/budget.py data/lidc.h5 lidc-fast-s:1=runs/fast ccdm:1=runs/ccdm unet-ce:1=runs/unet-ce

A run is written as name:cores=folder; make runs of equal core-minutes, for example with OMP_NUM_THREADS=1 stochseg
compare METHOD … --budget 60m. The last weights of every run are scored on the same images, the center of the validation
slices, which is all that the two-tower model labels. Noise is the default of the model and, if that differs,
independent.
"""

from __future__ import annotations

import json
from pathlib import Path

from harness import argument_parser, scores_of, write_csv
from stochseg.data import open_dataset
from stochseg.evaluation import evaluate
from stochseg.inference import with_engine
from stochseg.memory import keep_freed_memory
from stochseg.models import load
from stochseg.models.sampling import SamplingOptions

CENTER = 64


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("data", type=Path, help="packed store of LIDC (stochseg data import lidc-slices …)")
    parser.add_argument("runs", nargs="+", metavar="NAME:CORES=FOLDER", help="a run and its number of cores")
    parser.add_argument("--limit", type=int, default=500, help="maximum number of validation images, evenly spaced")
    parser.add_argument("--evaluations", type=int, default=10, help="maximum number of network evaluations per sample")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="sampling seeds")
    parser.add_argument("--engine", default="bfloat16", help="inference engine")
    arguments = parser.parse_args()
    keep_freed_memory()
    data = open_dataset("store", "val", path=str(arguments.data), center=CENTER)
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
