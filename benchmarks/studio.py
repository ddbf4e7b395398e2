"""The studio under load, killed at random moments, and its answers in time.

python benchmarks/studio.py latency|load|kills [--seconds 60] [--clients 32] [--kills 20]

latency: `lidc` on a phantom slice of 128×128 pixels and `lidc-3d` on a nodule in a CT of 100 slices of 512×512, from
the upload to the first sample and to all 16. load: clients that upload, draw, and read results without pause, while
another asks for /healthz; no answer but 429 may be an error, and no job may be lost. kills: SIGKILL of the server or
its worker at random moments under load; finished results must be intact and unfinished jobs done after the restart.
`idle`: fraction of CPU time that was free; times need an idle machine. `cpu_s`: CPU time of the server and its
processes from the upload to the result, on one thread; it is what the case takes on an idle core.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from harness import ROOT, argument_parser, write_csv

sys.path.insert(0, str(ROOT))
from tests.support.studio import Server, save_tiny_models, wait_for

from stochseg.data import PhantomVolumes
from stochseg.studio import Client, StudioError
from stochseg.studio.examples import write_volume

SAMPLES = 16


def idle() -> float:
    """Fraction of CPU time that was free in the last second."""

    def read() -> list[int]:
        return [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]

    first = read()
    time.sleep(1)
    spent = [after - before for before, after in zip(first, read(), strict=True)]
    return round(spent[3] / sum(spent), 2)


def cpu_seconds(server: Server) -> float:
    """CPU time of the server and its processes so far; unlike the wall clock, other programs hardly change it."""
    ticks = 0
    for pid in (server.process.pid, *server.children()):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mb(server: Server) -> tuple[float, float]:
    """Memory of the server, and of its processes."""

    def own(pid: int) -> float:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return 0.0
        return next((int(line.split()[1]) / 1000 for line in status.splitlines() if line.startswith("VmRSS")), 0.0)

    return round(own(server.process.pid)), round(sum(map(own, server.children())))


# --- latency --------------------------------------------------------------------------------------------


def ct(folder: Path) -> tuple[Path, list[int]]:
    """A phantom scan of 100 slices of 512×512 in Hounsfield units, mirrored around a nodule, and a voxel in it."""
    data = PhantomVolumes("test", size=112, slices=18, count=1, seed=1)
    around = ((41, 41), (200, 200), (200, 200))
    gray = np.pad(data.raw(0).astype(np.float32), around, mode="reflect")
    center = np.argwhere(data.truth(0).modes[1].numpy()).mean(0) + [before for before, _ in around]
    file = write_volume(folder, (gray * (1200 / 255) - 1000).round().astype(np.int16), data[0].spacing)
    z, y, x = center.round().astype(int).tolist()
    return file, [x, y, z]


def measure_job(client: Client, input: str, model: str, **parameters: object) -> dict[str, float]:
    """Seconds from the request to the first sample, to all samples, and to the result."""
    start, first, last = time.perf_counter(), 0.0, 0.0
    job = client.submit(input, model, samples=SAMPLES, **parameters)
    for event in client.events(job["id"]):
        if event.kind == "sample":
            client.sample(job["id"], event.data["index"])
            last = time.perf_counter() - start
            first = first or last
    client.result(job["id"])
    return {"first_sample_s": first, "all_samples_s": last, "result_s": time.perf_counter() - start}


def latency(server: Server, folder: Path, repeats: int = 3) -> list[dict[str, object]]:
    """Median times of both cases."""
    client = server.client
    server.wait_until_ready()
    file, point = ct(folder)
    cases = [("lidc, 128×128", "lidc", lambda: client.example("phantom"), {})]
    cases += [("lidc-3d, point in 512×512×100", "lidc-3d", lambda: client.upload(file), {"points": [point]})]
    rows = []
    for title, model, upload, parameters in cases:
        found = []
        for _ in range(repeats):
            start, spent = time.perf_counter(), cpu_seconds(server)
            input = upload()["id"]
            seconds = time.perf_counter() - start
            job = measure_job(client, input, model, **parameters)
            found.append({"upload_s": seconds, **job, "cpu_s": cpu_seconds(server) - spent})
        medians = {key: round(statistics.median(each[key] for each in found), 2) for key in found[0]}
        rows.append({"case": title, "samples": SAMPLES, "idle": idle(), **medians})
        print(rows[-1])
    return rows


# --- load -----------------------------------------------------------------------------------------------


class Load:
    """Clients that draw without pause, each in a thread."""

    def __init__(self, url: str, clients: int):
        self.url, self.counts, self.jobs = url, Counter(), list[str]()
        self.problems: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._draw, args=(i,)) for i in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def has_done(self, count: int) -> bool:
        """Whether more jobs than this were done."""
        return self.counts["done"] > count

    def _draw(self, number: int) -> None:
        client, seed = Client(self.url), 0
        while not self._stop.is_set():
            try:
                input = client.example("phantom", number)["id"]
                job = client.submit(input, "tiny", samples=4, seed=seed, keep=True)["id"]
                self.jobs.append(job)
                client.wait(job, 300)
                client.result(job)
                client.sample(job, 3)
                self.counts["done"] += 1
                seed += 1
            except StudioError as error:
                self.counts[str(error.status)] += 1
                if error.status not in (429, 503):
                    self.problems.append(f"{error.status} {error}")
                self._stop.wait(error.retry_after or 0.2)
            except OSError:  # the server is being started again
                self.counts["unreachable"] += 1
                self._stop.wait(0.5)


def load(server: Server, clients: int, seconds: float) -> list[dict[str, object]]:
    """Errors, lost jobs, memory and the time of /healthz under load."""
    server.wait_until_ready()
    with Load(server.url, 2):
        time.sleep(5)
    free, times, memory, end = idle(), [], [], time.monotonic() + seconds
    with Load(server.url, clients) as running:
        while time.monotonic() < end:
            start = time.perf_counter()
            server.client.request("GET", "/healthz")
            times.append(1000 * (time.perf_counter() - start))
            memory.append(resident_mb(server))
            time.sleep(0.2)
    states = Counter(job["state"] for job in server.client.jobs() if job["id"] in set(running.jobs))
    third = len(memory) // 3
    row = {
        "case": f"{clients} clients for {seconds:g} s",
        "idle": free,
        "jobs": len(running.jobs),
        "done": states["done"],
        "lost": len(running.jobs) - sum(states.values()),
        "refused_429": running.counts["429"],
        "errors": len(running.problems),
        "healthz_median_ms": round(statistics.median(times), 1),
        "healthz_p95_ms": round(float(np.percentile(times, 95)), 1),
        "server_mb_first_third": max(each[0] for each in memory[:third]),
        "server_mb_last_third": max(each[0] for each in memory[-third:]),
        "processes_mb_first_third": max(each[1] for each in memory[:third]),
        "processes_mb_last_third": max(each[1] for each in memory[-third:]),
    }
    print(row, running.problems[:3])
    return [row]


# --- kills ----------------------------------------------------------------------------------------------


def kills(server: Server, clients: int, count: int) -> list[dict[str, object]]:
    """Kill the server and its worker in turn, and check every job then."""
    chance, client = random.Random(0), server.client
    server.wait_until_ready()
    rows = []
    with Load(server.url, clients) as running:
        for number in range(count):
            wait_for(partial(running.has_done, number), 300)
            time.sleep(chance.uniform(0, 3))
            finished = {job["id"]: client.sample(job["id"], 0) for job in client.jobs() if job["state"] == "done"}
            what = "worker" if number % 2 else "server"
            if what == "worker":
                os.kill(server.worker() or 0, signal.SIGKILL)
            else:
                server.kill()
                server.start()
            intact = sum(client.sample(job, 0) == content for job, content in finished.items())
            rows.append({"kill": number, "what": what, "finished": len(finished), "intact": intact})
            print(rows[-1])
    wanted = set(running.jobs)
    wait_for(lambda: all(j["state"] not in ("queued", "running") for j in client.jobs() if j["id"] in wanted), 300)
    states = Counter(job["state"] for job in client.jobs() if job["id"] in wanted)
    whole = sum(len(client.result(job)["samples"]) == 4 for job in wanted if client.job(job)["state"] == "done")
    rows.append(
        {"kill": "all", "what": f"{dict(states)} of {len(wanted)} jobs", "finished": states["done"], "intact": whole}
    )
    print(rows[-1], running.problems[:3])
    return rows


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("what", choices=("latency", "load", "kills"))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--kills", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = [part for path in save_tiny_models(folder) for part in ("--model", path)]
        server = Server(folder / "workspace", *models, "--limit=queue=24")
        try:
            if args.what == "latency":
                rows = latency(server, folder)
            elif args.what == "load":
                rows = load(server, args.clients, args.seconds)
            else:
                rows = kills(server, min(args.clients, 6), args.kills)
        finally:
            server.stop()
    write_csv(f"studio-{args.what}", rows, args.out)


if __name__ == "__main__":
    main()
