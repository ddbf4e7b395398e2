"""The scores of a model in the box: the table of its card.

python benchmarks/shipped.py lidc data/lidc.h5

Default settings with three sampling seeds, and the same with independent noise, which alone tells the unbiased GED. A
second CSV (calibration) has how often raters mark what the model gives a probability, over all of these samples.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from harness import scores_of, write_csv
from stochseg.data import open_path
from stochseg.evaluation import evaluate
from stochseg.memory import keep_freed_memory
from stochseg.metrics import CalibrationBins, foreground_bins
from stochseg.metrics.calibration import LIKELY
from stochseg.models import load
from stochseg.models.sampling import SamplingOptions
from stochseg.types import Batch, Samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--limit", type=int, default=500, help="val images, evenly spread")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="CSV to write (default: results/, named by the hardware)")
    arguments = parser.parse_args()
    keep_freed_memory()
    model, data = load(arguments.model), open_path(arguments.data, "val")
    rows: list[dict[str, object]] = []
    bins: list[CalibrationBins] = []

    def collect(_: int, batch: Batch, out: Samples) -> None:
        bins.append(foreground_bins(out.mean, batch.raters, mask=batch.mask, at_least=LIKELY))

    for noise in dict.fromkeys((model.config.noise, "independent")):
        for seed in range(arguments.seeds):
            result = evaluate(
                model,
                data,
                options=SamplingOptions(n=16, noise=noise, seed=seed),
                limit=arguments.limit,
                keep=0,
                on_image=collect,
            )
            about = {key: result.settings[key] for key in ("images", "sampler", "grid", "evaluations", "noise", "seed")}
            rows.append({"model": arguments.model, **about, **scores_of(result)})
            print(rows[-1], flush=True)
            path = write_csv(f"{arguments.model}-val", rows, arguments.out)
    print(path)
    total = sum(bins[1:], start=bins[0])
    counts, sums, marked = (values.tolist() for values in (total.count, total.confidence_sum, total.correct_sum))
    table = [
        {"from": i / len(counts), "labels": count, "probability": round(p / count, 4), "raters": round(k / count, 4)}
        for i, (count, p, k) in enumerate(zip(counts, sums, marked, strict=True))
        if count
    ]
    out = None if arguments.out is None else arguments.out.with_stem(f"{arguments.out.stem}-calibration")
    print(write_csv(f"{arguments.model}-calibration", table, out))


if __name__ == "__main__":
    main()
