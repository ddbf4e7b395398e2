"""Options of `gather`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from stochseg.config import Config
from stochseg.limits import MAX_SAMPLES, MAX_SEED


class GatherOptions(Config):
    """How predictions become samples.

    >>> GatherOptions(classes=("background", "liver")).layout
    'members'
    """

    layout: Literal["members", "cases"] = Field(
        "members", description="members: a folder per member with a file per case; cases: a folder per case"
    )
    kind: Literal["auto", "labels", "probabilities"] = Field(
        "auto", description="what files contain; auto: floats that are no whole numbers are probabilities"
    )
    classes: tuple[str, ...] = Field((), description="names of the labels 0, 1, …; default: dataset.json of nnU-Net")
    n: int = Field(16, ge=1, le=MAX_SAMPLES, description="samples per soft map, of a case with one")
    coherence: float | None = Field(
        None, ge=0, description="mm (pixels of a picture) over which samples of a soft map vary; None: all of it"
    )
    seed: int = Field(0, ge=0, le=MAX_SEED, description="of the samples of soft maps")
    axis: Literal[0, 1, 2, "axial", "coronal", "sagittal"] | None = Field(
        None, description="slices of volumes: an array axis or an anatomical plane"
    )
    overview: bool = Field(False, description="also write overview.png, a picture of all samples")
    also: tuple[Literal["dicom-maps", "geojson"], ...] = Field((), description="further outputs, as of `predict`")
