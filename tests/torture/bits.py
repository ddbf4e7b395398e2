"""Flip every bit of a small store and of a small checkpoint, one at a time, and read it.

    python -m tests.torture.bits --out bits.csv

A flipped bit must be refused, or change nothing: HDF5 has bytes that no reader looks at. Parts of files that the CSV
already contains are skipped, so an interrupted call continues.
"""

from __future__ import annotations

import argparse
import csv
import math
import mmap
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch

from stochseg.data.importers.plans import Item, Plan, Provenance, Record
from stochseg.data.readers import hdf5
from stochseg.data.store import Store, write_store
from stochseg.errors import UserError
from stochseg.files import write_csv
from stochseg.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from stochseg.types import DatasetInfo
from tests.faults.test_faults_checksums import FILES, parts
from tests.torture.record import facts

PART = 512
"""Bytes per row of the CSV."""
CPU_SECONDS = 1.0
"""Time of the CPU, hundreds of times the usual one, after which a file is left to the process that inspects files."""
OUTCOMES = ("refused", "same", "wrong", "traceback")


def small_store(file: Path, *space: int) -> Path:
    """Write a store of one image or volume and one rater."""
    pixels = np.arange(math.prod(space), dtype=np.uint8).reshape(space)
    names = ("id", "group", "train")
    record = Record(*names, pixels[..., None], (pixels > 7).astype(np.uint8)[None], ("ana",), (1.0,) * len(space))
    info = DatasetInfo(num_classes=2, image_channels=1, spatial_dims=len(space))
    return write_store(Plan(info, Provenance(kind="x", source="y"), [Item(*names, lambda: record)], 1), file)


def read_store(file: Path) -> object:
    """Everything that a store says."""
    data = Store("train", path=str(file))
    example = data[0]
    pixels = [(tensor.dtype, tensor.tolist()) for tensor in (example.image, example.raters)]
    return (
        len(data),
        data.info,
        data.provenance,
        example.id,
        example.group,
        example.rater_names,
        example.spacing,
        pixels,
    )


def read_checkpoint(file: Path, name: str) -> object:
    folder = file.parents[name.count("/")]
    model, average, optimizer = parts()
    progress = load_checkpoint(folder, model, average, optimizer)
    moments = [tensor for state in optimizer.state.values() for tensor in state.values()]
    tensors = [*model.state_dict().values(), *average.model.state_dict().values(), *moments]
    return progress, [tensor.tolist() for tensor in tensors]


class Flips:
    """A file that is read once with each of its bits flipped."""

    def __init__(self, file: Path, read: Callable[[Path], object]):
        self.file, self.read = file, read
        self.content, self.expected = file.read_bytes(), read(file)

    def outcome(self, bit: int) -> str:
        """Read the file with one bit flipped."""
        damaged = bytearray(self.content)
        damaged[bit // 8] ^= 1 << bit % 8
        self.file.unlink()  # a new file: an inspected one is known by its time
        self.file.write_bytes(damaged)
        try:
            return "same" if self.read(self.file) == self.expected else "wrong"
        except UserError:
            return "refused"
        except Exception as error:
            print(f"{self.file.name} bit {bit}: {error!r}", file=sys.stderr)
            return "traceback"

    def count(self, places: range) -> Counter[str]:
        """Flip the bits of these bytes, and count the outcomes.

        A child process inspects HDF5 files itself, which saves the wait for another process per bit. A file on which it
        ends or hangs, as the inspecting process is there to find out, is read again by this process, as users read it.
        """
        bits = range(8 * places.start, 8 * places.stop)
        outcomes = mmap.mmap(-1, len(bits))
        done = 0
        while done < len(bits):
            child = os.fork()
            if child == 0:
                self._run_child(bits, done, outcomes)
            os.waitpid(child, 0)
            done = len(bytes(outcomes).rstrip(b"\0"))
            if done < len(bits):
                outcomes[done] = 1 + OUTCOMES.index(self.outcome(bits[done]))
                done += 1
        self.file.write_bytes(self.content)
        return Counter(OUTCOMES[code - 1] for code in bytes(outcomes))

    def _run_child(self, bits: range, first: int, outcomes: mmap.mmap) -> NoReturn:
        hdf5._INSPECTOR.inspect = lambda path: hdf5.find_problem(str(path))  # type: ignore[method-assign]
        try:
            for i in range(first, len(bits)):
                signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS)
                outcomes[i] = 1 + OUTCOMES.index(self.outcome(bits[i]))
        finally:
            os._exit(0)


def one_part(file: Path, read: Callable[[Path], object], places: range) -> dict[str, object]:
    """Flip the bits of a part of a file; returns a row."""
    start = time.monotonic()
    counts = Flips(file, read).count(places)
    outcomes = {key: counts[key] for key in OUTCOMES}
    seconds = round(time.monotonic() - start, 1)
    return {"first_byte": places.start, "bytes": len(places), "bits": 8 * len(places), **outcomes, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bits.csv"), help="CSV; files in it are not repeated")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    rows: list[dict[str, object]] = list(csv.DictReader(out.open())) if out.exists() else []
    done = {(row["file"], str(row["first_byte"])) for row in rows}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as scratch:
        last = Path(scratch) / "last"
        save_checkpoint(last, *parts(), Progress(step=1))
        cases = {f"checkpoint: {name}": (last / name, partial(read_checkpoint, name=name)) for name in FILES}
        cases["store of an image"] = (small_store(Path(scratch) / "image.h5", 4, 4), read_store)
        cases["store of a volume"] = (small_store(Path(scratch) / "volume.h5", 17, 2, 2), read_store)  # two chunks
        for title, (file, read) in cases.items():
            size = file.stat().st_size
            for first in range(0, size, PART):
                if (title, str(first)) not in done:
                    rows.append(
                        {"file": title, **one_part(file, read, range(first, min(first + PART, size))), **facts()}
                    )
                    write_csv(out, rows)
    sys.exit(any(int(row["wrong"]) + int(row["traceback"]) for row in rows))


if __name__ == "__main__":
    main()
