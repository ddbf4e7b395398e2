"""Short work away from the server, such as reading uploads: a file that crashes its reader ends that process only."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import ParamSpec, TypeVar, cast

from stochseg.errors import UserError
from stochseg.studio.errors import Refusal

P = ParamSpec("P")
T = TypeVar("T")
START_SECONDS = 300.0
"""Time for the first look at models and devices."""
_SPAWN = multiprocessing.get_context("spawn")  # a fork would copy the threads and sockets of the server


def start_shielded(process: BaseProcess) -> None:
    """Start a process that Ctrl-C does not reach: a terminal sends it to all processes, and the server ends the others.

    A process starts with the blocked signals of the thread that starts it.
    """
    if not hasattr(signal, "pthread_sigmask"):
        process.start()
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Desk:
    """Processes that run one function at a time each.

    Args:
        count: number of processes.
        seconds: time limit of a call; its process is ended and replaced then.
    """

    def __init__(self, count: int, seconds: float):
        self.seconds = seconds
        self._idle = [_Clerk() for _ in range(count)]
        self._free = asyncio.Semaphore(count)
        self._threads = ThreadPoolExecutor(count, "desk")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function of a module, with arguments that can be pickled.

        Raises:
            UserError: that the function raised.
            Refusal: it took too long or its process died.
        """
        async with self._free:
            clerk = self._idle.pop()
            call = partial(clerk.call, (function, args, kwargs), self.seconds)
            waiting = asyncio.get_running_loop().run_in_executor(self._threads, call)
            try:
                answer = await asyncio.shield(waiting)
            except asyncio.CancelledError:  # the client has gone; its work must not meet that of another
                clerk.stop()
                raise
            finally:
                self._idle.append(clerk)
        return cast(T, _unpack(answer, self.seconds))

    def close(self) -> None:
        """End the processes."""
        for clerk in self._idle:
            clerk.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)


def call_once(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in a process that ends then.

    Raises:
        UserError: that the function raised.
    """
    clerk = _Clerk()
    try:
        return cast(T, _unpack(clerk.call((function, args, kwargs), START_SECONDS), START_SECONDS))
    finally:
        clerk.stop()


def _unpack(answer: tuple[str, object], seconds: float) -> object:
    kind, value = answer
    if kind == "done":
        return value
    if kind == "refused":
        raise UserError(str(value))
    if kind == "late":
        raise Refusal(422, f"this took more than {seconds:g} s, the limit; use a smaller file")
    if kind == "died":
        raise Refusal(422, "the file ended the process that read it; it is damaged or needs too much memory")
    raise RuntimeError(value)


class _Clerk:
    """One process; it is started when it is needed first, and again after it died."""

    def __init__(self) -> None:
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    def call(self, work: object, seconds: float) -> tuple[str, object]:
        """Let the process do some work, and wait for the answer."""
        if self._process is None or not self._process.is_alive():
            self._start()
        assert self._pipe is not None
        try:
            self._pipe.send(work)
            if self._pipe.poll(seconds):
                answer: tuple[str, object] = self._pipe.recv()
                return answer
        except (EOFError, OSError):
            self.stop()
            return "died", None
        self.stop()
        return "late", None

    def _start(self) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_serve, args=(theirs,), daemon=True, name="stochseg-desk")
        start_shielded(self._process)
        theirs.close()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join(5)
        self._process = None


def _serve(pipe: Connection) -> None:
    """The loop of a process of the desk; it ends with the server."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    while True:
        try:
            function, args, kwargs = pipe.recv()
        except EOFError:
            return
        try:
            answer = ("done", function(*args, **kwargs))
        except UserError as error:
            answer = ("refused", str(error))
        except MemoryError:
            answer = ("refused", "does not fit into memory; use a smaller file")
        except Exception:
            answer = ("failed", traceback.format_exc())
        try:
            pipe.send(answer)
        except BrokenPipeError:  # the server is gone
            return
