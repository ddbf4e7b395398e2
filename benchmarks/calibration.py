"""Calibration of a model on random halves of the patients of a data set, tested on the other halves.

Per half: the coverage of 90% intervals of the area of all foreground before and after the conformal offset (a random
rater of a random image of a patient, averaged over patients; and all rater values pooled), their mean width, and the
calibration error of the foreground before and after vector scaling. Samples are drawn once and kept in --cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from harness import argument_parser, write_csv
from stochseg.analysis import Measurement, conformal_interval, conformal_offset, conformity
from stochseg.data import open_path, spread
from stochseg.files import replaced_file
from stochseg.metrics import ece, fit_scaling, foreground_bins, scale_probabilities
from stochseg.metrics.calibration import LIKELY
from stochseg.models import load


def draw(model: str, data, chosen: Sequence[int], n: int, cache: Path) -> tuple[np.ndarray, np.ndarray]:
    """Area of the foreground per sample, "b n", and probability of the foreground, "b h w"; from the cache if there."""
    if not cache.is_file():
        segmenter, areas, mean = load(model), [], []
        for start in range(0, len(chosen), 16):
            images = torch.stack([data[i].image for i in chosen[start : start + 16]])
            drawn = segmenter.sample(images, n, seed=0, allow_unusual_input=True)
            areas.append((drawn.labels > 0).flatten(2).sum(2).numpy())
            mean.append(drawn.mean[:, 1:].sum(1).numpy())
            print(f"sampled {start + len(images)} of {len(chosen)} images", flush=True)
        with replaced_file(cache) as scratch, scratch.open("wb") as stream:
            np.savez(stream, chosen=chosen, areas=np.concatenate(areas), mean=np.concatenate(mean))
    stored = np.load(cache)
    assert stored["chosen"].tolist() == list(chosen), f"{cache} is of other images"
    return stored["areas"], stored["mean"]


def by_patient(groups: Sequence[str], chosen: Sequence[int], values: Sequence[np.ndarray]) -> list[float]:
    """Mean over patients of the mean over their images of the mean over raters."""
    patients = sorted({groups[i] for i in chosen})
    return [float(np.mean([values[i].mean() for i in chosen if groups[i] == patient])) for patient in patients]


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", default="lidc")
    parser.add_argument("--split", default="val")
    parser.add_argument("--limit", type=int, default=800, help="evenly spaced images")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--halves", type=int, default=20)
    parser.add_argument("--cache", type=Path, required=True, help="file of the samples, written if missing")
    arguments = parser.parse_args()

    data = open_path(arguments.data, arguments.split)
    chosen = spread(len(data), arguments.limit)
    areas, mean = draw(arguments.model, data, chosen, arguments.samples, arguments.cache)
    examples = [data[i] for i in chosen]
    groups = [example.group for example in examples]
    raters = [(example.raters > 0).long() for example in examples]
    values = [each.flatten(1).sum(1).numpy().astype(float) for each in raters]
    measured = [Measurement("area", row.astype(float), np.full(len(row), 1 / len(row))) for row in areas]
    scores = [conformity(samples, own) for samples, own in zip(measured, values, strict=True)]
    maps = torch.from_numpy(np.stack([1 - mean, mean], 1))
    votes = torch.stack([torch.stack([(r == label).sum(0) for label in (0, 1)]) for r in raters])

    def widths(offset: float | None, tested: Sequence[int]) -> float:
        ends = [measured[i].interval() if offset is None else conformal_interval(measured[i], offset) for i in tested]
        return float(np.mean([high - low for low, high in ends]))

    def error(tested: Sequence[int], scaling: tuple[list[float], list[float]] | None) -> float:
        bins = None
        for i in tested:
            own = maps[i : i + 1] if scaling is None else scale_probabilities(maps[i : i + 1], *scaling)
            found = foreground_bins(own, raters[i][None], at_least=LIKELY)
            bins = found if bins is None else bins + found
        return float(ece(bins))

    rows, names = [], sorted(set(groups))
    for half in range(arguments.halves):
        fitted = set(np.random.default_rng(half).permutation(names)[: len(names) // 2].tolist())
        fit, test = ([i for i, g in enumerate(groups) if (g in fitted) == inside] for inside in (True, False))
        patients = {group: [scores[i] for i in fit if groups[i] == group] for group in fitted}
        offset = conformal_offset(list(patients.values()), 0.9)
        pixels = maps[fit].movedim(1, -1).reshape(-1, 2)
        counts = votes[fit].movedim(1, -1).reshape(-1, 2)
        likely = pixels[:, 1] >= LIKELY
        scaling = fit_scaling(pixels[likely], counts[likely], "vector")
        before, after = [s <= 0 for s in scores], [s <= offset for s in scores]
        row = {"model": arguments.model, "half": half, "images": len(chosen), "samples": arguments.samples}
        row |= {"fit_patients": len(fitted), "test_patients": len(names) - len(fitted), "offset": round(offset, 4)}
        row |= {
            "covered_before": round(float(np.mean(by_patient(groups, test, before))), 4),
            "covered_after": round(float(np.mean(by_patient(groups, test, after))), 4),
            "covered_pooled_before": round(float(np.concatenate([before[i] for i in test]).mean()), 4),
            "covered_pooled_after": round(float(np.concatenate([after[i] for i in test]).mean()), 4),
            "width_before": round(widths(None, test), 2),
            "width_after": round(widths(offset, test), 2),
            "ece_foreground_before": round(error(test, None), 4),
            "ece_foreground_after": round(error(test, scaling), 4),
        }
        rows.append(row)
        print(row, flush=True)
    keys = [key for key, value in rows[0].items() if isinstance(value, float)]
    print({key: round(float(np.mean([row[key] for row in rows])), 4) for key in keys})
    print(write_csv("calibration", rows, arguments.out))


if __name__ == "__main__":
    main()
