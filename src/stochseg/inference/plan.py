"""How to predict: the options, and the model as they want it."""

from __future__ import annotations

import hashlib

import numpy as np
from pydantic import Field

from stochseg.errors import UserError
from stochseg.models import StochasticSegmenter
from stochseg.models.sampling import SamplingOptions

TILE = 512
"""Images of more pixels a side are cut into windows, if the model can be tiled."""
WHOLE = 2048 * 2048
"""Pixels of the largest image that a model sees at once, if it cannot be tiled."""


class Options(SamplingOptions):
    """How to predict; None stands for the default of the model or of the input."""

    engine: str = Field("eager", description="inference backend")
    tile: int | None = Field(
        None, ge=0, description=f"windows of so many pixels a side; None: {TILE} where the model can be tiled; 0: never"
    )
    overlap: int = Field(96, ge=8, description="pixels that neighboring windows share")
    axis: int | None = Field(None, ge=0, le=2, description="axis along which NIfTI volumes are cut into slices")
    overview: bool = Field(False, description="also write overview.png, a picture of all samples")


class Plan:
    """The model as the options want it: with its engine, and in windows for large images."""

    def __init__(self, model: StochasticSegmenter, options: Options, origin: str = ""):
        model.check_options(options)
        self.options, self.origin = options, origin
        self.digest = _digest(model)
        if options.engine != "eager":
            from stochseg.inference.engines import with_engine

            model = with_engine(model, options.engine)
        self.model, self.tiled, self.why_whole = model, None, ""
        if options.tile == 0:
            return
        try:
            self.tiled = model.tiled(options.tile or TILE, options.overlap)
        except UserError as error:
            if options.tile is not None:
                raise
            self.why_whole = str(error)

    def large(self, height: int, width: int) -> bool:
        return self.options.tile != 0 and max(height, width) > (self.options.tile or TILE)

    def model_for(self, height: int, width: int) -> StochasticSegmenter:
        if not self.large(height, width):
            return self.model
        if self.tiled is not None:
            return self.tiled
        if height * width > WHOLE:
            raise UserError(
                f"{height}×{width} pixels are too many: {self.why_whole}. Images up to {WHOLE:,} pixels, such as "
                f"2048×2048, are taken whole: make it smaller, or insist with --tile 0"
            )
        return self.model


def _digest(model: StochasticSegmenter) -> str:
    """A name for the model by its content."""
    about = (model.name, model.config.model_dump_json(), model.info.model_dump_json())
    digest = hashlib.sha256("".join(about).encode())
    for key, value in sorted(model.state_dict().items()):
        digest.update(key.encode() + np.ascontiguousarray(value.detach().cpu().numpy()).tobytes())
    return digest.hexdigest()
