"""Cost of `stochseg predict` on a large image, and the effect of the size of its tiles on the samples.

python benchmarks/large_image.py

Every row is one process: the command as a user calls it, on a mosaic of phantoms. `ccdm-fast` is the default model with
fresh weights, for its cost; `lidc, no focus` has the bundled weights (8 components, Latin noise) and labels the whole
image, so that its labels are meaningful. Both use few network evaluations per sample, which changes the time in
proportion and does not change the memory.

megabytes: peak memory of the process, libraries included; agreement: fraction of the pixels of all samples with the
same label as in the first layout; iou: of their foreground.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import tifffile
import torch
from PIL import Image

import harness
import stochseg
from stochseg.data import Phantoms

LAYOUTS = ((512, 96), (384, 96))
"""Tile and overlap; the first is the default of `predict`."""
FRESH, TRAINED = "ccdm-fast", "lidc, no focus"
PLACE = 128


def mosaic(side: int) -> np.ndarray:
    """Phantoms of 128×128 pixels next to each other, "side side" uint8."""
    count = -(-side // PLACE)
    phantoms = Phantoms("test", size=PLACE, count=count**2)
    rows = [np.hstack([phantoms.raw(y * count + x) for x in range(count)]) for y in range(count)]
    return np.vstack(rows)[:side, :side]


def models() -> dict[str, stochseg.StochasticSegmenter]:
    bundled = stochseg.load("lidc")
    options = {**bundled.config.model_dump(), "focus": None}
    everywhere = stochseg.create("ccdm-fast", num_classes=2, image_channels=1, info=bundled.info, **options)
    everywhere.load_state_dict(bundled.state_dict())
    return {FRESH: stochseg.create("ccdm-fast", num_classes=2, image_channels=1), TRAINED: everywhere}


def predict(*arguments: object) -> dict[str, float]:
    """Run the command and measure its wall time, CPU time and peak memory."""
    start = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "stochseg", "predict", *map(str, arguments)])
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"predict ended with {child.returncode}")
    kilobyte = 1 if sys.platform == "darwin" else 2**10
    return {
        "megabytes": round(usage.ru_maxrss * kilobyte / 2**20),
        "seconds": round(time.perf_counter() - start, 1),
        "core_seconds": round(usage.ru_utime + usage.ru_stime, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--evaluations", type=int, default=2, help="network evaluations per sample")
    parser.add_argument("--out", type=Path, help="CSV to write (default: results/, named by the hardware)")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        picture = folder / "mosaic.png"
        Image.fromarray(mosaic(arguments.side)).save(picture)
        for number, (name, model) in enumerate(models().items()):
            saved, first = stochseg.save(model, folder / f"model-{number}"), None
            # Fresh weights give every pixel the same probabilities, so that any two layouts agree.
            for tile, overlap in LAYOUTS[:1] if name == FRESH else LAYOUTS:
                out = folder / f"out-{number}-{tile}-{overlap}"
                options = ["--tile", tile, "--overlap", overlap, "-n", arguments.samples]
                cost = predict(saved, picture, "--out", out, *options, "--evaluations", arguments.evaluations)
                drawn = tifffile.imread(out / "mosaic" / "samples.tif") > 0
                first = drawn if first is None else first
                same = {"agreement": "", "iou": ""}
                if drawn is not first:
                    same["agreement"] = round(float((drawn == first).mean()), 5)
                    same["iou"] = round(float((drawn & first).sum() / (drawn | first).sum()), 5)
                size = {"side": arguments.side, "samples": arguments.samples, "evaluations": arguments.evaluations}
                layout = {"model": name, "tile": tile, "overlap": overlap}
                rows.append({**layout, **size, **cost, **same, "threads": torch.get_num_threads()})
                print(rows[-1], flush=True)
    print(harness.write_csv("large_image", rows, arguments.out))


if __name__ == "__main__":
    main()
