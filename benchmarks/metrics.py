"""Time of GED and HM-IoU on one thread, compared with loops over pairs of maps.

python benchmarks/metrics.py

The loops are the obvious implementation: three double loops for GED, and for HM-IoU either all pairs of the two
repeated sets ("as defined") or each pair of sample and rater once ("n·k pairs"). They run on torch tensors, which
models return, and on numpy arrays, whose comparisons are several times faster on a CPU.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.optimize import linear_sum_assignment

import harness
from stochseg.metrics import ged_from_iou, hm_iou_from_iou, iou_blocks

Maps = Sequence[np.ndarray] | Sequence[torch.Tensor]

NUM_CLASSES = 2
# Mean radius as a fraction of the side: a lung nodule in a crop of 128 pixels, and an organ that fills the image.
RADII = {"small": 0.08, "large": 0.35}


def main() -> None:
    args = _arguments()
    torch.set_num_threads(1)
    rows = [row for masks in RADII for row in measure(masks, args)]
    _print(rows)
    print("written:", harness.write_csv("metrics", rows, args.out))


def measure(masks: str, args: argparse.Namespace) -> list[dict[str, object]]:
    """Time all implementations on the same maps and check that they agree."""
    generator = torch.Generator().manual_seed(args.seed)
    samples = blobs(args.samples, args.size, RADII[masks], generator)
    raters = blobs(args.raters, args.size, RADII[masks], generator)
    arrays = samples.numpy(), raters.numpy()
    ways: dict[str, tuple[Callable[[], tuple[float, float]], int]] = {
        "stochseg": (lambda: library(samples[None], raters[None]), args.repeats),
        "numpy loop, n·k pairs": (lambda: loop(*arrays, loop_hm_iou_pairs), args.loop_repeats),
        "numpy loop, as defined": (lambda: loop(*arrays, loop_hm_iou_repeated), args.loop_repeats),
        "torch loop, n·k pairs": (lambda: loop(samples, raters, loop_hm_iou_pairs), args.loop_repeats),
        "torch loop, as defined": (lambda: loop(samples, raters, loop_hm_iou_repeated), args.loop_repeats),
    }
    expected = library(samples[None], raters[None])
    rows = []
    for way, (run, repeats) in ways.items():
        np.testing.assert_allclose(run(), expected, atol=1e-9)
        wall, cpu = harness.timed(run, repeats)
        rows.append({"masks": masks, "way": way, "milliseconds": wall, "cpu_milliseconds": cpu})
    # CPU times, because other programs on the machine disturb them least.
    for row in rows:
        row["ratio"] = row["cpu_milliseconds"] / rows[0]["cpu_milliseconds"]
    shared = {
        "samples": args.samples,
        "raters": args.raters,
        "size": args.size,
        "classes": NUM_CLASSES,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
    return [{k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()} | shared for row in rows]


def blobs(count: int, size: int, radius: float, generator: torch.Generator) -> torch.Tensor:
    """Draw label maps "n h w" of one object as by different raters: irregular edges, some see nothing."""

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    center = size / 2 + 0.1 * radius * size * normal(count, 2, 1, 1)
    grid = torch.arange(size, dtype=torch.float32)
    y, x = grid[:, None] - center[:, 0], grid[None] - center[:, 1]
    angle = torch.atan2(y, x)
    edge = 1 + 0.2 * normal(count, 1, 1)
    for wave in (2, 3, 5):
        edge = edge + 0.1 * normal(count, 1, 1) * torch.sin(wave * angle + 3 * normal(count, 1, 1))
    seen = torch.rand(count, 1, 1, generator=generator) > 0.1
    return ((torch.hypot(x, y) < radius * size * edge) & seen).long()


def library(samples: torch.Tensor, raters: torch.Tensor) -> tuple[float, float]:
    blocks = iou_blocks(samples, raters, NUM_CLASSES)
    return float(ged_from_iou(*blocks)), float(hm_iou_from_iou(blocks.samples_raters))


def loop(samples: Maps, raters: Maps, hm_iou: Callable[[Maps, Maps], float]) -> tuple[float, float]:
    return loop_ged(samples, raters), hm_iou(samples, raters)


def loop_ged(samples: Maps, raters: Maps) -> float:
    between = [1 - loop_iou(s, y) for s in samples for y in raters]
    within_raters = [1 - loop_iou(y, other) for y in raters for other in raters]
    within_samples = [1 - loop_iou(s, other) for s in samples for other in samples]
    return float(2 * np.mean(between) - np.mean(within_raters) - np.mean(within_samples))


def loop_hm_iou_pairs(samples: Maps, raters: Maps) -> float:
    size = math.lcm(len(samples), len(raters))
    iou = np.array([[loop_iou(s, y) for y in raters] for s in samples])
    return _best_match(np.tile(iou, (size // len(samples), size // len(raters))))


def loop_hm_iou_repeated(samples: Maps, raters: Maps) -> float:
    size = math.lcm(len(samples), len(raters))
    samples = [*samples] * (size // len(samples))
    raters = [*raters] * (size // len(raters))
    return _best_match(np.array([[loop_iou(s, y) for y in raters] for s in samples]))


def _best_match(iou: np.ndarray) -> float:
    rows, columns = linear_sum_assignment(iou, maximize=True)
    return float(iou[rows, columns].mean())


def loop_iou(a: np.ndarray | torch.Tensor, b: np.ndarray | torch.Tensor) -> float:
    scores = []
    for label in range(1, NUM_CLASSES):
        in_a, in_b = a == label, b == label
        union = (in_a | in_b).sum()
        intersection = (in_a & in_b).sum()
        scores.append(1.0 if union == 0 else float(intersection / union))
    return float(np.mean(scores))


def _print(rows: list[dict[str, object]]) -> None:
    table = Table(title=f"GED + HM-IoU, {harness.hardware()}, one thread, medians")
    columns = ("masks", "way", "milliseconds", "cpu_milliseconds", "ratio")
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(row[column]) for column in columns))
    Console().print(table)


def _arguments() -> argparse.Namespace:
    parser = harness.argument_parser(__doc__)
    parser.add_argument("--samples", type=int, default=100, help="number of samples")
    parser.add_argument("--raters", type=int, default=4, help="number of raters")
    parser.add_argument("--size", type=int, default=128, help="height and width of the maps")
    parser.add_argument("--repeats", type=int, default=200, help="timings of the library")
    parser.add_argument("--loop-repeats", type=int, default=3, help="timings of the loops")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the maps")
    return parser.parse_args()


if __name__ == "__main__":
    main()
