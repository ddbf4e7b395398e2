"""Examples per second at 128×128 with 4 raters: random reads from the packed store, with augmentation, on one core.

python benchmarks/loading.py

The same examples are also read from PNG files, one per image and one per label map.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import harness
from stochseg.data import Phantoms, Store, flip_rotate, write_store
from stochseg.data.importers.plans import Item, Plan, Provenance, Record
from stochseg.types import Example

RATERS = 4


def phantom_store(folder: Path, count: int, size: int) -> Store:
    """Pack phantoms into a store."""
    data = Phantoms("train", size=size, count=count, raters=RATERS)

    def read(i: int) -> Record:
        return Record(data[i].id, data[i].id, "train", data.raw(i)[..., None], data[i].raters.numpy().astype(np.uint8))

    items = [Item(data[i].id, data[i].id, "train", partial(read, i)) for i in range(count)]
    plan = Plan(data.info, Provenance(kind="phantom", source="generated"), items, RATERS)
    return Store("train", path=str(write_store(plan, folder / "phantoms.h5")))


def as_files(store: Store, folder: Path) -> Callable[[int], Example]:
    """Write the examples of a store as PNG files; returns a function that reads one."""
    for i in range(len(store)):
        image, labels = store.read(i)
        Image.fromarray(image[..., 0]).save(folder / f"{i}.png")
        for k, one in enumerate(labels):
            Image.fromarray(one).save(folder / f"{i}-{k}.png")

    def read(i: int) -> Example:
        pixels = torch.from_numpy(np.array(Image.open(folder / f"{i}.png")))[None]
        labels = np.stack([np.array(Image.open(folder / f"{i}-{k}.png")) for k in range(RATERS)])
        return Example(store.info.normalization(pixels), torch.from_numpy(labels.astype(np.int64)), str(i))

    return read


def examples_per_second(read: Callable[[int], Example], store: Store, reads: int, seed: int) -> float:
    """Measure random reads with flips and quarter turns: median of five rounds, by CPU time."""
    rng = np.random.default_rng(seed)
    rounds = []
    for _ in range(5):
        began = time.process_time()
        for i in rng.integers(0, len(store), reads).tolist():
            flip_rotate(read(i), rng, store.info)
        rounds.append(reads / (time.process_time() - began))
    return sorted(rounds)[2]


def main() -> None:
    parser = harness.argument_parser(__doc__)
    parser.add_argument("--store", type=Path, help="another store to measure, on its train split")
    parser.add_argument("--count", type=int, default=1000, help="number of phantoms")
    parser.add_argument("--reads", type=int, default=1000, help="reads per round")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        store = phantom_store(Path(scratch), arguments.count, 128)
        ways: dict[str, tuple[Callable[[int], Example], Store]] = {"phantoms, packed store": (store.__getitem__, store)}
        ways["phantoms, PNG files"] = (as_files(store, Path(scratch)), store)
        if arguments.store:
            other = Store("train", path=str(arguments.store))
            ways[f"{other.info.name}, packed store"] = (other.__getitem__, other)
        for way, (read, data) in ways.items():
            speed = examples_per_second(read, data, arguments.reads, seed=0)
            rows.append({"way": way, "examples_per_second": round(speed), "size": 128, "raters": RATERS, "threads": 1})
            print(rows[-1], flush=True)
    print(harness.write_csv("loading", rows, arguments.out))


if __name__ == "__main__":
    main()
