"""What network evaluations buy: GED and HM-IoU of a model at many numbers of calls, against the same one at the most.

python benchmarks/steps.py lidc data/lidc.h5 --runs runs/steps

Every way sees the same images with the same seeds, so that differences are taken image by image; their standard error
is far below that of a score. The released code's strided rule is `one_step_kernel`. Done parts are kept in --runs: a
call that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from harness import write_csv
from stochseg.data import SegmentationData, open_path, spread
from stochseg.evaluation import evaluate
from stochseg.evaluation.figures import quality_against_steps, write_figure
from stochseg.inference import with_engine
from stochseg.models import StochasticSegmenter, load
from stochseg.types import Example

WAYS = "sticky@1,2,5,10,25,250 one_step_kernel@5,10,25,250"
PART = 20
"""Images that are kept together."""
SCORES = ("ged_16", "ged_unbiased", "hm_iou_16")


class Part:
    """Some examples of a data set."""

    def __init__(self, data: SegmentationData, indices: list[int]):
        self.data, self.indices, self.info = data, indices, data.info

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> Example:
        return self.data[self.indices[i]]


def parts(data: SegmentationData, limit: int) -> Iterator[Part]:
    chosen = spread(len(data), limit)
    return (Part(data, chosen[i : i + PART]) for i in range(0, len(chosen), PART))


def scores(model: StochasticSegmenter, part: Part, file: Path, **options: object) -> list[dict[str, float]]:
    """One row an image, from the file if it was there."""
    if not file.exists():
        result = evaluate(model, part, samples=16, keep=0, **options)
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(".new")
        new.write_text(json.dumps([{key: row[key] for key in SCORES} for row in result.images]))
        new.rename(file)
    return json.loads(file.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--runs", type=Path, required=True, help="where finished parts are kept")
    parser.add_argument("--ways", default=WAYS, help=f"sampler@calls,calls … (default: {WAYS})")
    parser.add_argument("--limit", type=int, default=500, help="val images, evenly spread")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--engine", default="onnx")
    parser.add_argument("--out", type=Path, help="CSV to write (default: results/, named by the hardware)")
    arguments = parser.parse_args()
    model = with_engine(load(arguments.model), arguments.engine)
    data = open_path(arguments.data, "val")
    found: dict[tuple[str, int], np.ndarray] = {}
    for way in arguments.ways.split():
        sampler, _, calls = way.partition("@")
        for steps in map(int, calls.split(",")):
            runs = []
            for seed in range(arguments.seeds):
                folder = arguments.runs / f"{sampler}-{steps}-{seed}-of-{arguments.limit}"
                rows = [
                    row
                    for number, part in enumerate(parts(data, arguments.limit))
                    for row in scores(
                        model, part, folder / f"{number:04d}.json", sampler=sampler, steps=steps, seed=seed
                    )
                ]
                runs.append([[row[key] for key in SCORES] for row in rows])
            found[sampler, steps] = np.array(runs)  # "seed image score"
            print(sampler, steps, found[sampler, steps].mean((0, 1)).round(4), flush=True)
    first = arguments.ways.split("@")[0]
    most = found[first, max(steps for sampler, steps in found if sampler == first)]
    table, curves = [], {}
    for (sampler, steps), values in found.items():
        means = values.mean((0, 1))
        difference = (values - most).mean(0)[:, 0]  # of the GED, image by image
        row = {"sampler": sampler, "evaluations": steps, "images": values.shape[1], "seeds": values.shape[0]}
        row |= {key: round(float(value), 4) for key, value in zip(SCORES, means, strict=True)}
        row["ged_16_by_seed"] = " ".join(f"{value:.4f}" for value in values.mean(1)[:, 0])
        row["ged_16_over_most"] = round(float(means[0] / most.mean((0, 1))[0]), 4)
        row["difference_error"] = round(float(difference.std(ddof=1) / len(difference) ** 0.5), 4)
        table.append({**row, "engine": arguments.engine, "threads": torch.get_num_threads()})
        curves.setdefault(sampler, {})[steps] = row
    out = write_csv(f"steps-{arguments.model}", table, arguments.out)
    print(out, write_figure(quality_against_steps(curves), out.with_suffix(".png")))


if __name__ == "__main__":
    main()
