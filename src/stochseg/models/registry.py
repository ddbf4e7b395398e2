"""Models by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from stochseg.config import Config
from stochseg.errors import UserError, unknown_name
from stochseg.models.base import StochasticSegmenter
from stochseg.types import DatasetInfo

MODELS: dict[str, type[StochasticSegmenter]] = {}

M = TypeVar("M", bound=type[StochasticSegmenter])


def register(name: str) -> Callable[[M], M]:
    """Class decorator: `create(name, ...)` builds this model."""

    def add(cls: M) -> M:
        cls.name = name
        MODELS[name] = cls
        return cls

    return add


def create(
    name: str, num_classes: int, image_channels: int, *, info: DatasetInfo | None = None, **config: Any
) -> StochasticSegmenter:
    """Build a registered model with fresh weights; keys left out of `config` keep the model's defaults.

    `info` gives class names, colours and the normalisation of raw images; without it a plain one is made.
    """
    if name not in MODELS:
        raise unknown_name("model", name, MODELS)
    if info is None:
        info = DatasetInfo.parse({"num_classes": num_classes, "image_channels": image_channels}, where="create")
    if (info.num_classes, info.image_channels) != (num_classes, image_channels):
        raise UserError(
            f"create: info says {info.num_classes} classes and {info.image_channels} image channels, the arguments say "
            f"{num_classes} and {image_channels}; give the same numbers"
        )
    cls = MODELS[name]
    return cls(info, parse_config(cls, config))


def parse_config(cls: type[StochasticSegmenter], config: dict[str, Any]) -> Config:
    return cls.Config.parse(config, where=f"model {cls.name!r}")
