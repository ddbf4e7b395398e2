"""mIoU on CamVid under one budget: categorical diffusion and cross-entropy, with and without frozen features.

The table has the form of the CCDM paper's for Cityscapes: the mIoU of the fused map with 1, 5 and 10 samples, fused by
the mean of their probabilities and by majority vote. Every network trains for the same wall time; the runs are kept in
--runs, and one that is complete is only evaluated.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from harness import write_csv
from stochseg.data import Resized, open_path
from stochseg.evaluation import fusion_miou
from stochseg.models import load
from stochseg.recipes import recipe
from stochseg.training import train

COUNTS = (1, 5, 10)
UNET = {"base": 32, "multipliers": [1, 2, 2, 4], "blocks": 1, "attention": [8]}
FEATURES = {"encoder": "efficientnet-lite0"}
DIFFUSION = {**UNET, "objective": "cross-entropy", "t_power": 2, "grid": "entropy", "steps": 10}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ccdm": ("ccdm", DIFFUSION),
    "ccdm + EfficientNet-Lite0": ("ccdm", {**DIFFUSION, **FEATURES}),
    "unet-ce": ("unet-ce", UNET),
    "unet-ce + EfficientNet-Lite0": ("unet-ce", {**UNET, **FEATURES}),
    "smp:deeplabv3/resnet50": ("smp:deeplabv3/resnet50", {}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the packed store of CamVid (stochseg data import camvid …)")
    parser.add_argument("--runs", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("--minutes", type=float, default=6.0, help="training time of each")
    parser.add_argument("--size", type=int, nargs=2, default=(96, 128), help="height and width of networks and metrics")
    parser.add_argument("--limit", type=int, help="evaluate on so many val images, evenly spread; default: all")
    parser.add_argument("--out", type=Path, help="CSV file; default: benchmarks/results/camvid-<hardware>.csv")
    arguments = parser.parse_args()

    val = Resized(open_path(arguments.data, "val"), tuple(arguments.size))
    rows = []
    for name, (model_name, options) in CASES.items():
        config = recipe("small", [], arguments.data)
        config = config.model_copy(
            update={
                "data": config.data.model_copy(update={"size": tuple(arguments.size), "augment": "flip-jitter"}),
                "model": config.model.model_copy(update={"name": model_name, "options": options}),
                "steps": 10**9,
                "minutes": arguments.minutes,
                "batch_size": 8,
                "decay": "cosine",
                "precision": "auto",
                "validation": config.validation.model_copy(update={"every": 10**9, "images": 2, "samples": 2}),
            }
        )
        folder = arguments.runs / name.replace(" + ", "+").replace("/", "-").replace(":", "-")
        train(config, folder, resume=True, device="cpu", console=Console(stderr=True))
        model = load(folder / "last")
        scores = fusion_miou(model, val, counts=COUNTS, limit=arguments.limit)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        height, width = arguments.size
        row = {"method": name, "trained_parameters": trained, "minutes": f"{arguments.minutes:g}"}
        row |= {"images": arguments.limit or len(val), "height": height, "width": width}
        row |= {f"{rule}_{n}": round(100 * scores[n, rule], 1) for rule in ("mean", "vote") for n in COUNTS}
        rows.append(row)
        print(row, flush=True)
    print(write_csv("camvid", rows, arguments.out))


if __name__ == "__main__":
    main()
