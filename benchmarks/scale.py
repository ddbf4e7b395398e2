"""Prediction in one process and on the workers of a local Dask cluster.

python benchmarks/scale.py

The bundled model `lidc` segments synthetic slices of 128×128 pixels with 16 samples each and writes all results. Every
way is measured once per round, after its model was loaded; the ratios are against one process of one thread in the same
round, medians over the rounds. `start_seconds`: from the start of the workers to the first results. `cpu_seconds`: of
the command and its workers. `idle`: the lowest fraction of CPU time that was free before a round; speeds need an idle
machine, CPU time suffers little from a busy one.
"""

from __future__ import annotations

import os
import resource
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from harness import argument_parser, write_csv
from stochseg.data import Phantoms
from stochseg.inference import PredictOptions, predict
from stochseg.inference.sources import find_sources
from stochseg.memory import keep_freed_memory
from stochseg.models import load
from stochseg.workers import Pool, open_pool

MODEL, OPTIONS, SIDE = "lidc", PredictOptions(n=16), 128


@dataclass(frozen=True)
class Way:
    """A number of threads in this process, or workers of one thread each."""

    title: str
    threads: int
    pool: Pool | None = None

    def seconds(self, images: Path) -> tuple[float, float]:
        """Predict all images of a folder; seconds of the wall clock and of the CPU."""
        torch.set_num_threads(self.threads)
        with tempfile.TemporaryDirectory() as out:
            start, cpu = time.perf_counter(), self.cpu_seconds()
            outcomes = predict(load(MODEL), images, f"{out}/out", OPTIONS, origin=MODEL, pool=self.pool)
            assert all(outcome.status == "done" for outcome in outcomes)
            return time.perf_counter() - start, self.cpu_seconds() - cpu

    def cpu_seconds(self) -> float:
        """CPU time of the command and its workers so far."""
        own = self.pool.client.run(time.process_time).values() if self.pool else ()
        return time.process_time() + sum(own)

    def peak_megabytes(self) -> int:
        """Largest memory of a process that samples."""
        return max(self.pool.client.run(peak_megabytes).values()) if self.pool else peak_megabytes()


def peak_megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def write_images(folder: Path, count: int) -> Path:
    folder.mkdir()
    data = Phantoms("test", size=SIDE, count=count)
    for i in range(count):
        Image.fromarray(data.raw(i)).save(folder / f"{i:05}.png")
    return folder


def idle_fraction() -> float:
    def ticks() -> tuple[int, int]:
        numbers = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        return numbers[3], sum(numbers)

    free, total = ticks()
    time.sleep(1)
    later = ticks()
    return (later[0] - free) / (later[1] - total)


def list_files(folder: Path, count: int) -> dict[str, object]:
    """Measure how long the search for the inputs of an archive takes."""
    folder.mkdir()
    for i in range(count):
        (folder / f"{i:07}.png").touch()
    before, start = peak_megabytes(), time.perf_counter()
    assert len(find_sources([folder]).sources) == count
    seconds = round(time.perf_counter() - start, 2)
    return {"way": "search for inputs", "images": count, "seconds": seconds, "peak_mb": peak_megabytes() - before}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--images", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--files", type=int, default=100_000, help="empty files of the search for inputs")
    arguments = parser.parse_args()
    keep_freed_memory()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as started:
        few = write_images(Path(temporary, "few"), 2 * cores)
        images = write_images(Path(temporary, "images"), arguments.images)
        starts = {}
        ways = [Way("one process", 1), Way("one process, all threads", cores)]
        for count in (1, cores):
            torch.set_num_threads(1)
            begin = time.perf_counter()
            way = Way(f"workers: {count}", 1, started.enter_context(open_pool(count, None, "cpu")))
            way.seconds(few)
            starts[way.title] = round(time.perf_counter() - begin, 2)
            ways.append(way)
        for way in ways:
            way.seconds(few)  # warms up
        idle, times = [], {way.title: list[tuple[float, float]]() for way in ways}
        for _ in range(arguments.rounds):
            idle.append(idle_fraction())
            for way in ways:
                times[way.title].append(way.seconds(images))
        rows: list[dict[str, object]] = []
        for way in ways:
            pairs = zip(times["one process"], times[way.title], strict=True)
            seconds, cpu = map(statistics.median, zip(*times[way.title], strict=True))
            rows.append(
                {
                    "way": way.title,
                    "threads": way.threads,
                    "images": arguments.images,
                    "samples": OPTIONS.n,
                    "start_seconds": starts.get(way.title, ""),
                    "seconds": round(seconds, 2),
                    "cpu_seconds": round(cpu, 2),
                    "images_per_second": round(arguments.images / seconds, 2),
                    "speed_over_one_process": round(statistics.median(one[0] / own[0] for one, own in pairs), 3),
                    "peak_mb": way.peak_megabytes(),
                    "idle": round(min(idle), 2),
                }
            )
        rows.append(list_files(Path(temporary, "files"), arguments.files))
    for row in rows:
        print(row)
    print(write_csv("scale", rows, arguments.out))


if __name__ == "__main__":
    main()
