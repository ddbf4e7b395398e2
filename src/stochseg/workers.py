"""Work on many cases: in this process, or on a Dask cluster of this machine or of many.

`run_here` and `Pool.run` are two forms of one function, so a caller writes its work once. What a case needs besides
itself, such as a model, is made once per process by `setup`, which is compared by value and never sent as weights.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from stochseg._version import __version__
from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.memory import keep_freed_memory

if TYPE_CHECKING:
    from distributed import Client, Future, Worker

C = TypeVar("C")
S_co = TypeVar("S_co", covariant=True)
T = TypeVar("T")
R = TypeVar("R")
Setup = Callable[[], C]
"""Makes what all cases share. For workers it must be hashable and small: a path, not weights."""
Act = Callable[[C, Sequence[T]], Iterable[R]]
"""Processes the cases of a chunk."""
Lost = Callable[[T], R]
"""Makes the result of a case that killed its workers, or raises."""

MAX_DEATHS = 2
"""A case whose workers died this often is given up."""
RESTART_SECONDS = 600
"""Time in which Dask must start a worker on this machine, in place of one that died."""
LOCAL = {
    "distributed.scheduler.allowed-failures": 0,  # `Pool.run` counts deaths per case, not per chunk
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.deploy.lost-worker-timeout": f"{RESTART_SECONDS} s",  # new ones start slowly on a busy machine
    # Tasks run in a thread, whose own pool of memory glibc would return to the system: see `keep_freed_memory`.
    "distributed.nanny.pre-spawn-environ.MALLOC_ARENA_MAX": 1,
    # Looks at the stacks of threads a hundred times per second, which took up to a fifth of the time of sampling.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1 s",
    "distributed.admin.system-monitor.interval": "10 s",
    "distributed.worker.daemon": False,  # a training may start processes that load data
    # The process keeps the memory that it frees, so a worker above these limits would wait for ever.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
}
_POLL_SECONDS, _CONNECT_SECONDS, _END_SECONDS = 1, 20, 10


class Runner(Protocol[S_co]):
    """A way to run work: `run_here` or `Pool.run`, with its `setup`."""

    def __call__(
        self, act: Act[S_co, T, R], chunks: Iterable[Sequence[T]], lost: Lost[T, R]
    ) -> Generator[R, None, None]:
        """Yield the results of all cases, as they are known."""
        ...


def run_here(
    setup: Setup[C], act: Act[C, T, R], chunks: Iterable[Sequence[T]], lost: Lost[T, R]
) -> Generator[R, None, None]:
    """Run work in this process.

    >>> list(run_here(lambda: 10, lambda ten, cases: (ten * case for case in cases), [[1, 2], [3]], lost=print))
    [10, 20, 30]
    """
    shared = setup()
    for chunk in chunks:
        yield from act(shared, chunk)


class Pool:
    """Workers of a Dask cluster. Use `open_pool`.

    Args:
        client: connected to the cluster.
        device: on which the workers compute, by name; "auto" is chosen by each worker.
        patience: seconds to wait for a worker while there is none.
    """

    def __init__(self, client: Client, device: str = "auto", patience: float = math.inf):
        self.client, self.device, self.patience = client, device, patience
        self._last_seen = time.monotonic()

    def run(
        self, setup: Setup[C], act: Act[C, T, R], chunks: Iterable[Sequence[T]], lost: Lost[T, R]
    ) -> Generator[R, None, None]:
        """Run work on the workers; see `Runner`. Results come in the order in which they are known.

        At most one chunk per worker is on its way, so that a worker that dies takes no other chunk with it. A chunk
        whose worker died is repeated, case by case; a case whose workers died twice is `lost`.
        """
        task = (os.getcwd(), setup, act)
        coming, again = iter(chunks), deque[tuple[Sequence[T], int]]()
        running: dict[Future[list[R]], tuple[Sequence[T], int]] = {}
        try:
            while True:
                for _ in range(self._free() - len(running)):
                    chunk, deaths = again.popleft() if again else (next(coming, None), 0)
                    if chunk is None:
                        break
                    running[self._submit(*task, chunk)] = chunk, deaths
                if not running:
                    return
                for future in self._finished(running):
                    chunk, deaths = running.pop(future)
                    results, died = self._outcome(future)
                    if not died:
                        yield from results
                    elif len(chunk) == 1 and deaths + died >= MAX_DEATHS:
                        yield lost(chunk[0])
                    else:
                        again += [([case], deaths + died) for case in chunk]
        finally:
            self._abandon(running)

    def _free(self) -> int:
        """Number of chunks that may be on their way; one if there is no worker yet, so that a cluster may start one."""
        with _connected():
            count = len(self.client.nthreads())
        if count:
            self._last_seen = time.monotonic()
        elif time.monotonic() - self._last_seen > self.patience:
            raise UserError(
                f"all workers died and none could be started for {self.patience:.0f} s; use fewer --workers"
            )
        return max(1, count)

    def _submit(self, *task: Any) -> Future[Any]:
        with _connected():
            return self.client.submit(_work, *task, key=f"stochseg-{uuid.uuid4()}", pure=False)

    def _finished(self, running: Iterable[Future[Any]]) -> list[Future[Any]]:
        """Wait a moment for some to end."""
        from distributed import TimeoutError as Timeout
        from distributed import wait

        with _connected(), suppress(Timeout):
            return list(wait(list(running), timeout=_POLL_SECONDS, return_when="FIRST_COMPLETED").done)
        return []

    def _outcome(self, future: Future[list[R]]) -> tuple[list[R], int]:
        """The results of a task that ended, and how many workers died of it."""
        from distributed import KilledWorker

        try:
            return future.result(), 0
        except KilledWorker as error:
            return [], error.allowed_failures + 1
        except CancelledError as error:
            raise _gone(error) from None

    def _abandon(self, running: Iterable[Future[Any]]) -> None:
        """End the processes of workers that would continue with what nobody waits for; Dask starts new ones."""
        keys = {future.key for future in running}
        if not keys:
            return
        with suppress(Exception):  # the cluster may be gone
            busy = [worker for worker, own in self.client.processing().items() if keys.intersection(own)]
            self.client.cancel(list(running))
            self.client.run(_exit, workers=busy, on_error="ignore")
            deadline = time.monotonic() + _END_SECONDS
            while time.monotonic() < deadline and set(busy) & set(self.client.nthreads()):
                time.sleep(0.05)


@contextmanager
def _connected() -> Iterator[None]:
    """Turn the loss of the cluster into a UserError."""
    try:
        yield
    except (OSError, CancelledError) as error:
        raise _gone(error) from None


def _gone(error: BaseException) -> UserError:
    return UserError(f"the Dask cluster does not answer any more ({error}); start it and repeat the command")


@contextmanager
def open_pool(workers: int | None, scheduler: str | None, device: str = "auto") -> Iterator[Pool | None]:
    """Start workers on this machine, or connect to a Dask cluster; yields None if neither is asked for.

    Args:
        workers: number of processes to start here, which share the threads and the GPUs of this one.
        scheduler: address of a Dask cluster, such as "tcp://node7:8786". Its workers must see the same files.
        device: of the workers, by name, without a number: each worker of this machine has a GPU of its own.

    Raises:
        UserError: if both are given, Dask is not installed, or the cluster or its workers cannot be used.
    """
    if workers is None and scheduler is None:
        yield None
        return
    if workers is not None and scheduler is not None:
        raise UserError("--workers starts a cluster and --scheduler uses another one; pass one of them")
    if ":" in device:
        raise UserError(f"--device {device}: workers take the GPUs in turn; set CUDA_VISIBLE_DEVICES to choose some")
    require("distributed", "dask", "work on several processes")
    if workers is not None:
        with _local_client(workers) as client:
            yield Pool(client, device, RESTART_SECONDS)
    else:  # a cluster may start workers when there is work, and have a queue of its own
        with _remote_client(str(scheduler)) as client:
            yield Pool(client, device)


@contextmanager
def _local_client(workers: int) -> Iterator[Client]:
    import dask
    import torch
    from distributed import Client, LocalCluster

    threads = str(max(1, torch.get_num_threads() // workers))
    with (
        dask.config.set(LOCAL),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            env=dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads),
            preload="stochseg.workers",
            security=True,  # other users of this machine may not connect
            dashboard_address="127.0.0.1:0",  # reachable from this machine only, and without pages, see LOCAL
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@contextmanager
def _remote_client(address: str) -> Iterator[Client]:
    from distributed import Client

    try:
        client = Client(address, timeout=_CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise UserError(
            f"--scheduler {address}: cannot connect ({error}); expected the address of a running Dask scheduler, such "
            "as tcp://node7:8786"
        ) from None
    with client:
        _check_workers(client)
        yield client


def _check_workers(client: Client) -> None:
    """Raise a UserError for workers of several threads or of another version."""
    for worker, threads in client.nthreads().items():
        if threads != 1:
            raise UserError(
                f"worker {worker} has {threads} threads; start workers with --nthreads 1, several per machine"
            )
    try:
        found = client.run(_version)
    except ModuleNotFoundError as error:
        raise UserError(f"a worker has no package {error.name}; install stochseg where the workers run") from None
    for worker, version in found.items():
        if version != __version__:
            raise UserError(f"worker {worker} has stochseg {version}, this is {__version__}; install the same version")


# ---------------------------------------------------------------------- in a worker


def dask_setup(worker: Worker) -> None:
    """Prepare a worker. Dask calls it by this name (`dask worker --preload stochseg.workers`) before any work."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the command ends its workers
    keep_freed_memory()
    number = re.search(r"\d+$", str(worker.name))  # of the workers of a machine
    gpu = _own_gpu(int(number[0]) if number else 0, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu


def _own_gpu(number: int, visible: str | None) -> str | None:
    """The GPU of a worker: the workers of a machine take its GPUs in turn. None without a choice.

    >>> _own_gpu(5, "4,5,6,7")
    '5'
    """
    import torch

    names = visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]
    return names[number % len(names)] if names else None


@lru_cache(maxsize=1)
def _shared(setup: Callable[[], Any]) -> Any:
    return setup()


def _work(folder: str, setup: Setup[C], act: Act[C, T, R], chunk: Sequence[T]) -> list[R]:
    """Process a chunk, with the paths of the process that sent it."""
    if os.getcwd() != folder:
        try:
            os.chdir(folder)
        except OSError as error:
            raise UserError(
                f"a worker cannot open {folder} ({error.strerror}); workers must see the same files"
            ) from None
    return list(act(_shared(setup), chunk))


def _version() -> str:
    return __version__


def _exit() -> None:
    os._exit(1)
