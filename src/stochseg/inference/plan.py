"""The model of a prediction, prepared as its options require."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from stochseg.errors import UserError
from stochseg.inference.engines import with_engine
from stochseg.inference.fingerprint import fingerprint
from stochseg.inference.options import DEFAULT_TILE, PredictOptions
from stochseg.models import StochasticSegmenter
from stochseg.models.sampling import SamplingOptions

MAX_WHOLE = 2048 * 2048
"""Pixels of the largest image that is not tiled."""


class Plan:
    """A model with its engine, and its tiled version for large images.

    Args:
        model: The model; it is not changed.
        options: How to predict.
        origin: The path or name of the model, for the record.

    Raises:
        UserError: The model cannot sample or be tiled as the options say.
    """

    def __init__(self, model: StochasticSegmenter, options: PredictOptions, origin: str = ""):
        model.check_options(options)
        self.options, self.origin = options, origin
        self.model = model if options.engine == "eager" else with_engine(model, options.engine)
        self.tiled: StochasticSegmenter | None = None
        self.why_whole = ""
        if options.tile == 0:
            return
        try:
            self.tiled = self.model.tiled(options.tile or DEFAULT_TILE, options.overlap)
        except UserError as error:
            if options.tile is not None:
                raise
            self.why_whole = str(error)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the model."""
        return fingerprint(self.model)

    @property
    def sampling(self) -> dict[str, Any]:
        """Arguments of `model.sample`."""
        return self.options.model_dump(include=set(SamplingOptions.model_fields))

    def is_large(self, height: int, width: int) -> bool:
        """Whether images of this size are tiled, if the model can be."""
        return self.options.tile != 0 and max(height, width) > (self.options.tile or DEFAULT_TILE)

    def model_for(self, height: int, width: int) -> StochasticSegmenter:
        """Return the model, tiled for large images; raise a `UserError` for images too large for it."""
        if not self.is_large(height, width):
            return self.model
        if self.tiled is not None:
            return self.tiled
        if height * width > MAX_WHOLE:
            raise UserError(
                f"{height}×{width} pixels are too many: {self.why_whole}. At most {MAX_WHOLE:,} pixels, such as "
                "2048×2048, are taken whole: shrink or crop the image, or pass --tile 0 to take it whole anyway"
            )
        return self.model
