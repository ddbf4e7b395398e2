"""Models by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from stochseg.errors import UserError, unknown_name
from stochseg.models.base import StochasticSegmenter
from stochseg.types import DatasetInfo

MODELS: dict[str, type[StochasticSegmenter]] = {}

FAMILIES: dict[str, Callable[[str], type[StochasticSegmenter]]] = {}
"""Models named "prefix:variant": from the whole name to its class, which carries that name."""

M = TypeVar("M", bound=type[StochasticSegmenter])
F = TypeVar("F", bound=Callable[[str], type[StochasticSegmenter]])


def register(name: str) -> Callable[[M], M]:
    """Class decorator: `create(name, ...)` builds this model."""

    def add(cls: M) -> M:
        cls.name = name
        MODELS[name] = cls
        return cls

    return add


def register_family(prefix: str) -> Callable[[F], F]:
    """Decorator of a function that makes the class of a model named "prefix:variant"; equal names, equal classes."""

    def add(make: F) -> F:
        FAMILIES[prefix] = make
        return make

    return add


def is_registered(name: object) -> bool:
    """Whether this is the name of a model, or begins as one of a family does."""
    return isinstance(name, str) and (name in MODELS or (":" in name and name.partition(":")[0] in FAMILIES))


def find_class(name: object, where: str = "") -> type[StochasticSegmenter]:
    """The class of a model by its name; `where` says in the error where the name stood."""
    if isinstance(name, str) and is_registered(name):
        return MODELS[name] if name in MODELS else FAMILIES[name.partition(":")[0]](name)
    raise unknown_name(f"model{where}", name, [*MODELS, *(f"{prefix}:..." for prefix in FAMILIES)])


def create(
    name: str, num_classes: int, image_channels: int, *, info: DatasetInfo | None = None, **config: Any
) -> StochasticSegmenter:
    """Build a registered model with fresh (or, where its config says so, pretrained) weights; keys left out of `config`
    keep the model's defaults.

    `info` gives class names, colors and the normalization of raw images; without it a plain one is made.
    """
    if info is None:
        info = DatasetInfo.parse({"num_classes": num_classes, "image_channels": image_channels}, where="create")
    if (info.num_classes, info.image_channels) != (num_classes, image_channels):
        raise UserError(
            f"create: info says {info.num_classes} classes and {info.image_channels} image channels, the arguments say "
            f"{num_classes} and {image_channels}; give the same numbers"
        )
    model = build(name, info, config)
    model.load_pretrained()
    return model


def build(name: object, info: DatasetInfo, config: dict[str, Any], *, where: str = "") -> StochasticSegmenter:
    """The model with fresh weights alone, to be filled by others; `where` says in an error where its name stood."""
    cls = find_class(name, where)
    return cls(info, cls.config_type.parse(config, where=f"model {cls.name!r}"))
