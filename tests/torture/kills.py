"""Kill trainings, imports and predictions at their file operations, run them again, and compare the results.

    python -m tests.torture.kills --kills 40 --out kills.csv

Every case kills a process by SIGKILL just before one of its file operations (open for writing, rename, link, remove,
make or remove a folder, sync), sometimes the one that resumes as well, and then lets it finish. The final state must
be that of an undisturbed process bit for bit, with the same files and no others, and a training must resume from its
newest checkpoint. Cases named "two-…" start two processes at once: one must finish, the other be refused; half of them
kill the first. Cases are drawn from the seed and their number until as many processes as asked for were ended by
SIGKILL (column `killed`; a process may end before the operation at which it would be killed). Cases that the CSV
already contains are skipped, so an interrupted call continues.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import itertools
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

from stochseg.data import plan_import, write_store
from stochseg.data.example import write_example_folder
from stochseg.data.folder import init_folder
from stochseg.errors import UserError
from stochseg.inference import PredictOptions, predict
from stochseg.models import create, load, save
from stochseg.training import TrainConfig, loop, override, train
from tests.conftest import TINY_RUN
from tests.support.volume_files import write_nifti
from tests.torture.record import facts

COLUMNS = ("seed", "case", "kind", "operations", "killed_at", "killed", "resumed_at", "result")
FACTS = ("hardware", "commit", "command")
EVENTS = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "shutil.rmtree"}
REFUSED, FAILED = 2, 3


# ---------------------------------------------------------------------- what is killed


def run_training(root: Path) -> None:
    config = TrainConfig.parse(override(TINY_RUN, ["validation.every=2", "save_every=1", "steps=5"]))
    text = io.StringIO()
    try:
        train(config, root / "out", resume=True, device="cpu", console=Console(file=text, width=300))
    finally:
        (root / "messages.txt").write_text(text.getvalue())


def run_import(root: Path, source: str = "source") -> None:
    try:
        write_store(plan_import("folder", root / source), root / "out/data.h5")
    except UserError:
        if not (root / "out/data.h5").exists():  # otherwise it was killed, or another one was faster, once complete
            raise


def run_prediction(root: Path) -> None:
    outcomes = predict(load(root / "model"), [root / "images"], root / "out", PredictOptions(n=2))
    assert {outcome.status for outcome in outcomes} <= {"done", "kept"}, outcomes


RUNS: dict[str, Callable[[Path], None]] = {
    "train": run_training,
    "import": run_import,
    "import-volumes": partial(run_import, source="volumes"),
    "predict": run_prediction,
}
WEIGHTS = {"train": 3, "predict": 2}
KINDS = tuple(name for kind in RUNS for name in (*[kind] * WEIGHTS.get(kind, 1), f"two-{kind}"))


def prepare(root: Path) -> None:
    """Write the inputs of all kinds."""
    write_example_folder(root / "source", count=8, size=16)
    init_folder(root / "source")
    draw = np.random.default_rng(0)
    for i in range(6):  # volumes of two chunks
        for name, limit in ((f"images/{i}.nii.gz", 1000), (f"labels/ana/{i}.nii.gz", 2)):
            write_nifti(root / "volumes" / name, draw.integers(0, limit, (9, 8 + i, 20), np.int16), np.eye(4))
    init_folder(root / "volumes")
    save(create("unet-ce", 2, 1, base=4, multipliers=[1]), root / "model")
    (root / "images").mkdir()
    for i in range(3):
        pixels = np.random.default_rng(i).integers(0, 256, (8, 9 + i), dtype=np.uint8)
        Image.fromarray(pixels).save(root / f"images/{i}.png")
    write_nifti(root / "images/scan.nii.gz", draw.integers(0, 256, (8, 9, 3), np.int16), np.eye(4))


# ---------------------------------------------------------------------- processes


def start(act: Callable[[Path], None], root: Path, kill_at: int = 0) -> int:
    """Fork a process that runs `act` and is killed before its operation `kill_at`; return its number."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    code = FAILED
    try:
        operations = count_operations(root / "out", kill_at)
        loop.qualitative = lambda rows, info: Figure(figsize=(1, 1))  # pictures are the slowest part
        act(root)
        (root / "operations").write_text(str(len(operations)))
        code = 0
    except UserError as error:
        (root / "refused.txt").write_text(str(error))
        code = REFUSED
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def count_operations(out: Path, kill_at: int) -> list[str]:
    """Record the file operations at or below `out` from now on, and die before operation `kill_at`."""
    seen: list[str] = []
    below, fsync = os.fspath(out), os.fsync

    def record(name: str) -> None:
        seen.append(name)
        if len(seen) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (writes or event in EVENTS) and str(arguments[0]).startswith(below):
            record(event)

    def synced(handle: int) -> None:
        record("os.fsync")
        fsync(handle)

    sys.addaudithook(hook)
    os.fsync = synced
    return seen


def finish(child: int) -> int:
    """Wait for a process; its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# ---------------------------------------------------------------------- states


def state(out: Path) -> dict[str, str]:
    """Digest of every file that does not depend on the time; the number of TensorBoard files is free."""
    found = {}
    for file in sorted(path for path in out.rglob("*") if path.is_file()):
        name = file.relative_to(out).as_posix()
        if not name.startswith("tensorboard/"):
            found[name] = hashlib.sha256(timeless(file)).hexdigest()
    return found


def timeless(file: Path) -> bytes:
    """The content of a file without times."""
    if file.parent.name.startswith("last-") or file.parts[-3].startswith("last-"):
        return b""  # the checkpoint before, which depends on where the process was killed
    if file.name == "checksums.sha256":  # of files that are compared themselves
        return b""
    if file.name in ("progress.json", "result.json"):
        values = json.loads(file.read_text())
        return json.dumps({k: v for k, v in values.items() if k != "seconds"}).encode()
    if file.name == "log.jsonl":
        records = [json.loads(line) for line in file.read_text().splitlines()]
        return json.dumps([{k: v for k, v in record.items() if k != "seconds"} for record in records]).encode()
    return file.read_bytes()


def newest_step(out: Path) -> int | None:
    """The step of the newest checkpoint, also if a process was killed while it moved it."""
    files = [out / "last/state/progress.json", out / "last-1/state/progress.json"]
    return next((json.loads(file.read_text())["step"] for file in files if file.is_file()), None)


# ---------------------------------------------------------------------- cases


@dataclass
class Reference:
    """An undisturbed process: its number of file operations and its final state."""

    operations: int
    state: dict[str, str]


def one_case(kind: str, draw: random.Random, root: Path, references: dict[str, Reference]) -> dict[str, object]:
    """Run a case and describe it. result: "ok" or what is wrong."""
    base = kind.removeprefix("two-")
    reference = references[base]
    row: dict[str, object] = {"kind": kind, "operations": reference.operations}
    if base != kind:
        return row | two_writers(RUNS[base], draw, root, reference)
    kills, resumed = [], ""
    for _ in range(draw.choice((1, 1, 2))):
        kills.append(draw.randint(1, reference.operations))
        code = finish(start(RUNS[base], root, kills[-1]))
        if code not in (0, -signal.SIGKILL):
            return {**row, "killed_at": kills, "result": f"exit code {code}"}
        row["killed"] = int(row.get("killed", 0)) + (code == -signal.SIGKILL)
    step = newest_step(root / "out")
    code = finish(start(RUNS[base], root))
    result = compare([code], [0], root, reference.state)
    if base == "train" and step:
        text = (root / "messages.txt").read_text()
        resumed = next((word for word in text.split("at step ")[1:]), "?").split()[0]
        if resumed != str(step) or "warning" in text:
            result = f"resumed at {resumed}, expected {step}: {text}"
    return {**row, "killed_at": kills, "resumed_at": resumed, "result": result}


def two_writers(
    act: Callable[[Path], None], draw: random.Random, root: Path, reference: Reference
) -> dict[str, object]:
    """Start two processes at once, of which the first may be killed; if none finishes, a third must."""
    kill_at = draw.choice((0, draw.randint(1, reference.operations)))
    codes = [finish(child) for child in [start(act, root, kill_at), start(act, root)]]
    row = {"killed_at": [kill_at] if kill_at else "", "killed": codes.count(-signal.SIGKILL)}
    wrong = {*codes} - {0, REFUSED, -signal.SIGKILL}
    refused = root / "refused.txt"
    if wrong or (REFUSED in codes and not re.search("in use|exists", refused.read_text())):
        return {**row, "result": f"exit codes {codes}: {refused.read_text() if refused.exists() else ''}"}
    final = 0 if 0 in codes else finish(start(act, root))
    return {**row, "result": compare([final], [0], root, reference.state)}


def compare(codes: list[int], wanted: list[int], root: Path, expected: dict[str, str]) -> str:
    if codes != wanted:
        refused = root / "refused.txt"
        return f"exit codes {codes}: {refused.read_text() if refused.exists() else ''}"
    found = state(root / "out")
    wrong = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    return f"differs: {', '.join(wrong)}" if wrong else "ok"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="number of processes to kill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("kills.csv"), help="CSV; cases in it are not repeated")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    done = list(csv.DictReader(arguments.out.open())) if arguments.out.exists() else []
    finished = {(row["seed"], row["case"]) for row in done}
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs"
        inputs.mkdir()
        prepare(inputs)
        root = Path(folder) / "case"  # the same for all, because results name the paths of their inputs
        references = {}
        for kind, act in RUNS.items():
            shutil.copytree(inputs, root)
            assert finish(start(act, root)) == 0, kind
            references[kind] = Reference(int((root / "operations").read_text()), state(root / "out"))
            shutil.rmtree(root)
        for case in itertools.count():
            if sum(int(row.get("killed") or 0) for row in done) >= arguments.kills:
                break
            if (str(arguments.seed), str(case)) in finished:
                continue
            draw = random.Random(f"{arguments.seed}-{case}")
            shutil.copytree(inputs, root)
            row = one_case(draw.choice(KINDS), draw, root, references)
            shutil.rmtree(root)
            done.append({"seed": arguments.seed, "case": case, **row, **facts()})
            with arguments.out.open("w", newline="") as stream:
                writer = csv.DictWriter(stream, (*COLUMNS, *FACTS), lineterminator="\n")
                writer.writeheader()
                writer.writerows(done)
    for (kind, result), number in sorted(Counter((row["kind"], row["result"]) for row in done).items()):
        print(f"{kind}: {number} {result}")
    print(f"{sum(int(row.get('killed') or 0) for row in done)} processes killed")
    sys.exit(any(row["result"] != "ok" for row in done))


if __name__ == "__main__":
    main()
