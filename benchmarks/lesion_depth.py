"""Nodules in longer scans: what a model of volumes says in slices beyond the ends of a nodule.

python benchmarks/lesion_depth.py lidc-3d data/lidc-nodules.h5 --slices 4 8 16

Nodules of the val patients with at least 3 slices, evenly spaced. The store has no slices beyond the first and last
outline. They are made from the nodule's own: mirrored, with all that a rater has marked (and 3 pixels around it)
replaced by dark pixels of its surroundings. So the anatomy is real, the ends are known, and there is no nodule
beyond them. The scan is written as NIfTI and segmented as a user does.

how: `box` is the exact extent, as in training; `at` is the middle of the nodule with this number of slices at first.
covered: fraction of the raters' volumes within the central 90% of the samples. ged: of whole volumes, slices beyond the
ends included. ratio: mean volume of the samples over that of the raters. empty: probability of nothing. beyond:
fraction of the sampled volume outside the extent. part: slices that were segmented in the end.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import nibabel
import numpy as np
import numpy.typing as npt
import torch
from scipy.ndimage import binary_dilation, gaussian_filter

from harness import argument_parser, write_csv
from stochseg.analysis.measurement import Measurement
from stochseg.data import open_path
from stochseg.inference import Lesion, PredictOptions, predict_lesions
from stochseg.metrics import ged
from stochseg.models import StochasticSegmenter, load
from stochseg.types import Example

MIN_SLICES = 3
BEYOND = 16
"""Slices beyond each end of a nodule."""
AROUND = 3
SAMPLES = 16

Array = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]


def without_nodule(image: Array, marked: Bools) -> Array:
    """A slice "h w" with the marked pixels replaced by dark ones of their surroundings, which are lung."""
    hidden = binary_dilation(marked, iterations=AROUND)
    if not hidden.any():
        return image
    around = image[binary_dilation(hidden, iterations=AROUND) & ~hidden]
    dark = np.random.default_rng(0).choice(around[around <= np.median(around)], image.shape)
    return np.where(hidden, gaussian_filter(dark, 1.0), image)


def longer_scan(example: Example) -> Array:
    """The volume "d h w" of 0..255 with `BEYOND` slices without nodule at both ends."""
    image, marked = (example.image[0] * 127.5 + 127.5).numpy(), (example.raters > 0).any(0).numpy()
    empty = np.stack([without_nodule(*pair) for pair in zip(image, marked, strict=True)])
    scan = empty[np.pad(np.arange(len(image)), BEYOND, mode="symmetric")]
    scan[BEYOND:-BEYOND] = image
    return np.rint(scan).astype(np.float32)


def segmented(model: StochasticSegmenter, scan: Array, lesion: Lesion, folder: Path) -> tuple[Bools, int]:
    """Samples "n d h w" of a lesion in the whole scan, and the number of slices of the part."""
    file = folder / "scan.nii"
    nibabel.Nifti1Image(scan.transpose(2, 1, 0), np.diag([-0.7, -0.7, 1.5, 1.0])).to_filename(file)
    (outcome,) = predict_lesions(model, file, [lesion], folder / "out", PredictOptions(n=SAMPLES), overwrite=True)
    assert outcome.folder is not None, outcome.problem
    (found,) = json.loads((outcome.folder / "result.json").read_text())["lesions"]
    first, last = (found["part"][key][2] for key in ("first_voxel", "last_voxel"))
    labels = np.asarray(nibabel.load(outcome.folder / "lesions/a/samples.nii.gz").dataobj).transpose(3, 2, 1, 0) > 0
    outside = ((0, 0), (first, len(scan) - 1 - last), (0, 0), (0, 0))
    return np.pad(labels, outside), last + 1 - first


def scores_of(samples: Bools, example: Example) -> dict[str, float]:
    """Scores of the samples "n d h w" of one nodule in its longer scan."""
    beyond = np.zeros((BEYOND, *samples.shape[2:]), dtype=bool)
    raters = np.stack([np.concatenate([beyond, rater, beyond]) for rater in example.raters.numpy() > 0])
    sizes, rated = samples.sum((1, 2, 3)).astype(float), raters.sum((1, 2, 3))
    low, high = Measurement("volume", sizes, np.full(len(sizes), 1 / len(sizes))).interval(0.9)
    both = (torch.from_numpy(maps)[None].long() for maps in (samples, raters))
    return {
        "covered": float(((low <= rated) & (rated <= high)).mean()),
        "ged": ged(*both, 2).item(),
        "sampled": float(sizes.mean()),
        "rated": float(rated.mean()),
        "outside": float(sizes.mean() - samples[:, BEYOND:-BEYOND].sum((1, 2, 3)).mean()),
        "empty": float((sizes == 0).mean()),
    }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("model", help="bundled model, run or saved model")
    parser.add_argument("data", type=Path, help="packed store of nodules; its validation split is used")
    parser.add_argument("--slices", type=int, nargs="+", default=[4, 8, 16], help="slices around the point at first")
    parser.add_argument("--limit", type=int, default=24, help="nodules, evenly spaced")
    arguments = parser.parse_args()
    model = load(arguments.model).eval()
    data = open_path(arguments.data, "val")
    long = [i for i in range(len(data)) if data.space(i)[0] >= MIN_SLICES]  # type: ignore[attr-defined]
    chosen = [long[i] for i in np.linspace(0, len(long) - 1, arguments.limit).round().astype(int)]
    cases: list[tuple[str, int | None]] = [
        ("box", None),
        *(("at", count) for count in arguments.slices),
    ]
    scores: dict[tuple[str, int | None], list[dict[str, float]]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as scratch:
        for i in chosen:
            example = data[i]
            scan, depth = longer_scan(example), example.image.shape[1]
            for how, count in cases:
                if count is not None:
                    assert model.info.preparation is not None
                    preparation = model.info.preparation.model_copy(update={"slices": count})
                    model.info = model.info.model_copy(update={"preparation": preparation})
                box = ((63, 63, BEYOND), (64, 64, BEYOND + depth - 1))
                corners = ((64, 64, BEYOND + depth // 2),) if how == "at" else box
                samples, part = segmented(model, scan, Lesion("a", corners), Path(scratch))
                scores[how, count].append({**scores_of(samples, example), "part": part, "depth": depth})
            print(example.id, depth, {case: round(rows[-1]["sampled"]) for case, rows in scores.items()}, flush=True)
    rows = []
    for (how, count), found in scores.items():
        mean = {key: float(np.mean([each[key] for each in found])) for key in found[0]}
        row: dict[str, object] = {
            "model": Path(arguments.model).name,
            "how": how,
            "slices": count or "",
            "nodules": len(found),
        }
        row |= {key: round(mean[key], 4) for key in ("covered", "ged", "empty")}
        row |= {
            "ratio": round(mean["sampled"] / mean["rated"], 3),
            "beyond": round(mean["outside"] / mean["sampled"], 4),
        }
        row |= {"part": round(mean["part"], 1), "extent": round(mean["depth"], 1)}
        rows.append(row)
        print(row)
    print(write_csv("lesion-depth", rows, arguments.out))


if __name__ == "__main__":
    main()
