"""Prediction in one process and on the workers of a local Dask cluster.

python benchmarks/scale.py

The bundled model `lidc` segments synthetic slices of 128×128 pixels with 16 samples each and writes all results. Every
way is measured once per round, after its model was loaded; the ratios are medians over the rounds, against one process
in the same round: of one thread, as every worker has, and of one thread per core, the default of the command.
`start_seconds`: from the start of the workers to the first results. `cpu_seconds`: of the command and its workers.
`others`: the largest share of the CPUs that other processes had in a round; speeds need an idle machine, CPU time
suffers little from a busy one.
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

    def measure(self, images: Path) -> tuple[float, float, float]:
        """Predict all images of a folder; seconds of the clock and of the CPU, and the share of other processes."""
        torch.set_num_threads(self.threads)
        with tempfile.TemporaryDirectory() as out:
            start, cpu, busy = time.perf_counter(), self.cpu_seconds(), busy_seconds()
            outcomes = predict(load(MODEL), images, f"{out}/out", OPTIONS, origin=MODEL, pool=self.pool)
            assert all(outcome.status == "done" for outcome in outcomes)
            seconds, own = time.perf_counter() - start, self.cpu_seconds() - cpu
            return seconds, own, max(0.0, busy_seconds() - busy - own) / (seconds * (os.cpu_count() or 1))

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


def busy_seconds() -> float:
    """CPU time of all processes of the machine so far."""
    user, nice, system, _idle, _wait, *interrupts = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    return (user + nice + system + sum(interrupts[:2])) / os.sysconf("SC_CLK_TCK")


def list_files(folder: Path, count: int) -> dict[str, object]:
    """Measure how long the search for the inputs of an archive takes."""
    folder.mkdir()
    for i in range(count):
        (folder / f"{i:07}.png").touch()
    before, start = peak_megabytes(), time.perf_counter()
    assert len(find_sources([folder]).sources) == count
    seconds = round(time.perf_counter() - start, 2)
    return {"way": "search for inputs", "images": count, "seconds": seconds, "peak_mb": peak_megabytes() - before}


def speed(times: dict[str, list[tuple[float, float, float]]], way: Way, base: Way) -> float:
    """Median ratio of the speeds of two ways in the same round."""
    pairs = zip(times[base.title], times[way.title], strict=True)
    return round(statistics.median(slow[0] / fast[0] for slow, fast in pairs), 3)


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
            way.measure(few)
            starts[way.title] = round(time.perf_counter() - begin, 2)
            ways.append(way)
        for way in ways:
            way.measure(few)  # warms up
        times = {way.title: list[tuple[float, float, float]]() for way in ways}
        for _ in range(arguments.rounds):
            for way in ways:
                times[way.title].append(way.measure(images))
        rows: list[dict[str, object]] = []
        for way in ways:
            seconds, cpu, _ = map(statistics.median, zip(*times[way.title], strict=True))
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
                    "speed_over_one_thread": speed(times, way, ways[0]),
                    "speed_over_all_threads": speed(times, way, ways[1]),
                    "peak_mb": way.peak_megabytes(),
                    "rounds": arguments.rounds,
                    "others": round(max(share for _, _, share in times[way.title]), 2),
                }
            )
        rows.append(list_files(Path(temporary, "files"), arguments.files))
    for row in rows:
        print(row)
    print(write_csv("scale", rows, arguments.out))


if __name__ == "__main__":
    main()
