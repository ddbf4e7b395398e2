"""Samples that are mostly foreground, which no rater draws: a known failure of `ssn`.

OMP_NUM_THREADS=1 python benchmarks/inverted.py runs/fair/ssn/pilot-1/at-10m data/lidc.h5

The fraction of samples of which more than half is foreground, on the center of evenly spaced val slices of LIDC, and of
the raters' maps for which this holds.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fair import IMAGES, val_slices
from harness import argument_parser, write_csv
from stochseg.data import spread
from stochseg.models import load

SAMPLES = 16


def mostly_foreground(maps: Tensor) -> Tensor:
    """Whether more than half of each map "m h w" is foreground."""
    return (maps > 0).double().flatten(1).mean(1) > 0.5


def main() -> None:
    torch.set_num_threads(1)
    parser = argument_parser(__doc__)
    parser.add_argument("model", type=Path, help="folder of a trained model")
    parser.add_argument("data", type=Path, help="packed store of LIDC (stochseg data import lidc-slices …)")
    arguments = parser.parse_args()
    model, data = load(arguments.model), val_slices(arguments.data)
    inverted, rated = list[Tensor](), list[Tensor]()
    for i in spread(len(data), IMAGES):
        samples = model.sample(data[i].image[None], SAMPLES, noise="independent").labels[0]
        inverted.append(mostly_foreground(samples))
        rated.append(mostly_foreground(data[i].raters))
    row: dict[str, object] = {"model": model.name, "images": len(inverted), "samples": len(inverted) * SAMPLES}
    for name, found in (("inverted_fraction", inverted), ("rater_fraction", rated)):
        row[name] = f"{torch.cat(found).double().mean():.4f}"
    print(row)
    print(write_csv("inverted", [row], arguments.out))


if __name__ == "__main__":
    main()
