"""Prediction in one process and on the workers of a local Dask cluster.

python benchmarks/scale.py

The bundled model `lidc` segments synthetic slices of 128×128 pixels, with 16 samples each, and writes all results. Every
way is measured once per round, all in one process, after its model was loaded; the ratios are against one process of
one thread in the same round, medians over the rounds. `start_seconds` is the time from the start of the workers to their
first result. The machine must be idle: `idle` is the fraction of its CPU time that nobody used while nothing ran.
"""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from harness import argument_parser, write_csv
from PIL import Image

from stochseg.data import Phantoms
from stochseg.inference import PredictOptions, predict
from stochseg.inference.sources import find_sources
from stochseg.memory import keep_freed_memory
from stochseg.models import load
from stochseg.workers import Pool, open_pool

MODEL = "lidc"
OPTIONS = PredictOptions(n=16)
SIDE = 128


@dataclass(frozen=True)
class Way:
    """One process of some threads, or some workers with an equal share of the cores."""

    title: str
    threads: int
    pool: Pool | None = None


def write_images(folder: Path, count: int) -> Path:
    data = Phantoms("test", size=SIDE, count=count)
    for i in range(count):
        Image.fromarray(data.raw(i)).save(folder / f"{i:05}.png")
    return folder


def seconds(way: Way, images: Path) -> float:
    torch.set_num_threads(way.threads)
    with tempfile.TemporaryDirectory() as out:
        start = time.perf_counter()
        outcomes = predict(load(MODEL), images, f"{out}/out", OPTIONS, origin=MODEL, pool=way.pool)
        assert all(outcome.status == "done" for outcome in outcomes)
        return time.perf_counter() - start


@contextmanager
def workers(count: int, cores: int, images: Path) -> Iterator[tuple[Way, float]]:
    """Start workers and let each load the model; yields the way and the seconds this took."""
    torch.set_num_threads(cores)
    start = time.perf_counter()
    with open_pool(count, None, "cpu") as pool:
        assert pool is not None
        way = Way(f"{count} workers" if count > 1 else "1 worker", max(1, cores // count), pool)
        seconds(way, images)
        yield way, time.perf_counter() - start


def peak_megabytes(way: Way) -> float:
    """Largest memory of a process that samples."""
    peaks = way.pool.client.run(_peak).values() if way.pool else [_peak()]
    return max(peaks) / 1024


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def idle_fraction(duration: float = 1.0) -> float:
    before = os.times().elapsed, *_cpu_ticks()
    time.sleep(duration)
    after = os.times().elapsed, *_cpu_ticks()
    return (after[1] - before[1]) / (after[2] - before[2])


def _cpu_ticks() -> tuple[int, int]:
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return ticks[3], sum(ticks)


def listing(count: int) -> dict[str, object]:
    """Time and memory to find the images of an archive."""
    with tempfile.TemporaryDirectory() as folder:
        for i in range(count):
            Path(folder, f"{i:07}.png").touch()
        before, start = _peak(), time.perf_counter()
        found = find_sources([folder])
        took = time.perf_counter() - start
        assert len(found.sources) == count
        return {
            "way": "listing of files",
            "images": count,
            "seconds": round(took, 2),
            "peak_mb": (_peak() - before) // 1024,
        }


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--images", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int, default=100_000, help="empty files of the listing")
    arguments = parser.parse_args()
    keep_freed_memory()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as started:
        few, images = Path(folder, "few"), Path(folder, "images")
        few.mkdir()
        images.mkdir()
        write_images(few, 2 * cores)
        write_images(images, arguments.images)
        starts: dict[str, float] = {}
        ways = [Way("one process", 1), Way("one process, all threads", cores)]
        for count in (1, cores):
            way, starts_in = started.enter_context(workers(count, count, few))
            starts[way.title] = starts_in
            ways.append(way)
        times: dict[str, list[float]] = {way.title: [] for way in ways}
        idle = []
        for way in ways[:2]:
            seconds(way, few)
        for _ in range(arguments.rounds):
            idle.append(idle_fraction())
            for way in ways:
                times[way.title].append(seconds(way, images))
        rows = []
        for way in ways:
            own, base = times[way.title], times["one process"]
            ratio = statistics.median(b / a for a, b in zip(own, base, strict=True))
            took = statistics.median(own)
            rows.append(
                {
                    "way": way.title,
                    "threads": way.threads,
                    "images": arguments.images,
                    "samples": OPTIONS.n,
                    "start_seconds": round(starts.get(way.title, 0.0), 2),
                    "seconds": round(took, 2),
                    "images_per_second": round(arguments.images / took, 2),
                    "speed_over_one_process": round(ratio, 3),
                    "peak_mb": round(peak_megabytes(way)),
                    "idle": round(min(idle), 2),
                }
            )
    rows.append(listing(arguments.files))
    print(write_csv("scale", rows, arguments.out))
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
