"""What is fuzzed of the files that stochseg itself writes: models, checkpoints, logs, samples, predictions."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from stochseg.files import MANIFEST
from stochseg.inference import PredictOptions, predict
from stochseg.models import SamplingOptions, create, load, save
from stochseg.models.calibration import Calibration, IntervalOffset, MarginOffset, read_calibration
from stochseg.reports.saved_prediction import read_image
from stochseg.reports.saved_result import read_result
from stochseg.training.average import MovingAverage
from stochseg.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from stochseg.training.log import LOG_FILE, last_step, read_log
from stochseg.types import Samples
from tests.torture.mutations import Target, mutate_bytes, mutate_text

TINY = {"base": 4, "multipliers": [1], "blocks": 1, "attention": [], "num_timesteps": 10}
GRAY = np.random.default_rng(0).integers(0, 256, (12, 10), dtype=np.uint8)


def saved_files(scratch: Path) -> dict[str, Target]:
    """Write one of each below a folder and return the targets by name."""
    return {**_models(scratch / "models"), **_checkpoint(scratch / "run"), **_predictions(scratch), **_samples(scratch)}


def in_place(file: Path, read: Callable[[], object], content: bytes) -> None:
    """Read a folder in which one file has another content."""
    original = file.read_bytes()
    try:
        file.write_bytes(content)
        read()
    finally:
        file.write_bytes(original)


def _target(file: Path, read: Callable[[], object]) -> Target:
    mutate = mutate_text if file.suffix in (".json", ".jsonl", ".sha256") else mutate_bytes
    return Target([file.read_bytes()], partial(in_place, file, read), mutate)


def _models(scratch: Path) -> dict[str, Target]:
    """Files of models, without checksums, which would refuse all damage before a reader sees it."""
    targets = {}
    for name, options in (("ccdm", TINY), ("prob-unet", {"channels": [4, 4], "convs": 1, "latent": 2})):
        folder = save(create(name, 2, 1, **options), scratch / name)
        (folder / MANIFEST).unlink()
        for file in ("config.json", "model.safetensors"):
            targets[f"{name}/{file}"] = _target(folder / file, partial(load, folder))
    fitted = {"label": 1, "confidence": 0.9, "covered": 0.9}
    calibration = Calibration(
        data="mine",
        data_sha256="0" * 64,
        split="val",
        patients=4,
        cases=9,
        date="2026-01-01",
        sampling=SamplingOptions(n=16),
        evaluations=1,
        intervals=(IntervalOffset(**fitted, measure="area", offset=0.5, covered_before=0.5, width_ratio=2.0),),
        margins=(MarginOffset(**fitted, offset=2.5),),
    )
    file = scratch / "calibration.json"
    file.write_text(calibration.model_dump_json())
    targets["calibration.json"] = _target(file, partial(read_calibration, file, 2))
    return targets


def _checkpoint(run: Path) -> dict[str, Target]:
    model = create("unet-ce", 2, 1, base=4, multipliers=[1])
    parts = (model, MovingAverage(model, 0.9), torch.optim.Adam(model.parameters()))
    sum(parameter.square().sum() for parameter in model.parameters()).backward()
    parts[2].step()
    folder = run / "last"
    save_checkpoint(folder, *parts, Progress(step=1))
    targets = {f"last/{MANIFEST}": _target(folder / MANIFEST, partial(load_checkpoint, folder, *parts))}
    folder = Path(shutil.copytree(folder, run / "unprotected"))
    (folder / MANIFEST).unlink()
    for name in ("progress.json", "optimizer.safetensors", "model.safetensors"):
        targets[f"last/state/{name}"] = _target(folder / "state" / name, partial(load_checkpoint, folder, *parts))
    (run / LOG_FILE).write_text('{"step": 1, "seconds": 0.5, "train/loss": 2.5}\n{"step": 2, "val/ged": 0.5}\n')
    targets[LOG_FILE] = _target(run / LOG_FILE, lambda: (last_step(run), read_log(run / LOG_FILE)))
    return targets


def _predictions(scratch: Path) -> dict[str, Target]:
    """A result of `predict`, read for a report."""
    Image.fromarray(GRAY).save(scratch / "predicted.png")
    model = create("unet-ce", 2, 1, base=4, multipliers=[1])
    (done,) = predict(model, scratch / "predicted.png", scratch / "predictions", PredictOptions(n=2))
    assert done.folder is not None
    folder = done.folder

    def read() -> None:
        report = read_image(folder, read_result(folder))
        report.readings, report.size  # noqa: B018

    return {f"predictions/{name}": _target(folder / name, read) for name in ("result.json", "samples.tif", "mean.tif")}


def _samples(scratch: Path) -> dict[str, Target]:
    file = create("unet-ce", 2, 1, base=4, multipliers=[1]).sample(GRAY, n=2).save(scratch / "samples.npz")
    return {"samples.npz": _target(file, partial(Samples.load, file))}
