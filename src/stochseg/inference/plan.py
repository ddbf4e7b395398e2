"""Options of `predict`, the model prepared as they require, and the fingerprint by which a result knows the model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

import numpy as np
from pydantic import Field
from pydantic_core import to_json

from stochseg.errors import UserError
from stochseg.inference.calibrated import usable_calibration
from stochseg.inference.engines import with_engine
from stochseg.limits import MAX_SIDE
from stochseg.models import StochasticSegmenter
from stochseg.models.io import values_before
from stochseg.models.raters import rater_number
from stochseg.models.sampling import SamplingOptions
from stochseg.networks.tiles import TILE_SLICES, Sizes

DEFAULT_TILE = 512
"""Images with more pixels per side are tiled, if the model can be."""
VOLUME_TILE = 320
"""Pixels per side of the windows of volumes: two of them cover the 512 pixels of a CT."""
WHOLE_VOLUME = VOLUME_TILE**2 * TILE_SLICES
"""Voxels of a window: smaller volumes are taken whole."""
MAX_WHOLE = 2048 * 2048
"""Pixels of the largest image or volume that is not tiled."""


class PredictOptions(SamplingOptions):
    """How to predict. None stands for the default of the model or of the input.

    >>> PredictOptions(n=4, tile=256).evaluations is None
    True
    """

    engine: str = Field("eager", description="inference backend, one of stochseg.inference.ENGINES")
    tile: int | None = Field(
        None,
        ge=0,
        le=MAX_SIDE,
        description=f"tile images with more pixels per side; None: {DEFAULT_TILE} ({VOLUME_TILE} for volumes) if the "
        "model can be tiled; 0: never",
    )
    overlap: int = Field(96, ge=8, le=MAX_SIDE, description="pixels by which neighboring tiles overlap")
    tile_slices: int = Field(
        TILE_SLICES, ge=4, le=MAX_SIDE, description="slices per tile of a volume; a quarter of them overlap"
    )
    slices: Literal["shared", "independent"] | None = Field(
        None, description="noise of the slices of a volume, for models of images; None: shared"
    )
    axis: Literal[0, 1, 2, "axial", "coronal", "sagittal"] | None = Field(
        None, description="slices of NIfTI volumes: an array axis or an anatomical plane; None: see docs"
    )
    allow_unusual_input: bool = Field(False, description="sample inputs unlike the training images, with a notice")
    overview: bool = Field(False, description="also write overview.png, a picture of all samples")
    also: tuple[Literal["dicom-maps", "geojson", "calibrated-mean"], ...] = Field(
        (), description="further outputs: see docs"
    )


class Plan:
    """A model with its engine, and its tiled version for large images.

    Args:
        model: The model; it is not changed.
        options: How to predict.
        origin: The path or name of the model, for the record.

    Raises:
        UserError: The model cannot sample or be tiled as the options say.
    """

    def __init__(self, model: StochasticSegmenter, options: PredictOptions, origin: str):
        model.check_options(options)
        if options.rater is not None:  # by name, also if it was given by number
            place = rater_number(options.rater, model.rater_names, model.name)
            options = options.model_copy(update={"rater": model.rater_names[place]})
        self.options, self.origin = options, origin
        self.model = model if options.engine == "eager" else with_engine(model, options.engine)
        self.sampling = options.model_dump(include=set(SamplingOptions.model_fields))  # for model.sample
        self.tiled: StochasticSegmenter | None = None
        self.why_whole = ""
        self.calibration, self.uncalibrated = usable_calibration(model, options)
        if "calibrated-mean" in options.also and (self.calibration is None or self.calibration.scaling is None):
            why = self.uncalibrated or "the model has none: fit it with `stochseg calibrate`"
            raise UserError(f"calibrated-mean: expected a model with scaled probabilities; {why}")
        if options.slices is not None and self.takes_volumes:
            raise UserError(f"model {model.name!r} takes volumes: it has no choice of slices, got {options.slices!r}")
        if options.tile == 0:
            return
        try:
            self.tiled = self.model.tiled(*self._tiling())
        except UserError as error:
            if options.tile is not None:
                raise
            self.why_whole = str(error)

    @property
    def calibration_record(self) -> dict[str, Any] | None:
        """The calibration that is used, as JSON values."""
        return None if self.calibration is None else self.calibration.model_dump(mode="json")

    @property
    def takes_volumes(self) -> bool:
        """Whether the model takes volumes, not their slices."""
        return self.model.info.spatial_dims == 3

    def _tiling(self) -> tuple[Sizes, Sizes]:
        """Size and overlap of the tiles."""
        tile, overlap, slices = self.options.tile, self.options.overlap, self.options.tile_slices
        if not self.takes_volumes:
            return tile or DEFAULT_TILE, overlap
        tile = tile or VOLUME_TILE
        return (slices, tile, tile), (max(2, slices // 4), overlap, overlap)

    def is_large(self, *size: int) -> bool:
        """Whether images or volumes of this size are tiled, if the model can be."""
        if self.options.tile == 0:
            return False
        if self.takes_volumes:
            chosen = self.options.tile is not None or self.options.tile_slices != TILE_SLICES
            tile = self.options.tile or VOLUME_TILE
            exceeds = size[0] > self.options.tile_slices or max(size[1:]) > tile
            return exceeds and (chosen or math.prod(size) > WHOLE_VOLUME)
        seen = self.model.info.fit or size  # by the network
        return max(seen) > (self.options.tile or DEFAULT_TILE)

    def model_for(self, *size: int) -> StochasticSegmenter:
        """Return the model, tiled for large images; raise a `UserError` for images too large for it."""
        if not self.is_large(*size):
            return self.model
        seen = [part.stop - part.start for part in self.model.window(*size)] if self.takes_volumes else size
        if self.tiled is None and math.prod(seen) > MAX_WHOLE:
            shown = "×".join(map(str, size))
            raise UserError(
                f"{shown} pixels are too many: {self.why_whole}. At most {MAX_WHOLE:,} pixels, such as "
                "2048×2048, are taken whole: shrink or crop the image, or pass --tile 0 to take it whole anyway"
            )
        return self.tiled or self.model

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the name, the config, the facts about the data and the weights of the model."""
        return hash_model(self.model, self.model.config.model_dump(mode="json"), self._info())

    def is_model_of(self, record: Mapping[str, Any]) -> bool:
        """Whether a result with this record of its model was drawn by this model.

        Keys of the config or the info may have been renamed since; the fingerprint is that of the old names.
        """
        sha256, config = record.get("sha256"), record.get("config")
        if sha256 == self.fingerprint:
            return True
        try:
            if not isinstance(config, Mapping):
                return False
            complete = {**values_before(self.model.name, config), **config}
            if self.model.config_type.parse(complete) != self.model.config:
                return False
        except UserError:
            return False
        info = self._info()
        before = {new: old for old, new in self.model.info.renamed_keys.items()}
        renamed = {before.get(key, key): value for key, value in info.items()}
        return sha256 in (hash_model(self.model, config, info), hash_model(self.model, config, renamed))

    def _info(self) -> dict[str, Any]:
        """Facts about the data on which samples depend, as models without `fit` had them before there was one.

        Intensities and the smallest size only decide which images are refused, and the orientation how training images
        are turned; results of lesions state the preparation themselves.
        """
        unused = {"codes", "intensities", "min_size", "orientation", "preparation"}
        if self.model.info.fit is None:
            unused.add("fit")
        return self.model.info.model_dump(mode="json", exclude=unused)


def hash_model(model: StochasticSegmenter, config: Any, info: Any) -> str:
    """Hash a model by its name, its weights, and its config and the facts about its data as JSON values."""
    digest = hashlib.sha256(model.name.encode() + to_json(config) + to_json(info))
    for key, value in sorted(model.state_dict().items()):
        digest.update(key.encode() + np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    return digest.hexdigest()
