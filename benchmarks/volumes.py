"""Peak memory and time of `stochseg predict` with a model of volumes on a volume of the size of a CT.

python benchmarks/volumes.py

Every row is one process: the command as a user calls it. `small` is a `ccdm-fast` of narrow towers and 8 components
with fresh weights on the whole volume, in windows along all three axes, with all samples: everything that grows with
the volume. `one window`: all samples of a network on a volume of a single window, which is what the network takes.
`lidc-3d` is the bundled network, which labels everything here instead of the center, on the whole volume, with one
sample and one evaluation, because it takes long.

megabytes: peak memory of the process, libraries included.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import nibabel
import numpy as np
import torch

import harness
import stochseg
from large_image import predict
from stochseg.inference.plan import VOLUME_TILE
from stochseg.models import StochasticSegmenter
from stochseg.networks.tiles import TILE_SLICES

SMALL = {"patch": 4, "tower": [8, 8], "light": [8, 8], "tower_blocks": 1}


def scan(slices: int, rows: int, columns: int) -> np.ndarray:
    """A volume "x y z" of gradients with a bright ball, int16 in 0..255."""
    z, y, x = np.ogrid[-1 : 1 : slices * 1j, -1 : 1 : rows * 1j, -1 : 1 : columns * 1j]
    ball = 120 * ((x**2 + y**2 + z**2) < 0.1)
    return (40 * (x + 1) + 27 * (y + 1) + ball).astype(np.int16).T


def bundled() -> StochasticSegmenter:
    """The network of `lidc-3d`, which labels the whole volume."""
    trained = stochseg.load("lidc-3d")
    options = {**trained.config.model_dump(), "focus": None}
    info = trained.info.model_copy(update={"preparation": None})
    everywhere = stochseg.create("ccdm-fast", num_classes=2, image_channels=1, info=info, **options)
    everywhere.load_state_dict(trained.state_dict())
    return everywhere


def main() -> None:
    parser = harness.argument_parser(__doc__)
    parser.add_argument("--size", type=int, nargs=3, default=(300, 512, 512), help="slices, rows, columns")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--cases", type=int, nargs="+", default=[0, 1, 2, 3], help="rows to measure, in this order")
    arguments = parser.parse_args()
    window, size, many = (TILE_SLICES, VOLUME_TILE, VOLUME_TILE), tuple(arguments.size), arguments.samples
    create = partial(stochseg.create, "ccdm-fast", 2, 1, spatial_dims=3, components=8)
    cases = [
        ("small", partial(create, **SMALL), size, many, 2),
        ("lidc-3d, one window", bundled, window, many, 2),
        ("default, one window", create, window, many, 2),
        ("lidc-3d", bundled, size, 1, 1),
    ]
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for number in arguments.cases:
            name, make, size, samples, evaluations = cases[number]
            file = folder / f"scan-{number}.nii"
            nibabel.Nifti1Image(scan(*size), np.diag([0.7, 0.7, 1.25, 1])).to_filename(file)
            saved = stochseg.save(make(), folder / f"model-{number}")
            chosen = ["-n", samples, "--evaluations", evaluations, "--noise", "latin", "--allow-unusual-input"]
            cost = predict(saved, file, "--out", folder / f"out-{number}", *chosen)
            row = {"model": name, **dict(zip(("slices", "rows", "columns"), size, strict=True)), "samples": samples}
            rows.append({**row, "evaluations": evaluations, **cost, "threads": torch.get_num_threads()})
            print(rows[-1], flush=True)
            print(harness.write_csv("volume-memory", rows, arguments.out), flush=True)


if __name__ == "__main__":
    main()
