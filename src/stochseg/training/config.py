"""Training configs: one frozen config per run, stored with its checkpoints."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from pydantic import Field, field_validator, model_validator

from stochseg.config import Config
from stochseg.documents import parse_keys, parse_yaml
from stochseg.errors import UserError
from stochseg.files import write_text
from stochseg.limits import MAX_SAMPLES, MAX_SEED, MAX_SIDE
from stochseg.models.registry import find_class

CONFIG_FILE = "train.yaml"

Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]


class DataConfig(Config):
    """Data of a run, and how its training examples are augmented."""

    name: str = Field(description="a registered data set")
    options: dict[str, Any] = Field({}, description="options of the data set, for every split")
    train: dict[str, Any] = Field({}, description="further options of the training split")
    val: dict[str, Any] = Field({}, description="further options of the validation split")
    crop: tuple[Side, Side] | None = Field(None, description="cut every example to its central height, width")
    size: tuple[Side, Side] | None = Field(
        None, description="resize every example, after the crop, to this height, width; one number is a square"
    )
    resize: Literal["fit", "stretch"] = Field(
        "fit",
        description="fit: keep the aspect, pad with void, and let the model do and undo the same to every image that "
        "it samples; stretch, and always after a crop: of the run's own data only",
    )
    augment: str = Field("none", description="named augmentation of the training split; auto: that of the data")
    patch: tuple[Side, Side, Side] | None = Field(
        None, description="train on random parts of volumes, of at most these slices and of this height, width"
    )
    patch_foreground: float = Field(
        1 / 3, ge=0, le=1, description="chance that a part is centered on a voxel that a rater has marked"
    )
    beyond: int = Field(
        0,
        ge=0,
        le=MAX_SIDE,
        description="train on every volume twice, once with this many slices without an object added at both ends; for "
        "volumes that were cut at the first and last slice of their object",
    )
    workers: int = Field(0, ge=0, le=1024, description="processes that load data")
    tune: float = Field(
        0.0, ge=0, lt=1, description="share of the training patients, by a hash of their names, kept as the split tune"
    )

    @field_validator("size", mode="before")
    @classmethod
    def _square(cls, size: Any) -> Any:
        if isinstance(size, int) and not isinstance(size, bool):
            return (size, size)
        if isinstance(size, str) or (isinstance(size, (list, tuple)) and len(size) != 2):
            raise ValueError("expected one number of pixels, or height and width, e.g. data.size=128 or [128, 256]")
        return size

    @property
    def fit(self) -> tuple[int, int] | None:
        """The size into which the model fits every image."""
        return self.size if self.resize == "fit" and self.crop is None else None


class ModelSpec(Config):
    """Model of a run."""

    name: str = Field(description="a registered model")
    options: dict[str, Any] = Field({}, description="its config; keys left out keep the model's defaults")

    def resolved_options(self) -> dict[str, Any]:
        """All options of the model under their current names, defaults included."""
        config_type = find_class(self.name).config_type
        return config_type.parse(self.options, where=f"model {self.name!r}").model_dump(mode="json")


class ValidationConfig(Config):
    """Validation on a fixed subset: the same images and seeds every time."""

    every: int = Field(1000, ge=1, description="optimizer steps between validations")
    images: int = Field(32, ge=1, description="images of the validation split, evenly spaced")
    num_samples: int = Field(16, ge=2, le=MAX_SAMPLES, description="samples per image")
    select: Literal["auto", "ged", "miou"] = Field(
        "auto", description="metric of the best checkpoint; auto: mIoU for images with one label map each, else GED"
    )
    evaluations: int | None = Field(
        None, ge=1, description="network evaluations per sample; None is the model's default"
    )
    calibration_images: int = Field(
        16, ge=0, description="images on which the best model measures its grid `entropy` after training"
    )
    renamed_keys: ClassVar[dict[str, str]] = {
        "samples": "num_samples",
        "steps": "evaluations",
        "settle": "calibration_images",
    }


class TrainConfig(Config):
    """Everything that defines a training run.

    Build one with `recipe`, `TrainConfig.parse` or `read_config`; `override` changes keys of nested dictionaries.

    >>> config = TrainConfig.parse(
    ...     {"data": {"name": "phantom"}, "model": {"name": "ccdm"}, "steps": 1000, "batch_size": 16, "warmup": 100}
    ... )
    >>> config.lr, config.validation.num_samples
    (0.0001, 16)
    >>> round(config.lr_factor(550), 3)
    0.505
    """

    data: DataConfig
    model: ModelSpec
    start_from: str | None = Field(
        None, description="start with the weights of this model: a run, a saved model, or the name of a bundled one"
    )
    seed: int = Field(0, ge=0, le=MAX_SEED)
    steps: int = Field(ge=1, description="optimizer steps")
    minutes: float | None = Field(None, gt=0, description="stop after this many minutes of training, even before steps")
    clock: Literal["wall", "cpu"] = Field(
        "wall", description="clock of minutes and snapshots; cpu: minutes of one core, whatever else the machine does"
    )
    snapshots: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (), description="minutes of training after which the averaged weights are saved, as RUN/at-10m"
    )
    batch_size: int = Field(ge=1, le=2**20, description="images per step, over all processes")
    optimizer: Literal["adam", "adamw", "sgd", "muon"] = Field(
        "adam", description="sgd has a momentum of 0.9; muon orthogonalizes the steps of weight matrices"
    )
    weight_decay: float = Field(
        0.0, ge=0, description="decoupled from the gradient with adamw and muon, part of it with the others"
    )
    lr: float = Field(1e-4, gt=0, description="learning rate")
    final_lr: float = Field(1e-6, ge=0, description="learning rate at the end of the decay")
    decay: Literal["polynomial", "cosine", "constant", "tail"] = Field(
        "polynomial", description="tail: constant, then linear at the end; a run can be extended before its tail starts"
    )
    tail: float = Field(0.25, gt=0, le=1, description="fraction of the steps over which `tail` decays")
    power: float = Field(1.0, gt=0, description="of the polynomial decay; 1 is linear")
    warmup: int = Field(0, ge=0, description="steps over which the learning rate rises from 0")
    ema: float = Field(0.9999, ge=0, lt=1, description="decay of the moving average of the weights")
    ema_warmup: float = Field(
        9.0, gt=0, description="w: the decay of update n is at most (1 + n)/(1 + n + w); 1: the mean of all so far"
    )
    clip: float | None = Field(None, gt=0, description="largest gradient norm")
    precision: Literal["float32", "bfloat16", "float16", "auto"] = Field(
        "float32", description="auto: bfloat16 if the device computes in it, else float32"
    )
    validation: ValidationConfig = ValidationConfig()
    save_every: int = Field(500, ge=1, description="steps between writes of the last checkpoint")
    keep_checkpoints: int = Field(
        2, ge=1, description="last checkpoints to keep; if the newest is damaged, a run resumes from the one before"
    )
    log_every: int = Field(20, ge=1, description="steps between records in the log")

    @field_validator("start_from")
    @classmethod
    def _not_of_the_hub(cls, name: str | None) -> str | None:
        if name is not None and name.startswith("hf:"):
            raise ValueError(
                "names in configs do not reach the hub; save the model first, with stochseg.save(stochseg.load(NAME), "
                "FOLDER), and start from FOLDER"
            )
        return name

    @model_validator(mode="before")
    @classmethod
    def _without_published(cls, values: Any) -> Any:
        """Older recipes had published scores of their paper, which do not belong to other data and protocols."""
        return {k: v for k, v in values.items() if k != "published"} if isinstance(values, Mapping) else values

    def is_over(self, step: int, seconds: float) -> bool:
        """Whether a run ends after `step` steps and `seconds` of training."""
        return step >= self.steps or (self.minutes is not None and seconds >= 60 * self.minutes)

    def progress(self, step: int, seconds: float) -> float:
        """Fraction of the run that is done after `step` steps and `seconds` of training, whichever is closer to its
        end."""
        timed = 0.0 if self.minutes is None else seconds / (60 * self.minutes)
        return min(1.0, max(step / self.steps, timed))

    def lr_factor(self, step: int, seconds: float = 0.0) -> float:
        """Learning rate after `step` steps and `seconds` of training, as a multiple of `lr`.

        It decays with the steps, or with the time if that runs out first.
        """
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
        return float(end + (1 - end) * (1 - done) ** self.power)


def snapshot_name(minutes: float) -> str:
    """Folder of a snapshot in its run.

    >>> snapshot_name(10.0), snapshot_name(0.5)
    ('at-10m', 'at-0.5m')
    """
    return f"at-{minutes:g}m"


def override(values: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Copy nested `values` and apply assignments of the form `a.b=c`.

    Args:
        values: nested dictionaries, such as those of a config.
        assignments: keys joined by dots, and a value in YAML (numbers, lists, null).

    Returns:
        The changed copy.

    Raises:
        UserError: for an assignment without a key, below a plain value, or with a value that is not YAML.

    >>> override({"steps": 100, "model": {"name": "ccdm"}}, ["steps=2000", "model.options.multipliers=[1, 2]"])
    {'steps': 2000, 'model': {'name': 'ccdm', 'options': {'multipliers': [1, 2]}}}
    """
    out: dict[str, Any] = copy.deepcopy(dict(values))
    for assignment in assignments:
        path, separator, text = assignment.partition("=")
        if not separator or not path:
            raise UserError(f"override {assignment!r}: expected key=value, e.g. steps=2000 or model.options.draws=2")
        *parents, key = path.split(".")
        node = out
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise UserError(f"override {assignment!r}: {parent!r} is a value, not a group of keys")
        node[key] = parse_yaml(text, f"override {assignment!r}: {text!r}")
    return out


def write_config(config: TrainConfig, file: Path) -> None:
    """Write a config as YAML."""
    write_text(file, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))


def read_config(file: Path) -> TrainConfig:
    """Read a config that `write_config` or a user wrote.

    Args:
        file: a YAML file, such as RUN/train.yaml.

    Returns:
        The config.

    Raises:
        UserError: if the file is missing, is not YAML, or has unknown keys or values.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(
            f"{file} is missing: {file.parent} is not a training run; give a folder written by `stochseg train`"
        ) from None
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not valid YAML: {error}") from None
    values = parse_keys(text, str(file), "data, model, steps")
    data = values.get("data")
    if isinstance(data, dict) and {"train", "val", "size", "augment", "workers"} <= data.keys():
        data.setdefault("resize", "stretch")  # written by a run, with all its keys, when there was no choice
    return TrainConfig.parse(values, where=str(file))
