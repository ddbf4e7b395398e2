"""Intervals of the vertical cup/disc ratio: how many of the experts' ratios they hold, before and after calibration.

python benchmarks/cup_disc.py papila --data data/papila.h5

The model is calibrated by `stochseg calibrate RUN --split tune`; the patients of val are for this table alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness import argument_parser, write_csv
from stochseg.analysis import conformal_interval, measure
from stochseg.data import open_path, spread
from stochseg.errors import UserError
from stochseg.metrics import ged
from stochseg.models import load

RATIO = "vertical cup/disc ratio"
SAMPLES, CONFIDENCE = 16, 0.9


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("model", help="calibrated model")
    parser.add_argument("--data", type=Path, required=True, help="packed store or folder; its validation split is used")
    parser.add_argument("--limit", type=int, help="at most this many images, evenly spaced")
    arguments = parser.parse_args()
    model, data = load(arguments.model), open_path(arguments.data, "val")
    fitted = None if model.calibration is None else model.calibration.interval(RATIO, None, CONFIDENCE)
    if fitted is None or fitted.offset is None:
        raise UserError(f"{arguments.model}: the {RATIO} is not calibrated; run stochseg calibrate")
    pairs, distances = [], []
    for i in spread(len(data), arguments.limit or len(data)):
        example = data[i]
        samples = model.sample(example.image[None], SAMPLES)
        pairs.append((measure(samples, RATIO), measure(example.raters, RATIO, info=data.info).values))
        distances.append(ged(samples.labels, example.raters[None], model.num_classes).item())
    rows: list[dict[str, object]] = []
    for kind, offset in (("raw", 0.0), ("calibrated", fitted.offset)):
        ends = [conformal_interval(ratio, offset, CONFIDENCE) for ratio, _ in pairs]
        inside = [(low <= experts) & (experts <= high) for (low, high), (_, experts) in zip(ends, pairs, strict=True)]
        rows.append(
            {
                "model": arguments.model,
                "intervals": kind,
                "images": len(pairs),
                "held": round(float(np.mean(np.concatenate(inside))), 4),
                "width": round(float(np.mean([high - low for low, high in ends])), 4),
                "error_of_mean": round(float(np.mean([abs(r.mean - experts.mean()) for r, experts in pairs])), 4),
                "offset": round(offset, 4),
                "ged_16": round(float(np.mean(distances)), 4),
            }
        )
        print(rows[-1])
    print(write_csv("cup-disc", rows, arguments.out))


if __name__ == "__main__":
    main()
