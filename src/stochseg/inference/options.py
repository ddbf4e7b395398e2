"""Options of `predict`."""

from __future__ import annotations

from pydantic import Field

from stochseg.models.sampling import SamplingOptions

DEFAULT_TILE = 512
"""Images with more pixels per side are tiled, if the model can be."""


class PredictOptions(SamplingOptions):
    """How to predict. None stands for the default of the model or of the input.

    >>> PredictOptions(n=4, tile=256).evaluations is None
    True
    """

    engine: str = Field("eager", description="inference backend, one of stochseg.inference.ENGINES")
    tile: int | None = Field(
        None,
        ge=0,
        description=f"tile images with more pixels per side; None: {DEFAULT_TILE} if the model can be tiled; 0: never",
    )
    overlap: int = Field(96, ge=8, description="pixels by which neighboring tiles overlap")
    axis: int | None = Field(None, ge=0, le=2, description="array axis along which NIfTI volumes are sliced")
    overview: bool = Field(False, description="also write overview.png, a picture of all samples")
