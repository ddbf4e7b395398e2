"""What network evaluations buy: GED and HM-IoU of a model at many numbers of calls, against the same one at the most.

python benchmarks/steps.py lidc data/lidc.h5 --runs runs/steps

Every way sees the same images with the same seeds, so that differences are taken image by image; their standard error
is far below that of a score. The reference is the way with the most evaluations, by default all 250 steps of the exact
sampler. The released code's strided rule is `one-step-kernel`; with all steps it takes no strides, and is `ancestral`,
so that its curve ends there. Images come in parts, each spread over the whole split. Done parts are kept in
--runs: a call that was interrupted goes on, several may work side by side, and --table writes what is there.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
from pathlib import Path

import numpy as np

from harness import write_csv
from stochseg.data import SegmentationData, open_path, spread
from stochseg.evaluation import evaluate
from stochseg.files import sha256
from stochseg.inference import with_engine
from stochseg.memory import keep_freed_memory
from stochseg.models import StochasticSegmenter, load
from stochseg.models.io import CONFIG, WEIGHTS, find_model
from stochseg.models.sampling import SamplingOptions
from stochseg.plotting import quality_against_evaluations, write_figure
from stochseg.types import Example

WAYS = "sticky@1,2,5,10,25 one-step-kernel@5,10,25 ancestral@250"
PART = 20
"""Images that are kept together."""
SCORES = ("ged_16", "hm_iou_16")


class Part:
    """Some examples of a data set."""

    def __init__(self, data: SegmentationData, indices: list[int]):
        self.data, self.indices, self.info = data, indices, data.info

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> Example:
        return self.data[self.indices[i]]


def parts(data: SegmentationData, limit: int) -> list[Part]:
    chosen = spread(len(data), limit)
    count = -(-len(chosen) // PART)
    return [Part(data, chosen[i::count]) for i in range(count)]


def scores(model: StochasticSegmenter, part: Part, file: Path, options: SamplingOptions) -> None:
    """Write one row an image, unless the file is there or another process is at it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        if file.exists():
            return
        result = evaluate(model, part, keep=0, options=options)
        new = file.with_suffix(".new")
        new.write_text(json.dumps([[row[key] for key in SCORES] for row in result.images]))
        new.rename(file)


Found = dict[tuple[int, int], np.ndarray]
"""Scores "image score" by seed and part."""


def found(folder: Path) -> Found:
    files = sorted(folder.glob("*/*.json"))
    return {(int(file.parent.name), int(file.stem)): np.array(json.loads(file.read_text())) for file in files}


def by_image(values: Found) -> dict[tuple[int, int], np.ndarray]:
    """Means over the seeds, by part and place in it."""
    seen: dict[tuple[int, int], list[np.ndarray]] = {}
    for (_, part), rows in values.items():
        for place, row in enumerate(rows):
            seen.setdefault((part, place), []).append(row)
    return {key: np.mean(rows, 0) for key, rows in seen.items()}


def row_of(values: Found, most: Found) -> dict[str, object]:
    """Scores over all that was found, and the GED against `most` on the images and seeds that both have.

    standard_error: of the difference to `most`, over the GED of `most`, with the images taken as independent; seeds:
    how many an image has on average."""
    scores = by_image(values)
    common = values.keys() & most.keys()
    ours, theirs = (by_image({key: found[key] for key in common}) for found in (values, most))
    pairs = np.array([(ours[key][0], theirs[key][0]) for key in ours])
    difference = pairs[:, 0] - pairs[:, 1]
    error = difference.std(ddof=1) / len(pairs) ** 0.5 / pairs[:, 1].mean()
    return {
        "images": len(scores),
        "seeds": round(sum(map(len, values.values())) / len(scores), 2),
        **{key: round(float(value), 4) for key, value in zip(SCORES, np.mean([*scores.values()], 0), strict=True)},
        "ged_16_over_most": round(float(pairs[:, 0].mean() / pairs[:, 1].mean()), 4),
        "standard_error": round(float(error), 4),
        "images_compared": len(pairs),
        "seeds_compared": round(sum(len(values[key]) for key in common) / len(pairs), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("data", type=Path)
    parser.add_argument("--runs", type=Path, required=True, help="where finished parts are kept")
    parser.add_argument("--ways", default=WAYS, help=f"sampler@calls,calls … (default: {WAYS})")
    parser.add_argument("--limit", type=int, default=500, help="val images, evenly spread")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--engine", default="onnx")
    parser.add_argument(
        "--table", action="store_true", help="compute nothing, but write the CSV and picture of what is in --runs"
    )
    parser.add_argument("--out", type=Path, help="CSV to write (default: results/, named by the hardware)")
    arguments = parser.parse_args()
    keep_freed_memory()
    ways = [
        (sampler, int(steps))
        for sampler, _, calls in (way.partition("@") for way in arguments.ways.split())
        for steps in calls.split(",")
    ]
    name = Path(arguments.model).name
    # Parts of other weights, defaults or data do not mix with these.
    saved = find_model(Path(arguments.model))
    about = "".join([sha256(saved / WEIGHTS), sha256(saved / CONFIG), str(arguments.data.resolve())])
    digest = hashlib.sha256(about.encode()).hexdigest()[:8]
    kept = arguments.runs / f"{name}-{digest}-{arguments.engine}-of-{arguments.limit}"
    folders = {way: kept / f"{way[0]}-{way[1]}" for way in ways}
    if not arguments.table:
        model = with_engine(load(arguments.model), arguments.engine)
        for sampler, steps in ways:
            model.check_options(SamplingOptions(evaluations=steps, sampler=sampler))
        data = open_path(arguments.data, "val")
        for seed in range(arguments.seeds):
            for (sampler, steps), folder in folders.items():
                for number, part in enumerate(parts(data, arguments.limit)):
                    file = folder / str(seed) / f"{number}.json"
                    scores(model, part, file, SamplingOptions(sampler=sampler, evaluations=steps, seed=seed))
                print(seed, sampler, steps, np.mean([*by_image(found(folder)).values()], 0).round(4), flush=True)
        return
    results = {way: values for way, folder in folders.items() if (values := found(folder))}
    if not results:
        parser.error(f"--table: nothing was found in {kept}; call without --table first")
    most = max(results, key=lambda way: way[1])
    results = {way: values for way, values in results.items() if values.keys() & results[most].keys()}
    every_step = load(arguments.model).config.num_timesteps
    table: list[dict[str, object]] = []
    curves: dict[str, dict[int, dict[str, object]]] = {}
    for (sampler, steps), values in results.items():
        row = row_of(values, results[most])
        calls = 2 * steps - 1 if sampler == "corrector" else steps
        table.append({"sampler": sampler, "evaluations": calls, **row, "engine": arguments.engine})
        for curve in [sampler, "one-step-kernel"] if (sampler, steps) == ("ancestral", every_step) else [sampler]:
            curves.setdefault(curve, {})[calls] = row
    out = write_csv(f"steps-{name}", table, arguments.out)
    print(out, write_figure(quality_against_evaluations(curves), out.with_suffix(".png")))


if __name__ == "__main__":
    main()
