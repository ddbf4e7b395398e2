"""Peak memory and time of `stochseg predict` with a model of volumes on a volume of the size of a CT.

python benchmarks/volumes.py

Every row is one process: the command as a user calls it. `small` is a `ccdm-fast` of narrow towers and 8 components
with fresh weights on the whole volume, in windows along all three axes: everything that grows with the volume.
`default, one window` has the default towers and 8 components on a volume of a single window: what the network takes.

megabytes: peak memory of the process, libraries included.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import nibabel
import numpy as np
import torch

import harness
import stochseg
from large_image import predict
from stochseg.inference.plan import VOLUME_TILE
from stochseg.networks.tiles import TILE_SLICES

SMALL = {"patch": 4, "tower": [8], "light": [8], "tower_blocks": 1}


def scan(slices: int, rows: int, columns: int) -> np.ndarray:
    """A volume "x y z" of gradients with a bright ball, int16 in 0..255."""
    z, y, x = np.ogrid[-1 : 1 : slices * 1j, -1 : 1 : rows * 1j, -1 : 1 : columns * 1j]
    ball = 120 * ((x**2 + y**2 + z**2) < 0.1)
    return (40 * (x + 1) + 27 * (y + 1) + ball).astype(np.int16).T


def main() -> None:
    parser = harness.argument_parser(__doc__)
    parser.add_argument("--size", type=int, nargs=3, default=(300, 512, 512), help="slices, rows, columns")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--evaluations", type=int, default=2, help="network evaluations per sample")
    parser.add_argument("--noise", nargs="+", default=["latin"], help="kinds of noise")
    arguments = parser.parse_args()
    window = (TILE_SLICES, VOLUME_TILE, VOLUME_TILE)
    cases = [("small", SMALL, tuple(arguments.size), noise) for noise in arguments.noise]
    cases.append(("default, one window", {}, window, "latin"))
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for number, (name, towers, size, noise) in enumerate(cases):
            file = folder / f"scan-{number}.nii"
            nibabel.Nifti1Image(scan(*size), np.diag([0.7, 0.7, 1.25, 1])).to_filename(file)
            model = stochseg.create("ccdm-fast", 2, 1, spatial_dims=3, components=8, **towers)
            saved = stochseg.save(model, folder / f"model-{number}")
            counts = {"samples": arguments.samples, "evaluations": arguments.evaluations}
            chosen = ["-n", counts["samples"], "--evaluations", counts["evaluations"], "--noise", noise]
            cost = predict(saved, file, "--out", folder / f"out-{number}", *chosen)
            shape = dict(zip(("slices", "rows", "columns"), size, strict=True))
            rows.append({"model": name, **shape, **counts, "noise": noise, **cost, "threads": torch.get_num_threads()})
            print(rows[-1], flush=True)
    print(harness.write_csv("volume-memory", rows, arguments.out))


if __name__ == "__main__":
    main()
