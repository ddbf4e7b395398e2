"""Scores of a bundled model: the table of its card.

python benchmarks/bundled.py lidc data/lidc.h5

Default sampling options with three seeds, and the same with independent noise, which the unbiased GED needs. A second
CSV file (calibration) has the fraction of raters that mark a label, by its predicted probability, over all samples.
"""

from __future__ import annotations

from pathlib import Path

from harness import argument_parser, scores_of, write_csv
from stochseg.data import open_path
from stochseg.evaluation import evaluate
from stochseg.memory import keep_freed_memory
from stochseg.metrics import CalibrationBins, foreground_bins
from stochseg.metrics.calibration import LIKELY
from stochseg.models import load
from stochseg.models.sampling import SamplingOptions
from stochseg.types import Batch, Samples


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("model", help="name of a bundled model")
    parser.add_argument("data", type=Path, help="packed store or folder; its validation split is used")
    parser.add_argument("--limit", type=int, default=500, help="maximum number of validation images, evenly spaced")
    parser.add_argument("--seeds", type=int, default=3, help="number of sampling seeds")
    arguments = parser.parse_args()
    keep_freed_memory()
    model, data = load(arguments.model), open_path(arguments.data, "val")
    rows: list[dict[str, object]] = []
    bins: list[CalibrationBins] = []

    def collect(_: int, batch: Batch, out: Samples) -> None:
        bins.append(foreground_bins(out.mean, batch.raters, mask=batch.mask, at_least=LIKELY))

    for noise in dict.fromkeys((model.default_sampling().noise, "independent")):
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
