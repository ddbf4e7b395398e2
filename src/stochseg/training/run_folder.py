"""The folder of a run: whether it may be trained, which of its checkpoints is sound, and what a full disk means."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import torch

from stochseg.errors import UserError
from stochseg.files import check_replaceable, recover_folder
from stochseg.models.base import StochasticSegmenter
from stochseg.models.io import CONFIG, is_checkpoint, load, read_json
from stochseg.training.average import MovingAverage
from stochseg.training.checkpoint import BEST, LAST, Progress, load_checkpoint, read_progress
from stochseg.training.config import CONFIG_FILE, TrainConfig, read_config
from stochseg.training.log import LOG_FILE, last_step
from stochseg.training.splits import with_augmentation

# Keys that a resumed run may change: they do not affect what was learned so far.
FREE_KEYS = {"steps", "minutes", "tail", "validation", "save_every", "keep_checkpoints", "log_every"}


def check_run(config: TrainConfig, out: Path, resume: bool) -> None:
    """Raise a UserError if `out` may not be trained with this config. The caller holds the lock of `out`."""
    recover_checkpoints(out)
    file, found = out / CONFIG_FILE, list_checkpoints(out)
    if not resume:
        check_writable(out)
        if file.exists() or found or (out / BEST).exists() or last_step(out):
            raise UserError(f"{out} already contains a run; pass --resume to continue it or choose another --out")
    elif not found:
        _check_nothing_is_lost(out)
    elif not file.exists():
        raise UserError(f"{file} is missing: {out} is not a complete run; restore it or choose another --out")
    else:
        _check_config(config, out, found)


def _check_nothing_is_lost(out: Path) -> None:
    step, best = last_step(out), (out / BEST).exists()
    if step or best:
        trace = f"its log reaches step {step}" if step else f"{out / BEST} exists"
        raise UserError(
            f"{out} has no checkpoint to resume from, though {trace}: {LAST}/ was moved, removed or never written. "
            f"Restore {out / LAST}, or start again with another --out; nothing was changed"
        )


def _check_config(config: TrainConfig, out: Path, checkpoints: list[Path]) -> None:
    config = with_augmentation(config, out, resume=True)
    old, new = _fixed_values(read_config(out / CONFIG_FILE)), _fixed_values(config)
    changed = sorted(key for key in new if new[key] != old[key])
    if not changed:
        return
    if "data" in changed:  # name the keys
        keys = sorted(key for key in new["data"] if new["data"][key] != old["data"].get(key))
        parts = (f"data.{key} ({old['data'].get(key)}, now {new['data'][key]})" for key in keys)
        changed = [*parts, *(key for key in changed if key != "data")]
    # A run that failed before it learned anything, perhaps for lack of memory, may start again with another config.
    if checkpoints == [out / LAST] and not (out / BEST).exists() and read_progress(out / LAST).step == 0:
        shutil.rmtree(out / LAST)
        return
    raise UserError(
        f"{out} was trained with another {', '.join(changed)}; a resumed run may change only "
        f"{', '.join(sorted(FREE_KEYS))}. Choose another --out for a new run"
    )


def remove_traces(out: Path) -> None:
    """Remove what a run wrote that could not take its first step, such as for lack of memory."""
    for name in (CONFIG_FILE, LOG_FILE):
        (out / name).unlink(missing_ok=True)
    for name in (LAST, "tensorboard"):
        shutil.rmtree(out / name, ignore_errors=True)


def _fixed_values(config: TrainConfig) -> dict[str, Any]:
    """Values that must stay when a run is resumed. The number of loader processes does not affect what they load."""
    values = config.model_dump(mode="json", exclude={*FREE_KEYS})
    del values["data"]["workers"]
    values["data"]["resize"] = "stretch" if config.data.fit is None else "fit"  # the same without a size
    values["model"]["options"] = config.model.resolved_options()
    return values


def list_checkpoints(out: Path) -> list[Path]:
    """The checkpoints of a run, the newest first."""
    names = ((re.fullmatch(rf"{LAST}-(\d+)", path.name), path) for path in out.glob(f"{LAST}-*"))
    older = sorted((int(found[1]), path) for found, path in names if found)
    return [path for path in (out / LAST, *(path for _, path in older)) if path.is_dir()]


def saved_options(out: Path) -> object:
    """Options of the model in the newest checkpoint whose config can be read; None if there is none."""
    for folder in list_checkpoints(out):
        with suppress(UserError, OSError):
            return read_json(folder / CONFIG).get("config")
    return None


def recover_checkpoints(out: Path) -> None:
    """Undo the moves of a process that was killed while it replaced a checkpoint."""
    for name in (LAST, BEST):
        recover_folder(out / name)
    found = list_checkpoints(out)
    if found and found[0] != out / LAST:
        os.replace(found[0], out / LAST)


def check_writable(out: Path) -> None:
    """Raise a UserError if a run could not replace its checkpoints or write its log later."""
    checkpoints = [*list_checkpoints(out), out / BEST]
    for folder in checkpoints:
        check_replaceable(folder, ours=is_checkpoint, kind="a checkpoint")
    for path in (*checkpoints, out / LOG_FILE, out / "tensorboard", out / "samples"):
        if path.exists() and not os.access(path, os.W_OK):
            raise UserError(f"{path} cannot be written; change its permissions or choose another --out")


# ---------------------------------------------------------------------- damaged checkpoints


def load_newest(
    out: Path, model: StochasticSegmenter, average: MovingAverage, optimizer: torch.optim.Optimizer
) -> tuple[Path, Progress, dict[Path, str]]:
    """Load the newest sound checkpoint of a run.

    Returns:
        Its folder, its progress, and what is wrong with the newer ones.

    Raises:
        UserError: if none is sound.
    """
    damaged: dict[Path, str] = {}
    for folder in list_checkpoints(out):
        try:
            return folder, load_checkpoint(folder, model, average, optimizer), damaged
        except (UserError, OSError) as error:
            damaged[folder] = str(error)
    raise UserError(
        f"{next(iter(damaged.values()))}. No other checkpoint of the run can be used: restore {out / LAST} from a "
        "copy, or start again with another --out"
    )


def replace_damaged(out: Path, damaged: dict[Path, str]) -> str:
    """Rename damaged checkpoints, make the one before them `last`, and describe that as a warning."""
    sound = next(folder for folder in list_checkpoints(out) if folder not in damaged)
    step = read_progress(sound).step
    kept = ", ".join(str(set_aside(folder)) for folder in damaged)
    os.replace(sound, out / LAST)
    return (
        f"warning: {'; '.join(damaged.values())}. Resuming from {sound} at step {step} instead, which is {LAST}/ from "
        f"now on; the damaged checkpoint is kept as {kept}"
    )


def set_aside(folder: Path) -> Path:
    """Rename a damaged folder, so that it does not take the place of a sound one when the next is written."""
    names = (folder.with_name(f"{folder.name}.damaged-{i}") for i in count(1))
    damaged = next(path for path in names if not path.exists())
    os.replace(folder, damaged)
    return damaged


def problem_of_best(out: Path) -> str:
    """What is wrong with the best model of a run; empty if nothing is."""
    if not (out / BEST).exists():
        return f"{out / BEST} is missing"
    try:
        load(out / BEST)
    except UserError as error:
        return str(error)
    return ""


# ---------------------------------------------------------------------- full disks


@contextmanager
def disk_errors(out: Path) -> Iterator[None]:
    """Turn the errors of a full disk into a UserError that names the disk and the checkpoint that is left."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
            raise
        disk = next(path for path in (out.absolute(), *out.absolute().parents) if os.path.ismount(path))
        left = f"; {out / LAST} is complete, at step {_saved_step(out)}" if (out / LAST).is_dir() else ""
        raise UserError(
            f"cannot write to {out}: {error.strerror} (disk {disk}, {shutil.disk_usage(disk).free / 2**20:,.0f} MB "
            f"free){left}. Free some space, then pass --resume"
        ) from error


def _saved_step(out: Path) -> int | str:
    try:
        return read_progress(out / LAST).step
    except UserError:
        return "(unknown)"
