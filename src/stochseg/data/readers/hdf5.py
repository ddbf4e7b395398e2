"""HDF5 files, inspected by another process before they are opened.

The HDF5 library trusts its files: a damaged one can end the process or keep it busy for ever, one with external storage
shows the content of any other file. A process of its own therefore walks through all structures first, with a limit on
its time. It lives as long as this one, so that only the first file waits for its start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.limits import VARIABLE, check_memory

SECONDS = 8.0
"""Time to inspect a file, and one second more per gigabyte."""
MAX_OBJECTS = 100_000
"""Groups and data sets of a file."""

_START = "import sys; sys.path[:] = {path!r}; import runpy; runpy.run_path({file!r}, run_name='__main__')"
_REMEDY = "it is damaged or of another kind; copy or import it again"


def open_hdf5(path: Path) -> Any:
    """Open an HDF5 file for reading, after its inspection.

    Raises:
        UserError: The file is missing, damaged, refers to other files, or asks for more memory than one file may.
    """
    h5py = require("h5py", "data", "packed data")
    problem = _INSPECTOR.inspect(path.resolve())
    if problem:
        raise UserError(f"{path} cannot be read as HDF5: {problem}")
    return h5py.File(path, "r")


class _Inspector:
    """The other process, started for the first file and ended with this process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._good: set[tuple[str, int, int]] = set()
        self._lock = threading.Lock()

    def inspect(self, path: Path) -> str:
        """Return what is wrong with a file, or an empty text."""
        facts = path.stat()
        key = (str(path), facts.st_size, facts.st_mtime_ns)
        if key not in self._good:
            with self._lock:
                problem = (
                    self._ask(path, SECONDS + facts.st_size / 10**9) if sys.executable else find_problem(str(path))
                )
            if problem:
                return problem
            self._good.add(key)
        return ""

    def _ask(self, path: Path, seconds: float) -> str:
        if self._process is None or self._process.poll() is not None or self._owner != os.getpid():
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        limit = threading.Timer(seconds, process.kill)
        limit.start()
        with suppress(OSError):  # it has ended, which the answer shows
            process.stdin.write(json.dumps([str(path), os.environ.get(VARIABLE, "")]).encode() + b"\n")
            process.stdin.flush()
        answer = process.stdout.readline()
        in_time = limit.is_alive()
        limit.cancel()
        if answer:
            return str(json.loads(answer))
        process.wait()
        reason = "the HDF5 library crashes on it" if in_time else f"inspecting it took more than {seconds:.0f} s"
        return f"{reason}; {_REMEDY}"

    def _start(self) -> None:
        """Start it with the module path of this process, and not with the current folder on it."""
        code = _START.format(path=[entry for entry in sys.path if entry], file=__file__)
        # Not in the process group of the terminal: Ctrl-C is for this process.
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._owner = os.getpid()


_INSPECTOR = _Inspector()


# ---------------------------------------------------------------------- in the other process


def find_problem(path: str) -> str:
    """Walk through a file and return what is wrong with it, or an empty text."""
    h5py = require("h5py", "data", "packed data")
    try:
        with h5py.File(path, "r") as file:
            _walk(h5py, file, os.path.getsize(path))
        return ""
    except UserError as error:
        return str(error)
    except Exception as error:  # the library raises many kinds for damaged files
        return f"{str(error) or type(error).__name__}; {_REMEDY}"


def _walk(h5py: Any, file: Any, size: int) -> None:
    """Visit every group and data set once; hard links may lead back."""
    seen, waiting = set(), [file]
    while waiting:
        entry = waiting.pop()
        seen.add(h5py.h5o.get_info(entry.id).addr)
        if len(seen) > MAX_OBJECTS:
            raise UserError(f"it has more than {MAX_OBJECTS:,} groups and data sets; {_REMEDY}")
        for name in entry.attrs:
            check_memory(entry.attrs.get_id(name).get_storage_size(), f"the attribute {name!r}")
            entry.attrs[name]
        if isinstance(entry, h5py.Dataset):
            _check_dataset(h5py, entry, size)
        for name in entry if isinstance(entry, h5py.Group) else ():
            if not isinstance(entry.get(name, getlink=True), h5py.HardLink):
                raise UserError(f"{name!r} is a link to another place; only files without links are read")
            child = entry[name]
            if h5py.h5o.get_info(child.id).addr not in seen:
                waiting.append(child)


def _check_dataset(h5py: Any, data: Any, size: int) -> None:
    """Check that the values are in this file, and that texts, whose places are part of the values, can be read."""
    if data.external or data.is_virtual:
        raise UserError(f"{data.name} takes its values from other files; only files that contain them are read")
    if data.chunks is None:
        if data.id.get_storage_size() > size or (data.size and data.id.get_storage_size() < data.nbytes):
            raise UserError(f"{data.name} states more values than the file contains; {_REMEDY}")
    else:
        data.id.chunk_iter(lambda chunk: _check_chunk(chunk, size))
    names = data.dtype.names or (None,)
    kinds = [data.dtype if name is None else data.dtype[name] for name in names]
    if any(h5py.check_dtype(vlen=kind) is not None for kind in kinds):
        check_memory(24 * data.size * len(kinds), data.name)
        data[()]


def _check_chunk(chunk: Any, size: int) -> None:
    if chunk.byte_offset is None or chunk.byte_offset + chunk.size > size:
        raise UserError(f"a part of its values lies outside the file; {_REMEDY}")


def _serve() -> None:
    """Answer paths, one per line, until the other process ends."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))
    for line in sys.stdin:
        path, os.environ[VARIABLE] = json.loads(line)
        print(json.dumps(find_problem(path)), flush=True)


if __name__ == "__main__":
    _serve()
