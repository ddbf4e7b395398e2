"""Quality by number of network evaluations: GED and HM-IoU of a model, compared with its largest number.

python benchmarks/evaluations.py lidc data/lidc.h5 --runs runs/evaluations

All samplers and numbers see the same images and seeds, so that differences are taken per image; their standard error is
far below that of a score. The reference is the largest number of evaluations, by default all 250 steps of the exact
sampler. `one-step-kernel` is the strided rule of the released code; with all steps it equals `ancestral`, where its
curve ends. Images are divided into parts, each spread over the whole split. Finished parts are kept in --runs: an
interrupted call continues, several processes can work at the same time, and --table writes the results so far.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness import argument_parser, write_csv
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

CASES = "sticky@1,2,5,10,25 one-step-kernel@5,10,25 ancestral@250"
PART = 20
"""Images per part."""
SCORES = ("ged_16", "hm_iou_16")

Case = tuple[str, int]
"""Sampler and number of network evaluations."""
Scores = dict[tuple[int, int], npt.NDArray[np.float64]]
"""Scores "image score" by seed and part."""


class Part:
    """Some examples of a data set."""

    def __init__(self, data: SegmentationData, indices: list[int]):
        self.data, self.indices, self.info = data, indices, data.info

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: int) -> Example:
        return self.data[self.indices[i]]


def parts(data: SegmentationData, limit: int) -> list[Part]:
    """Divide evenly spaced images into parts."""
    chosen = spread(len(data), limit)
    count = -(-len(chosen) // PART)
    return [Part(data, chosen[i::count]) for i in range(count)]


def score_part(model: StochasticSegmenter, part: Part, file: Path, options: SamplingOptions) -> None:
    """Write one row per image, unless the file exists or another process is writing it."""
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


def read_scores(folder: Path) -> Scores:
    """Read the finished parts of a case."""
    files = sorted(folder.glob("*/*.json"))
    return {(int(file.parent.name), int(file.stem)): np.array(json.loads(file.read_text())) for file in files}


def by_image(scores: Scores) -> dict[tuple[int, int], npt.NDArray[np.float64]]:
    """Average over seeds; keys are (part, image in the part)."""
    found: dict[tuple[int, int], list[npt.NDArray[np.float64]]] = {}
    for (_, part), rows in scores.items():
        for place, row in enumerate(rows):
            found.setdefault((part, place), []).append(row)
    return {key: np.mean(rows, 0) for key, rows in found.items()}


def row_of(scores: Scores, reference: Scores) -> dict[str, object]:
    """Average the scores of a case, and compare its GED with the reference on the images and seeds of both.

    standard_error: of the difference, divided by the GED of the reference, with images taken as independent; seeds:
    mean number per image.
    """
    images = by_image(scores)
    common = scores.keys() & reference.keys()
    ours, theirs = (by_image({key: found[key] for key in common}) for found in (scores, reference))
    pairs = np.array([(ours[key][0], theirs[key][0]) for key in ours])
    difference = pairs[:, 0] - pairs[:, 1]
    error = difference.std(ddof=1) / len(pairs) ** 0.5 / pairs[:, 1].mean()
    return {
        "images": len(images),
        "seeds": round(sum(map(len, scores.values())) / len(images), 2),
        **{key: round(float(value), 4) for key, value in zip(SCORES, np.mean([*images.values()], 0), strict=True)},
        "ged_16_over_reference": round(float(pairs[:, 0].mean() / pairs[:, 1].mean()), 4),
        "standard_error": round(float(error), 4),
        "images_compared": len(pairs),
        "seeds_compared": round(sum(len(scores[key]) for key in common) / len(pairs), 2),
    }


def run_folder(arguments: argparse.Namespace) -> Path:
    """Folder of the finished parts; other weights, defaults or data have another one."""
    saved = find_model(Path(arguments.model))
    about = "".join([sha256(saved / WEIGHTS), sha256(saved / CONFIG), str(arguments.data.resolve())])
    digest = hashlib.sha256(about.encode()).hexdigest()[:8]
    name = Path(arguments.model).name
    return arguments.runs / f"{name}-{digest}-{arguments.engine}-of-{arguments.limit}"


def compute(folders: dict[Case, Path], arguments: argparse.Namespace) -> None:
    """Score all parts that are not finished."""
    model = with_engine(load(arguments.model), arguments.engine)
    options = {case: SamplingOptions(sampler=case[0], evaluations=case[1]) for case in folders}
    for each in options.values():
        model.check_options(each)
    data = open_path(arguments.data, "val")
    for seed in range(arguments.seeds):
        for case, folder in folders.items():
            for number, part in enumerate(parts(data, arguments.limit)):
                file = folder / str(seed) / f"{number}.json"
                score_part(model, part, file, options[case].model_copy(update={"seed": seed}))
            print(seed, *case, np.mean([*by_image(read_scores(folder)).values()], 0).round(4), flush=True)


def write_table(results: dict[Case, Scores], arguments: argparse.Namespace) -> None:
    """Write the CSV file and the figure."""
    reference = max(results, key=lambda case: case[1])
    all_steps = load(arguments.model).max_evaluations
    table: list[dict[str, object]] = []
    curves: dict[str, dict[int, dict[str, object]]] = {}
    for (sampler, count), scores in results.items():
        if not scores.keys() & results[reference].keys():
            continue
        row = row_of(scores, results[reference])
        made = 2 * count - 1 if sampler == "corrector" else count
        table.append({"sampler": sampler, "evaluations": made, **row, "engine": arguments.engine})
        for curve in [sampler, "one-step-kernel"] if (sampler, count) == ("ancestral", all_steps) else [sampler]:
            curves.setdefault(curve, {})[made] = row
    out = write_csv(f"evaluations-{Path(arguments.model).name}", table, arguments.out)
    print(out, write_figure(quality_against_evaluations(curves), out.with_suffix(".png")))


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("model", help="run folder, saved model, or name of a bundled model")
    parser.add_argument("data", type=Path, help="packed store or folder; its validation split is used")
    parser.add_argument("--runs", type=Path, required=True, help="folder of finished parts")
    parser.add_argument("--cases", default=CASES, help=f"sampler@evaluations,evaluations …; default: {CASES}")
    parser.add_argument("--limit", type=int, default=500, help="maximum number of validation images, evenly spaced")
    parser.add_argument("--seeds", type=int, default=3, help="number of sampling seeds")
    parser.add_argument("--engine", default="onnx", help="inference engine")
    parser.add_argument("--table", action="store_true", help="only write the CSV file and the figure of finished parts")
    arguments = parser.parse_args()
    keep_freed_memory()
    split = [case.partition("@") for case in arguments.cases.split()]
    cases = [(sampler, int(count)) for sampler, _, counts in split for count in counts.split(",")]
    kept = run_folder(arguments)
    folders = {(sampler, count): kept / f"{sampler}-{count}" for sampler, count in cases}
    if not arguments.table:
        compute(folders, arguments)
        return
    results = {case: scores for case, folder in folders.items() if (scores := read_scores(folder))}
    if not results:
        parser.error(f"--table: {kept} has no finished parts; call without --table first")
    write_table(results, arguments)


if __name__ == "__main__":
    main()
