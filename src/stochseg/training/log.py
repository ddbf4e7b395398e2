"""Log of a run: losses and scores for TensorBoard and as JSON lines, pictures of samples."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from torch.utils.tensorboard import SummaryWriter

from stochseg.files import write_text
from stochseg.plotting import write_figure
from stochseg.training.checkpoint import Progress

LOG_FILE = "log.jsonl"


class Log:
    """Writer of TensorBoard events, one JSON line per record, and pictures as files.

    Args:
        out: the run folder.
        active: whether to write; False for all processes except the main one.
        progress: where the run starts or resumes. Records of later steps are removed.
    """

    def __init__(self, out: Path, active: bool, progress: Progress):
        self.out = out
        self.board = None
        if active:
            _remove_after(progress, out / LOG_FILE)
            self.board = SummaryWriter(str(out / "tensorboard"), purge_step=progress.step + 1)

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        if self.board is not None:
            self.board.close()

    def scalars(self, progress: Progress, values: dict[str, float]) -> None:
        """Record values at the current step."""
        if self.board is None:
            return
        for name, value in values.items():
            self.board.add_scalar(name, value, progress.step)
        record = {"step": progress.step, "seconds": round(progress.seconds, 2), **values}
        with (self.out / LOG_FILE).open("a") as file:
            file.write(json.dumps(record) + "\n")

    def picture(self, step: int, figure: Figure) -> None:
        """Write a picture of samples."""
        if self.board is not None:
            write_figure(figure, self.out / "samples" / f"step-{step:07d}.png")
            self.board.add_figure("val/samples", figure, step, close=False)


def read_log(file: Path) -> list[dict[str, Any]]:
    """Read the records of a log; none if there is no log. Other lines, such as a half one, are skipped."""
    return [record for _, record in _read(file) if record is not None]


def last_step(out: Path) -> int:
    """The last optimizer step in the log of a run; 0 if there is none."""
    return max((record["step"] for record in read_log(out / LOG_FILE)), default=0)


def _remove_after(progress: Progress, log: Path) -> None:
    """Remove the records of steps and validations after the checkpoint: they are about to be repeated.

    Lines of other kinds stay, except a last one that a crash cut off.
    """
    if log.exists():
        write_text(
            log, "".join(line.rstrip("\n") + "\n" for line, record in _read(log) if _is_kept(line, record, progress))
        )


def _is_kept(line: str, record: dict[str, Any] | None, progress: Progress) -> bool:
    if record is None:
        return line.endswith("\n")
    return bool(record["step"] <= (progress.validated if "val/ged" in record else progress.step))


def _read(log: Path) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Lines of a log with their records, None for a line that is not one."""
    if not log.is_file():
        return
    with log.open(encoding="utf-8", errors="backslashreplace", newline="\n") as lines:
        for line in lines:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                record = None
            yield line, record if isinstance(record, dict) and isinstance(record.get("step"), int) else None
