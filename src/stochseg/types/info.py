"""Facts about a data set that a model needs."""

from __future__ import annotations

import colorsys
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat, SerializerFunctionWrapHandler, model_serializer, model_validator
from torch import Tensor

from stochseg.config import Config
from stochseg.errors import UserError
from stochseg.limits import MAX_CLASSES
from stochseg.types.preparation import Preparation

VOID = "void"
"""Name of a label that some models give to pixels of no class; it is never right."""
RATIO = re.compile("(?P<kind>vertical|horizontal) (?P<part>[^/<>=]+)/(?P<whole>[^/<>=]+) ratio")
"""Measures of two classes: the height or width of PART, divided by that of PART and WHOLE together."""

# Colors that can be told apart in print and by color-blind readers; label 0 is the background.
DEFAULT_PALETTE = ("#000000", "#e8853c", "#3c8fe8", "#4caf6e", "#c65bcf", "#e3c84b", "#5bcfc4", "#b0584a")


def distinct_colors(first: Sequence[str], count: int) -> tuple[str, ...]:
    """`count` colors "#rrggbb": the first ones as given, then hues a golden angle apart.

    >>> distinct_colors(["#000000"], 3)
    ('#000000', '#e64949', '#4977e6')
    """
    hues = ((i * 0.618034) % 1 for i in range(max(0, count - len(first))))
    more = (colorsys.hsv_to_rgb(hue, 0.68, 0.9) for hue in hues)
    return (*first[:count], *("#" + "".join(f"{round(255 * part):02x}" for part in color) for color in more))


class Normalization(Config):
    """Convert raw intensities to network input: (raw - mean) / std per channel. One value serves all channels.

    >>> Normalization(mean=(100.0,), std=(50.0,))(torch.tensor([[[100, 200]]]))
    tensor([[[0., 2.]]])
    """

    mean: tuple[float, ...] = (127.5,)
    std: tuple[PositiveFloat, ...] = (127.5,)

    def __call__(self, raw: Tensor) -> Tensor:
        """Normalize "c *space" of any dtype. Returns float32."""
        if len(self.mean) == len(self.std) == 1:  # without tensors, because this runs for every example
            return (raw.float() - self.mean[0]) / self.std[0]
        return (raw.float() - _per_channel(self.mean, raw)) / _per_channel(self.std, raw)

    def inverse(self, image: Tensor) -> Tensor:
        """Convert network input "c *space" back to raw intensities."""
        return image * _per_channel(self.std, image) + _per_channel(self.mean, image)


def _per_channel(values: tuple[float, ...], like: Tensor) -> Tensor:
    if len(values) > 1 and like.shape[0] != len(values):
        raise UserError(
            f'normalization: expected an image "c *space" of {len(values)} channels, got shape {tuple(like.shape)}; '
            "normalize the images of a batch one by one"
        )
    return torch.tensor(values, device=like.device).view(-1, *[1] * (like.ndim - 1))


class Intensities(Config):
    """Raw intensities of some training images, one value per channel or one for all: what a model can be expected to
    segment.

    >>> Intensities(lowest=(0.0,), highest=(255.0,), darkest=(20.0,), span=(120.0,)).highest
    (255.0,)
    """

    lowest: tuple[float, ...] = Field(min_length=1, description="the lowest value of all images")
    highest: tuple[float, ...] = Field(min_length=1, description="the highest value of all images")
    darkest: tuple[float, ...] = Field(min_length=1, description="the highest of the images' lowest values")
    span: tuple[float, ...] = Field(
        min_length=1, description="the smallest difference of highest and lowest value of an image that is not constant"
    )
    medians: tuple[float, float] | None = Field(
        None, description="the lowest and the highest median of an image, as a fraction of its range"
    )


class DatasetInfo(Config):
    """Facts about a data set that a model needs; they are saved with the weights.

    >>> DatasetInfo(num_classes=2, image_channels=1, class_names=("background", "nodule")).names
    ('background', 'nodule')
    """

    name: str = "unnamed"
    num_classes: int = Field(ge=2, le=MAX_CLASSES, description="labels, the background included")
    image_channels: int = Field(ge=1, le=MAX_CLASSES)
    spatial_dims: Literal[2, 3] = Field(2, description="2: images of height and width; 3: volumes, with slices first")
    class_names: tuple[str, ...] = Field((), description="one per class, or none")
    palette: tuple[str, ...] = Field((), description='one "#rrggbb" per class, or none')
    codes: tuple[str, ...] = Field(
        (), description='one per class, or none: "SCHEME:VALUE:MEANING" of DICOM, such as SCT:27925004:Nodule, or ""'
    )
    ignore: int | None = Field(None, ge=0, le=65535, description="label of void pixels: neither learned nor scored")
    normalization: Normalization = Normalization()
    size: tuple[int, int] | None = Field(None, description="(height, width) that all images were resized to, if any")
    fit: tuple[int, int] | None = Field(
        None, description="(height, width) into which a model resizes and pads every image; samples are resized back"
    )
    intensities: Intensities | None = Field(None, description="of the training images, measured when training starts")
    min_size: tuple[int, int] | None = Field(
        None, description="(height, width): the smallest of the training images, measured when training starts"
    )
    orientation: Literal["free", "upright"] | None = Field(
        None, description="upright: photographs, in which up is up; free: quarter turns give images as plausible"
    )
    preparation: Preparation | None = Field(None, description="how a part of a scan becomes an image of the data")
    measures: tuple[str, ...] = Field(
        (), description='ratios of two classes to report, such as "vertical cup/disc ratio", for images'
    )
    rater_names: tuple[str, ...] = Field((), description="the persons who drew the label maps, if they are known")
    renamed_keys: ClassVar[dict[str, str]] = {"normalisation": "normalization"}

    @model_validator(mode="after")
    def _lengths(self) -> DatasetInfo:
        for key in ("class_names", "palette", "codes"):
            got = len(getattr(self, key))
            if got not in (0, self.num_classes):
                raise ValueError(f"{key} has {got} entries, expected {self.num_classes}, one per class")
        wrong = [code for code in self.codes if code and not re.fullmatch(r"[\w.-]{1,16}:[^:]{1,16}:.{1,64}", code)]
        if wrong:
            raise ValueError(f"codes: expected SCHEME:VALUE:MEANING such as SCT:27925004:Nodule, got {wrong[0]!r}")
        for key in ("mean", "std"):
            got = len(getattr(self.normalization, key))
            if got not in (1, self.image_channels):
                raise ValueError(f"normalization.{key} has {got} entries, expected {self.image_channels} or 1")
        for key, values in () if self.intensities is None else self.intensities:
            if key != "medians" and len(values) not in (1, self.image_channels):
                raise ValueError(f"intensities.{key} has {len(values)} entries, expected {self.image_channels} or 1")
        for name in self.measures:
            ratio = RATIO.fullmatch(name)
            if (
                ratio is None
                or not {ratio["part"], ratio["whole"]} <= set(self.names)
                or ratio["part"] == ratio["whole"]
            ):
                raise ValueError(
                    f'measures: expected "vertical PART/WHOLE ratio" or "horizontal PART/WHOLE ratio" of two of the '
                    f"classes {', '.join(self.names)}, got {name!r}"
                )
        if self.ignore is not None and 0 <= self.ignore < self.num_classes:
            raise ValueError(f"ignore {self.ignore} is one of the {self.num_classes} classes")
        return self

    @model_serializer(mode="wrap")
    def _without_later_keys(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out keys that came later where they say nothing: checksums over the facts of data stay as they were."""
        values: dict[str, Any] = dump(self)
        later = {"intensities": None, "min_size": None, "spatial_dims": 2, "preparation": None, "codes": ()}
        for key, usual in later.items():
            if values.get(key, ...) == usual:
                del values[key]
        for key in ("rater_names", "measures"):
            if not values.get(key, ...):
                del values[key]
        return values

    @property
    def names(self) -> tuple[str, ...]:
        """One name per class, "class 0", "class 1" ... if `class_names` is empty."""
        return self.class_names or tuple(f"class {i}" for i in range(self.num_classes))

    @property
    def colors(self) -> tuple[str, ...]:
        """One color per class, "#rrggbb"."""
        if self.palette:
            return self.palette
        return distinct_colors(DEFAULT_PALETTE, self.num_classes)
