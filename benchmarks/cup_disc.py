"""Intervals of the vertical cup/disc ratio: how many of the experts' ratios they hold, before and after calibration.

python benchmarks/cup_disc.py runs/papila --data data/papila.h5

The offset that widens the intervals is fitted, by patient, on the training patients that the run has kept back
(`data.tune`); the patients of val are used for nothing but this table. A bundled model takes them from --tune-of RUN.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from harness import argument_parser, write_csv
from stochseg.analysis import Measurement, conformal_interval, conformal_offset, conformity, measure
from stochseg.data import SegmentationData, group_names, open_path
from stochseg.metrics import ged
from stochseg.models import SamplingOptions, StochasticSegmenter, load
from stochseg.training.config import read_config
from stochseg.training.splits import open_split

RATIO = "vertical cup/disc ratio"


def measured(
    model: StochasticSegmenter, data: SegmentationData, n: int
) -> tuple[list[tuple[Measurement, Measurement]], float]:
    """Ratios of samples and experts per image, and the mean GED of the first 16 samples' number."""
    pairs, distances = list[tuple[Measurement, Measurement]](), list[float]()
    for i in range(len(data)):
        example = data[i]
        samples = model.sample(example.image[None], n)
        pairs.append((measure(samples, RATIO), measure(example.raters, RATIO, info=data.info)))
        first = samples.labels if n == 16 else model.sample(example.image[None], 16).labels
        distances.append(ged(first, example.raters[None], model.num_classes).item())
    return pairs, float(np.mean(distances))


def row(pairs: list[tuple[Measurement, Measurement]], offset: float, confidence: float) -> dict[str, object]:
    ends = [conformal_interval(samples, offset, confidence) for samples, _ in pairs]
    inside = [
        (low <= experts.values) & (experts.values <= high)
        for (low, high), (_, experts) in zip(ends, pairs, strict=True)
    ]
    errors = [abs(samples.mean - experts.mean) for samples, experts in pairs]
    return {
        "offset": round(offset, 4),
        "held": round(float(np.mean(np.concatenate(inside))), 4),
        "ratios": sum(map(len, inside)),
        "width": round(float(np.mean([high - low for low, high in ends])), 4),
        "error_of_mean": round(float(np.mean(errors)), 4),
    }


def main() -> None:
    parser: argparse.ArgumentParser = argument_parser(__doc__)
    parser.add_argument("model", help="run folder, saved model or bundled one")
    parser.add_argument("--data", type=Path, required=True, help="packed store or folder")
    parser.add_argument("--tune-of", type=Path, help="run whose kept-back patients calibrate; default: the model")
    parser.add_argument("--samples", type=int, default=32, help="samples per image")
    parser.add_argument("--confidence", type=float, default=0.9, help="of the intervals")
    arguments = parser.parse_args()
    model, n, confidence = load(arguments.model), arguments.samples, arguments.confidence
    model.check_options(SamplingOptions(n=n))
    tune = open_split(read_config((arguments.tune_of or Path(arguments.model)) / "train.yaml"), "tune")
    by_patient: dict[str, list[np.ndarray]] = {}
    held_back, _ = measured(model, tune, n)
    for name, (samples, experts) in zip(group_names(tune), held_back, strict=True):
        by_patient.setdefault(name, []).append(conformity(samples, experts.values, confidence))
    offset = conformal_offset(list(by_patient.values()), confidence)
    pairs, distance = measured(model, open_path(arguments.data, "val"), n)
    about = {"model": arguments.model, "samples": n, "ged_16": round(distance, 4), "patients": len(by_patient)}
    rows = [
        {**about, "intervals": kind, **row(pairs, o, confidence)} for kind, o in (("raw", 0.0), ("calibrated", offset))
    ]
    for each in rows:
        print(each)
    print(write_csv("cup-disc", rows, arguments.out))


if __name__ == "__main__":
    main()
