"""Models by name: those of this package, and those that installed packages register as entry points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from stochseg.errors import UserError, unknown_name
from stochseg.models.base import StochasticSegmenter
from stochseg.models.budget import TensorBudget
from stochseg.plugins import Registry
from stochseg.types import DatasetInfo

MODELS: Registry[type[StochasticSegmenter]] = Registry("model", "stochseg.models")
"""Model classes by name. An installed package adds one with an entry point of the group `stochseg.models`."""

FAMILIES: dict[str, Callable[[str], type[StochasticSegmenter]]] = {}
"""Models named "prefix:variant": a function from the whole name to its class, the same class for the same name."""

M = TypeVar("M", bound=type[StochasticSegmenter])


def register(name: str) -> Callable[[M], M]:
    """Class decorator that registers a model, so that `create(name, ...)` builds it.

    Args:
        name: lower case, words joined by hyphens.

    Returns:
        The decorator.

    >>> from stochseg.models import StochasticSegmenter, list_models, register
    >>> @register("my-model")
    ... class MyModel(StochasticSegmenter):
    ...     pass
    >>> "my-model" in list_models()
    True
    >>> del MODELS["my-model"]
    """

    def add(cls: M) -> M:
        cls.name = name
        MODELS[name] = cls
        return cls

    return add


def list_models() -> list[str]:
    """Names of all registered models, sorted; families appear as "prefix:...".

    Returns:
        The names that `create` accepts.

    >>> import stochseg
    >>> [name for name in stochseg.list_models() if name.startswith("c")]
    ['car', 'ccdm', 'ccdm-fast', 'cflow', 'cimd']
    """
    return sorted([*MODELS, *(f"{prefix}:..." for prefix in FAMILIES)])


def is_registered(name: object) -> bool:
    """Whether `name` is the name of a model, or has the prefix of a family."""
    return isinstance(name, str) and (name in MODELS or (":" in name and name.partition(":")[0] in FAMILIES))


def find_class(name: object, where: str = "") -> type[StochasticSegmenter]:
    """The class of a model by its name; `where` says in an error message where the name comes from."""
    if not isinstance(name, str) or not is_registered(name):
        raise unknown_name(f"model{where}", name, list_models())
    if name not in MODELS:
        return FAMILIES[name.partition(":")[0]](name)
    cls = MODELS[name]
    if not (isinstance(cls, type) and issubclass(cls, StochasticSegmenter)):
        raise UserError(f"model {name!r}: expected a subclass of StochasticSegmenter, got {cls!r}")
    cls.name = name  # the class of an entry point may not be decorated
    return cls


def create(
    name: str,
    num_classes: int = 2,
    image_channels: int = 1,
    *,
    spatial_dims: int | None = None,
    info: DatasetInfo | None = None,
    **config: Any,
) -> StochasticSegmenter:
    """Build a registered model with random or, where its config says so, pretrained weights.

    Args:
        name: a name of `list_models()`.
        num_classes: labels, the background included.
        image_channels: channels of the images.
        spatial_dims: 3 for a model of volumes; default: that of `info`, else 2.
        info: class names, colors and the normalization of raw images; default: plain ones.
        **config: options of the model; those left out keep the model's defaults.

    Returns:
        The model, on the CPU and in training mode.

    Raises:
        UserError: for an unknown model, an unknown option, or an `info` that contradicts the numbers.

    >>> import stochseg
    >>> stochseg.create("ccdm-fast", num_classes=3, tower=[8, 16], light=[8, 8]).num_classes
    3
    """
    if info is None:
        facts = {"num_classes": num_classes, "image_channels": image_channels, "spatial_dims": spatial_dims or 2}
        info = DatasetInfo.parse(facts, where="create")
    has = (info.num_classes, info.image_channels, info.spatial_dims)
    asked = (num_classes, image_channels, spatial_dims or info.spatial_dims)
    if has != asked:
        raise UserError(
            "create: info has {} classes, {} image channels and {} spatial dimensions, ".format(*has)
            + "the arguments are {}, {} and {}; pass the same numbers".format(*asked)
        )
    model = build(name, info, config)
    model.load_pretrained()
    return model


def build(
    name: object, info: DatasetInfo, config: dict[str, Any], *, where: str = "", budget: TensorBudget | None = None
) -> StochasticSegmenter:
    """The model with random weights, to be filled by the caller.

    Args:
        name: a name of `list_models()`.
        info: facts about the data.
        config: options of the model.
        where: see `find_class`.
        budget: memory of its tensors; default: what one file may ask for.
    """
    cls = find_class(name, where)
    if info.spatial_dims == 3 and not cls.takes_volumes:
        able = ", ".join(sorted(key for key in MODELS if MODELS[key].takes_volumes))
        raise UserError(f"model {cls.name!r}{where} takes images, not volumes; models for volumes: {able}")
    parsed = cls.config_type.parse(config, where=f"model {cls.name!r}")
    try:
        with budget or TensorBudget():
            return cls(info, parsed)
    except UserError as error:
        raise UserError(f"model {cls.name!r}{where}: {error}") from error
    except (ArithmeticError, AssertionError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        detail = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"model {cls.name!r}{where} cannot be built with these options: {detail}") from error
