"""Time and memory of one reverse step on one thread, compared with an explicit sum over x0 and with the network.

python benchmarks/reverse_step.py

The explicit sum builds pi(x_t, x0) of the paper for every x0, a tensor "b l l h w", and sums it with p0, by einsum or
by a product and a sum. The closed form of the library allocates "b l h w" at most. Sizes are those of the paper:
Cityscapes at 128×256, batch 5, L=20.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import harness
from stochseg.core import BatchNoise, CategoricalProcess, cosine, draw_categorical
from stochseg.networks import ConcatUNet, UNetConfig

OURS, UNET = "posterior", "U-Net forward, 30M"
EINSUM, PRODUCT = "explicit, einsum", "explicit, product and sum"


def main() -> None:
    args = _arguments()
    torch.set_num_threads(1)
    with torch.inference_mode():
        rows = measure(args)
    _print(rows)
    print("written:", harness.write_csv("reverse_step", rows, args.out))


def measure(args: argparse.Namespace) -> list[dict[str, object]]:
    """Time all implementations on the same tensors and check that they agree."""
    generator = torch.Generator().manual_seed(args.seed)
    shape = (args.batch, args.height, args.width)
    process = CategoricalProcess(cosine(250), args.classes)
    noise = BatchNoise(generator)
    x_t = process.prior(shape, noise)
    logits = 3 * torch.randn(args.batch, args.classes, args.height, args.width, generator=generator)
    log_p0 = torch.log_softmax(logits, 1)
    t = torch.full((args.batch,), 125)
    network = ConcatUNet(args.classes, 3, UNetConfig(base=64, multipliers=(1, 1, 2, 2, 4, 4))).eval()
    condition = network.encode(torch.randn(args.batch, 3, args.height, args.width, generator=generator))

    def posterior() -> Tensor:
        return process.posterior(x_t, log_p0, t, t - 1)

    def by_einsum() -> Tensor:
        return torch.einsum("bkjhw,bjhw->bkhw", every_pi(process, x_t, t), log_p0.exp())

    def by_product() -> Tensor:
        return (every_pi(process, x_t, t) * log_p0.exp()[:, None]).sum(2)

    for way in (by_einsum, by_product):
        difference = (posterior().exp() - way()).abs().max().item()
        if difference > 1e-5:
            raise SystemExit(f"the closed form and {way.__name__} differ by {difference:.1e}")
    ways: dict[str, tuple[Callable[[], object], int]] = {
        OURS: (posterior, args.repeats),
        "posterior and draw": (lambda: draw_categorical(posterior(), noise.uniform(shape)), args.repeats),
        EINSUM: (by_einsum, args.slow_repeats),
        PRODUCT: (by_product, args.slow_repeats),
        UNET: (lambda: network(x_t, t, condition), args.slow_repeats),
    }
    clock = {way: harness.timed(run, repeats) for way, (run, repeats) in ways.items()}
    rows = []
    for way, (wall, cpu) in clock.items():
        # Ratios of CPU times, because other programs on the machine disturb them least.
        row = {
            "way": way,
            "milliseconds": round(wall, 2),
            "cpu_milliseconds": round(cpu, 2),
            "times_posterior": round(cpu / clock[OURS][1], 2),
            "fraction_of_unet": round(cpu / clock[UNET][1], 5),
            "extra_tensors": "" if way == UNET else round(peak_bytes(ways[way][0]) / log_p0.nbytes, 2),
        }
        sizes = {"batch": args.batch, "height": args.height, "width": args.width, "classes": args.classes}
        rows.append(row | sizes | {"threads": torch.get_num_threads(), "torch": torch.__version__})
    return rows


def every_pi(process: CategoricalProcess, x_t: Tensor, t: Tensor) -> Tensor:
    """pi(x_t, x0) for every x0, "b k j h w" with k for x_{t-1} and j for x0, as CCDM Eq. q_params has it."""
    labels = process.num_classes
    alpha = process.schedule.alpha[t].float().view(-1, 1, 1, 1)
    bar_t, bar_s = (process.schedule.alpha_bar[step].float().view(-1, 1, 1, 1) for step in (t, t - 1))
    e_x_t = torch.nn.functional.one_hot(x_t, labels).permute(0, 3, 1, 2).float().contiguous()
    e_x_0 = torch.eye(labels)[None, :, :, None, None]
    numerator = ((1 - alpha) / labels + alpha * e_x_t)[:, :, None] * (
        (1 - bar_s[..., None]) / labels + bar_s[..., None] * e_x_0
    )
    return numerator / ((1 - bar_t) / labels + bar_t * e_x_t)[:, None]


def peak_bytes(run: Callable[[], object]) -> int:
    """Peak memory that `run` allocates, its result and all temporaries included.

    Read from the events of the allocator, so that allocations inside of operators are counted.
    """
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            result = run()
        del result
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e["name"] == "[memory]")
    alive = peak = 0
    for _, change in changes:
        alive += change
        peak = max(peak, alive)
    return peak


def _print(rows: list[dict[str, object]]) -> None:
    table = Table(title=f"One reverse step, {harness.hardware()}, one thread, medians")
    columns = ("way", "cpu_milliseconds", "times_posterior", "fraction_of_unet", "extra_tensors")
    for column in columns:
        table.add_column(column.replace("_", " "))
    for row in rows:
        table.add_row(*(str(row[column]) for column in columns))
    Console().print(table)
    by_way = {row["way"]: row for row in rows}
    for way in (EINSUM, PRODUCT):
        _check(f"times faster than {way}", by_way[way]["times_posterior"], at_least=50)
    _check("of the U-Net's forward", by_way[OURS]["fraction_of_unet"], at_most=0.05)
    _check("probability tensors of extra memory", by_way[OURS]["extra_tensors"], at_most=3)


def _check(what: str, value: float, *, at_least: float = 0.0, at_most: float = math.inf) -> None:
    """Print whether a requirement on `posterior` is met."""
    limit = f"at least {at_least:g}" if at_least else f"at most {at_most:g}"
    print(f"{'met' if at_least <= value <= at_most else 'MISSED'}: {value:g} {what} ({limit})")


def _arguments() -> argparse.Namespace:
    parser = harness.argument_parser(__doc__)
    parser.add_argument("--batch", type=int, default=5, help="number of label maps")
    parser.add_argument("--height", type=int, default=128, help="height of the maps")
    parser.add_argument("--width", type=int, default=256, help="width of the maps")
    parser.add_argument("--classes", type=int, default=20, help="number of classes")
    parser.add_argument("--repeats", type=int, default=50, help="timings of the closed form")
    parser.add_argument("--slow-repeats", type=int, default=5, help="timings of the explicit sums and the network")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    return parser.parse_args()


if __name__ == "__main__":
    main()
