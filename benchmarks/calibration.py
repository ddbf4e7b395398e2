"""Calibration of a model on random halves of the patients of a data set, tested on the other halves.

Per half and measure: the coverage of 90% intervals before and after the conformal offset (a random rater of a random
image of a patient, averaged over patients; and all rater values pooled), and their mean width. Of outlines: how often a
rater's is inside the conformal margin, and its mean size in pixels. Of probabilities: the calibration error of the
foreground before and after scaling, of all pixels pooled and with patients that count the same. Samples are drawn once
and kept in --cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from harness import argument_parser, write_csv
from stochseg.analysis import conformal_interval, conformal_offset, conformity, margin_map
from stochseg.data import open_path, spread
from stochseg.evaluation.calibrating import score_case
from stochseg.evaluation.fitting import by_patient, fit_scale, mean_by_patient
from stochseg.files import replaced_file
from stochseg.metrics import ece, foreground_bins, scale_probabilities
from stochseg.metrics.calibration import LIKELY, CalibrationBins
from stochseg.models import load
from stochseg.types import Samples

BATCH = 16
MEASURES = ("area", "longest diameter")


def draw(model: str, data, chosen: Sequence[int], n: int, cache: Path) -> tuple[np.ndarray, np.ndarray]:
    """Labels of the samples, "b n h w" in {0, 1}, and probability of the foreground, "b h w"; it resumes."""
    labels, mean = [], []
    if cache.is_file():
        stored = np.load(cache)
        labels, mean = [stored["labels"]], [stored["mean"]]
        done = stored["chosen"].tolist()
        assert done == list(chosen[: len(done)]), f"{cache} is of other images"
    done = sum(map(len, mean))
    segmenter = load(model) if done < len(chosen) else None
    for start in range(done, len(chosen), BATCH):
        stop = min(start + BATCH, len(chosen))
        drawn = segmenter.sample(
            torch.stack([data[i].image for i in chosen[start:stop]]), n, seed=0, allow_unusual_input=True
        )
        labels.append(np.packbits((drawn.labels > 0).numpy(), axis=-1))
        mean.append(drawn.mean[:, 1:].sum(1).numpy())
        with replaced_file(cache) as scratch, scratch.open("wb") as stream:
            np.savez(stream, chosen=chosen[:stop], labels=np.concatenate(labels), mean=np.concatenate(mean))
        print(f"sampled {stop} of {len(chosen)} images", flush=True)
    mean = np.concatenate(mean)
    return np.unpackbits(np.concatenate(labels), axis=-1, count=mean.shape[-1]), mean


def share(bins: CalibrationBins) -> CalibrationBins:
    """The bins of one patient with a total count of 1."""
    total = bins.count.sum()
    return CalibrationBins(bins.count / total, bins.confidence_sum / total, bins.correct_sum / total)


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
    labels, mean = draw(arguments.model, data, chosen, arguments.samples, arguments.cache)
    examples, info = [data[i] for i in chosen], data.info
    assert info.num_classes == 2, "expected data of two classes"
    maps = torch.from_numpy(np.stack([1 - mean, mean], 1))
    keys, weights = [(what, 1) for what in MEASURES], torch.full((1, arguments.samples), 1 / arguments.samples)
    cases = []
    for i, example in enumerate(examples):
        samples = Samples(torch.from_numpy(labels[i : i + 1]).long(), maps[i : i + 1], weights, 0, info=info)
        cases.append(score_case(i, example, samples, info, keys))
    groups = [case.group for case in cases]
    raters = [example.raters[None] for example in examples]

    def of(values: Sequence[np.ndarray], rows: Sequence[int]) -> float:
        return mean_by_patient([groups[i] for i in rows], [values[i] for i in rows])

    def errors(rows: Sequence[int], scaling) -> tuple[float, float]:
        """Calibration error of all pixels pooled, and with patients that count the same."""
        by_patient: dict[str, CalibrationBins] = {}
        for i in rows:
            own = maps[i : i + 1]
            own = own if scaling is None else scale_probabilities(own, scaling.slope, scaling.bias)
            found = foreground_bins(own, raters[i], at_least=LIKELY)
            by_patient[groups[i]] = by_patient[groups[i]] + found if groups[i] in by_patient else found
        pooled, *rest = [each for each in by_patient.values() if each.count.sum() > 0]
        equal = share(pooled)
        for each in rest:
            pooled, equal = pooled + each, equal + share(each)
        return float(ece(pooled)), float(ece(equal))

    measured = {key: [case.measured[key] for case in cases] for key in keys}
    scores = {key: [conformity(*pair) for pair in pairs] for key, pairs in measured.items()}
    depths = [case.margins[1] for case in cases]

    rows, names = [], sorted(set(groups))
    for half in range(arguments.halves):
        fitted = set(np.random.default_rng(half).permutation(names)[: len(names) // 2].tolist())
        fit, test = ([i for i, g in enumerate(groups) if (g in fitted) == inside] for inside in (True, False))
        row = {"model": arguments.model, "half": half, "images": len(chosen), "samples": arguments.samples}
        row |= {"fit_patients": len(fitted), "test_patients": len(names) - len(fitted)}
        for key in keys:
            name = "" if key[0] == "area" else f"{key[0].replace(' ', '_')}_"
            offset = conformal_offset(by_patient(groups, scores[key], fit))
            before, after = [s <= 0 for s in scores[key]], [s <= offset for s in scores[key]]
            ends = [(measured[key][i][0].interval(), conformal_interval(measured[key][i][0], offset)) for i in test]
            row |= {
                f"{name}offset": offset,
                f"{name}covered_before": of(before, test),
                f"{name}covered_after": of(after, test),
                f"{name}covered_pooled_before": float(np.concatenate([before[i] for i in test]).mean()),
                f"{name}covered_pooled_after": float(np.concatenate([after[i] for i in test]).mean()),
                f"{name}width_before": float(np.mean([high - low for (low, high), _ in ends])),
                f"{name}width_after": float(np.mean([high - low for _, (low, high) in ends])),
            }
        depth = conformal_offset(by_patient(groups, depths, fit))
        row |= {"margin_depth": depth, "margin_covered": of([s <= depth for s in depths], test)}
        row["margin_pixels"] = float(np.mean([(margin_map(mean[i], depth) == 1).sum() for i in test]))
        scaling = fit_scale([cases[i] for i in fit], "vector")
        for when, scaled in (("before", None), ("after", scaling)):
            row[f"ece_foreground_{when}"], row[f"ece_by_patient_{when}"] = errors(test, scaled)
        rows.append({key: round(value, 4) if isinstance(value, float) else value for key, value in row.items()})
        print(rows[-1], flush=True)
    numbers = [key for key, value in rows[0].items() if isinstance(value, float)]
    print({key: round(float(np.mean([row[key] for row in rows])), 4) for key in numbers})
    print(write_csv("calibration", rows, arguments.out))


if __name__ == "__main__":
    main()
