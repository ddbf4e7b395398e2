"""Checkpoints of a run: `best/` and `last/` are model folders, `last/state/` holds the state for resuming.

Everything is safetensors or JSON. A checkpoint is written next to the old one and then replaces it, so that a crash at
any moment leaves a complete one (`files.recover_folder` finds it between the two moves).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file

from stochseg.errors import UserError
from stochseg.files import replaced_folder
from stochseg.models.base import StochasticSegmenter
from stochseg.models.io import is_checkpoint, load_weights, read_json, read_tensors, write_model
from stochseg.networks import ImageEncoder
from stochseg.training.average import MovingAverage


@dataclass
class Progress:
    """State of a run, except weights and optimizer.

    validated: the last step whose validation was finished; best: the best validation score so far, by best_metric: the
    lowest "ged" or the highest "miou"; seconds: time spent in training; loss_scale: state of the scaler in float16.
    """

    step: int = 0
    validated: int = 0
    best: float | None = None
    best_step: int | None = None
    best_metric: str = "ged"
    seconds: float = 0.0
    loss_scale: dict[str, float] = field(default_factory=dict)

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
) -> None:
    """Write the averaged weights as the model, and the trained weights and the optimizer's moments as its state.

    Image encoders, which are never trained, are in the model only.
    """
    with replaced_folder(folder, ours=is_checkpoint, kind="a checkpoint") as scratch:
        write_model(average.model, scratch)
        state = scratch / "state"
        state.mkdir()
        frozen = frozen_tensors(model)
        save_file(
            {k: v.detach().cpu().contiguous() for k, v in model.state_dict().items() if k not in frozen},
            state / "model.safetensors",
        )
        moments = {  # as "parameter/moment"
            f"{name}/{moment}": value.detach().cpu().contiguous()
            for name, parameter in model.named_parameters()
            for moment, value in optimizer.state.get(parameter, {}).items()
        }
        save_file(moments, state / "optimizer.safetensors")
        (state / "progress.json").write_text(json.dumps(asdict(progress)) + "\n")


def load_checkpoint(
    folder: Path, model: StochasticSegmenter, average: MovingAverage, optimizer: torch.optim.Optimizer
) -> Progress:
    """Load a checkpoint into model, average and optimizer, and return the progress of the run."""
    state = folder / "state"
    # Missing in older checkpoints.
    values = {"loss_scale": {}, "best_metric": "ged", **read_json(state / "progress.json")}
    if set(values) != set(asdict(Progress())):
        raise UserError(
            f"{state / 'progress.json'}: expected the keys {sorted(asdict(Progress()))}, got {sorted(values)}"
        )
    load_weights(average.model, folder / "model.safetensors")
    frozen = frozen_tensors(model)
    load_weights(model, state / "model.safetensors", without=frozen)
    model.load_state_dict({k: v for k, v in average.model.state_dict().items() if k in frozen}, strict=False)
    parameters = dict(model.named_parameters())
    for key, value in read_tensors(state / "optimizer.safetensors").items():
        name, _, moment = key.rpartition("/")
        if name not in parameters:
            raise UserError(f"{state}: optimizer state of an unknown parameter {name!r}; it belongs to another model")
        # Adam counts its steps on the CPU by default.
        target = torch.device("cpu") if moment == "step" else parameters[name].device
        optimizer.state[parameters[name]][moment] = value.to(target)
    progress = Progress(**values)
    average.updates = progress.step
    return progress


def frozen_tensors(model: StochasticSegmenter) -> set[str]:
    """Names of the tensors of image encoders, which are never trained."""
    encoders = [f"{name}." for name, module in model.named_modules() if isinstance(module, ImageEncoder)]
    return {key for key in model.state_dict() if key.startswith(tuple(encoders))}
