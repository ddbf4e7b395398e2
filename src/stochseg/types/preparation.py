"""How a model wants the part of a scan that it labels."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, model_validator

from stochseg.config import Config
from stochseg.limits import MAX_SIDE


class Preparation(Config):
    """The crop, resampling and scaling of the training images, so that `predict --at` can do the same to a scan.

    A part of the scan around a point is resampled to `spacing`, cut to `crop`, and its intensities are scaled; results
    are pasted back.

    >>> Preparation(crop=(128, 128), scale="min-max", units="HU").spacing is None
    True
    """

    crop: tuple[int, int] = Field(description="height and width around the point, in pixels of `spacing`")
    slices: int | None = Field(
        None,
        ge=1,
        description="slices around the point at first, for models of volumes; more are added if the object continues",
    )
    spacing: tuple[PositiveFloat, ...] | None = Field(
        None,
        description="millimeters to resample to: (row, column), or (slice, row, column) for models of volumes; None: "
        "the scan's own",
    )
    scale: Literal["none", "min-max", "window"] = Field(
        "none",
        description="min-max: lowest and highest value of each slice of the crop become 0 and 255; window: the ends of "
        "`window` do, and values outside are clipped; both round to whole numbers",
    )
    window: tuple[float, float] | None = Field(None, description="lowest and highest intensity of the scale `window`")
    units: str = Field("", description="of the scan's intensities, for messages, e.g. HU")

    @model_validator(mode="after")
    def _check(self) -> Preparation:
        if not all(1 <= side <= MAX_SIDE for side in self.crop):
            raise ValueError(f"crop: expected 1 to {MAX_SIDE} pixels per side, got {self.crop}")
        if self.spacing is not None and len(self.spacing) not in (2, 3):
            raise ValueError(f"spacing: expected (row, column) or (slice, row, column), got {self.spacing}")
        if (self.scale == "window") != (self.window is not None):
            raise ValueError("window: expected (lowest, highest) with scale=window, and only there")
        if self.window is not None and self.window[0] >= self.window[1]:
            raise ValueError(f"window: expected lowest < highest, got {self.window}")
        return self
