"""What a training run is: one frozen config, stored beside its checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, PositiveInt

from stochseg.config import Config
from stochseg.errors import UserError
from stochseg.files import write_text


class DataConfig(Config):
    """Which data, and how its training examples are varied."""

    name: str = Field(description="a registered data set")
    options: dict[str, Any] = Field({}, description="what the data set takes, for every split")
    train: dict[str, Any] = Field({}, description="further options of the training split")
    val: dict[str, Any] = Field({}, description="further options of the validation split")
    size: tuple[PositiveInt, PositiveInt] | None = Field(None, description="bring every example to this height, width")
    augment: str = Field("none", description="named augmentation of the training split")
    workers: int = Field(0, ge=0, description="processes that load data")


class ModelSpec(Config):
    """Which model."""

    name: str = Field(description="a registered model")
    options: dict[str, Any] = Field({}, description="its config; keys left out keep the model's defaults")


class ValidationConfig(Config):
    """Validation on a fixed subset: the same images and seeds every time."""

    every: int = Field(1000, ge=1, description="optimizer steps between validations")
    images: int = Field(32, ge=1)
    samples: int = Field(16, ge=2)
    steps: int | None = Field(None, ge=1, description="network calls a sample; None is the model's default")
    settle: int = Field(16, ge=0, description="images on which the best model measures the grid `entropy` at the end")


class TrainConfig(Config):
    """A whole run. Scores of `published` are the paper's, for the reader; nothing is compared with them."""

    data: DataConfig
    model: ModelSpec
    start_from: str | None = Field(
        None, description="begin with the weights of this model: a run, a saved model, or a shipped one by name"
    )
    seed: int = Field(0, ge=0)
    steps: int = Field(ge=1, description="optimizer steps")
    minutes: float | None = Field(
        None, gt=0, description="end after so many minutes of training, if the steps are not done by then"
    )
    batch_size: int = Field(ge=1, description="images a step, over all processes")
    optimizer: Literal["adam", "adamw", "sgd", "muon"] = Field(
        "adam", description="sgd has a momentum of 0.9; muon makes the steps of layers' weights orthogonal"
    )
    weight_decay: float = Field(
        0.0, ge=0, description="apart from the gradient with adamw and muon, in it with the others"
    )
    lr: float = Field(1e-4, gt=0)
    final_lr: float = Field(1e-6, ge=0)
    decay: Literal["polynomial", "cosine", "constant", "tail"] = Field(
        "polynomial", description="tail: constant, then linear over the last steps; a run may be made longer before it"
    )
    tail: float = Field(0.25, gt=0, le=1, description="share of the steps over which `tail` decays")
    power: float = Field(1.0, gt=0, description="of the polynomial decay; 1 is linear")
    warmup: int = Field(0, ge=0, description="steps over which the learning rate rises from 0")
    ema: float = Field(0.9999, ge=0, lt=1, description="decay of the weights' moving average")
    clip: float | None = Field(None, gt=0, description="largest gradient norm")
    precision: Literal["float32", "bfloat16", "float16", "auto"] = Field(
        "float32", description="auto: bfloat16 where the device computes in it, else float32"
    )
    validation: ValidationConfig = ValidationConfig()
    save_every: int = Field(500, ge=1, description="steps between writes of the last checkpoint")
    log_every: int = Field(20, ge=1)
    published: dict[str, float] = Field({}, description="scores in print for this configuration")

    def is_over(self, step: int, seconds: float) -> bool:
        """Whether a run that took `step` steps in `seconds` ends."""
        return step >= self.steps or (self.minutes is not None and seconds >= 60 * self.minutes)

    def lr_factor(self, step: int, seconds: float = 0.0) -> float:
        """Learning rate of the step after `step` done ones, as a multiple of `lr`; it decays with the steps, or with
        the time if that runs out first."""
        end = self.final_lr / self.lr
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        if self.minutes is not None:
            done = max(done, seconds / (60 * self.minutes))
        done = min(1.0, done)
        if self.decay == "constant":
            return 1.0
        if self.decay == "tail":
            return end + (1 - end) * min(1.0, (1 - done) / self.tail)
        if self.decay == "cosine":
            return end + (1 - end) * (1 + math.cos(math.pi * done)) / 2
        return end + (1 - end) * (1 - done) ** self.power


def override(values: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """A copy of nested `values` with `a.b=c` assignments applied; c is read as YAML (numbers, lists, null)."""
    out = _copy(values)
    for assignment in assignments:
        path, separator, text = assignment.partition("=")
        if not separator or not path:
            raise UserError(f"override {assignment!r}: expected key=value, e.g. steps=2000 or model.options.base=16")
        *parents, key = path.split(".")
        node = out
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise UserError(f"override {assignment!r}: {parent!r} is a value, not a group of keys")
        try:
            node[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise UserError(f"override {assignment!r}: {text!r} is not a value in YAML") from None
    return out


def _copy(values: Any) -> Any:
    return {k: _copy(v) for k, v in values.items()} if isinstance(values, Mapping) else values


def write_config(config: TrainConfig, file: Path) -> None:
    write_text(file, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))


def read_config(file: Path) -> TrainConfig:
    try:
        values = yaml.safe_load(file.read_text())
    except FileNotFoundError:
        raise UserError(
            f"{file} is missing: {file.parent} is not a training run; give the folder that `train` wrote"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is not valid YAML: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{file}: expected a config with keys such as data, model, steps; got {type(values).__name__}")
    return TrainConfig.parse(values, where=str(file))
