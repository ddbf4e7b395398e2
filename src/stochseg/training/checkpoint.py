"""Checkpoints of a run: `best/` and `last/` are model folders, `last/state/` holds the state for resuming.

Everything is safetensors or JSON, with checksums. A checkpoint is written next to the old one and then replaces it, so
that a crash at any moment leaves a complete one; the old one stays as `last-1/`, in case that the new one is damaged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from stochseg.errors import UserError
from stochseg.files import replaced_folder, verify_manifest, write_manifest
from stochseg.models.base import StochasticSegmenter
from stochseg.models.io import (
    PROGRESS,
    WEIGHTS,
    is_checkpoint,
    load_weights,
    read_json,
    read_tensors,
    write_model,
    write_tensors,
)
from stochseg.networks import ImageEncoder
from stochseg.training.average import MovingAverage

LAST, BEST = "last", "best"


@dataclass
class Progress:
    """State of a run, except weights and optimizer.

    validated: the last step whose validation was finished; best: the best validation score so far, by best_metric: the
    lowest "ged" or the highest "miou"; seconds: time spent in training; loss_scale: state of the scaler in float16;
    moments: number of tensors of the optimizer's state, None in older checkpoints.
    """

    step: int = 0
    validated: int = 0
    best: float | None = None
    best_step: int | None = None
    best_metric: str = "ged"
    seconds: float = 0.0
    loss_scale: dict[str, int | float] = field(default_factory=dict)
    moments: int | None = None

    def improved(self, score: float) -> bool:
        """Whether a validation score is better than the best so far."""
        if self.best is None:
            return True
        return score > self.best if self.best_metric == "miou" else score < self.best


def save_checkpoint(
    folder: Path,
    model: StochasticSegmenter,
    average: MovingAverage,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    *,
    keep: int = 1,
) -> None:
    """Write the averaged weights as the model, and the trained weights and the optimizer's moments as its state.

    Image encoders, which are never trained, are in the model only. The former checkpoints are kept as `last-1`, ….
    """
    with replaced_folder(folder, ours=is_checkpoint, kind="a checkpoint", keep=keep) as scratch:
        write_model(average.model, scratch)
        state = scratch / "state"
        state.mkdir()
        frozen = frozen_tensors(model)
        write_tensors({k: v for k, v in model.state_dict().items() if k not in frozen}, state / WEIGHTS)
        moments = {  # as "parameter/moment"
            f"{name}/{moment}": value
            for name, parameter in model.named_parameters()
            for moment, value in optimizer.state.get(parameter, {}).items()
        }
        write_tensors(moments, state / "optimizer.safetensors")
        progress.moments = len(moments)
        (scratch / PROGRESS).write_text(json.dumps(asdict(progress)) + "\n", encoding="utf-8")
        write_manifest(scratch)


def load_checkpoint(
    folder: Path, model: StochasticSegmenter, average: MovingAverage, optimizer: torch.optim.Optimizer
) -> Progress:
    """Load a checkpoint into model, average and optimizer, and return the progress of the run.

    Raises:
        UserError: if a file is missing, damaged or of another model.
    """
    verify_manifest(folder)
    state = folder / "state"
    progress = read_progress(folder)
    load_weights(average.model, folder / WEIGHTS)
    frozen = frozen_tensors(model)
    load_weights(model, state / WEIGHTS, without=frozen)
    for file, loaded in ((folder / WEIGHTS, average.model), (state / WEIGHTS, model)):
        _check_finite(file, loaded.state_dict())
    model.load_state_dict({k: v for k, v in average.model.state_dict().items() if k in frozen}, strict=False)
    optimizer.state.clear()
    parameters = dict(model.named_parameters())
    for name, moment, value in _moments(state / "optimizer.safetensors", parameters, progress):
        # Adam counts its steps on the CPU by default.
        target = torch.device("cpu") if moment == "step" else parameters[name].device
        optimizer.state[parameters[name]][moment] = value.to(target)
    average.updates = progress.step
    return progress


def read_progress(folder: Path) -> Progress:
    """Read the progress of a run at a checkpoint."""
    values = read_json(folder / PROGRESS)
    unknown = sorted(values.keys() - asdict(Progress()).keys())
    newer = {"loss_scale", "moments", "best_metric"}  # not in older checkpoints
    missing = sorted(asdict(Progress()).keys() - values.keys() - newer)
    if unknown or missing:
        raise UserError(f"{folder / PROGRESS}: expected the keys {sorted(asdict(Progress()))}, got {sorted(values)}")
    try:
        return TypeAdapter(Progress).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{folder / PROGRESS}: key {first['loc'][0]!r}: {first['msg']}; it is damaged") from None


def _check_finite(file: Path, tensors: Mapping[str, Tensor]) -> None:
    for name, value in tensors.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise UserError(f"{file}: tensor {name!r} has values that are not finite; the checkpoint cannot be used")


def _moments(
    file: Path, parameters: Mapping[str, torch.nn.Parameter], progress: Progress
) -> Iterable[tuple[str, str, Tensor]]:
    """Read the optimizer's state as (parameter, moment, value), after checks of number, names and shapes."""
    tensors = read_tensors(file)
    # A loss scaler may have skipped all steps so far.
    none = progress.moments is None and progress.step and not progress.loss_scale and not tensors
    if none or len(tensors) != (progress.moments if progress.moments is not None else len(tensors)):
        raise UserError(f"{file}: expected {progress.moments or 'some'} tensors, got {len(tensors)}; it is incomplete")
    found = []
    for key, value in tensors.items():
        name, _, moment = key.rpartition("/")
        if name not in parameters:
            raise UserError(f"{file}: optimizer state of an unknown parameter {name!r}; it belongs to another model")
        if value.shape not in (torch.Size(), parameters[name].shape):
            raise UserError(
                f"{file}: {key!r} has shape {tuple(value.shape)}, expected {tuple(parameters[name].shape)}; it belongs "
                "to another model"
            )
        found.append((name, moment, value))
    return found


def frozen_tensors(model: StochasticSegmenter) -> set[str]:
    """Names of the tensors of image encoders, which are never trained."""
    encoders = [f"{name}." for name, module in model.named_modules() if isinstance(module, ImageEncoder)]
    return {key for key in model.state_dict() if key.startswith(tuple(encoders))}
