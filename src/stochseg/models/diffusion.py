"""Diffusion models of any kind: their common options, and the defaults of sampling."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stochseg.core import GRIDS, Grid, Profile, Schedule, make_grid
from stochseg.limits import MAX_EVALUATIONS
from stochseg.models.base import StochasticSegmenter
from stochseg.models.config import SegmenterConfig
from stochseg.models.sampling import SamplingOptions


class DiffusionConfig(SegmenterConfig):
    """The noise schedule, the draws of training, and the defaults of sampling."""

    schedule: Literal["cosine", "linear", "cosine-released"] = Field(
        "cosine", description="noise schedule; cosine-released is for checkpoints of the CCDM authors' released code"
    )
    num_timesteps: int = Field(250, ge=1, le=MAX_EVALUATIONS, description="T")
    draws: int = Field(1, ge=1, description="(rater, t) pairs per training image, all served by one encoding")
    sampler: str = Field("ancestral", description="sampling algorithm")
    grid: str = Field("even", description="time steps at which the network is evaluated")
    evaluations: int | None = Field(None, ge=1, description="network evaluations per sample; None is all T")
    noise: str = Field("independent", description="independent, or latin: samples of an image are stratified")
    renamed_keys: ClassVar[dict[str, str]] = {"num_steps": "num_timesteps", "steps": "evaluations"}

    @property
    def raters_per_image(self) -> int | None:
        """Raters of an image that one training step draws; None: it takes all of them."""
        return self.draws


class Diffusion(StochasticSegmenter):
    """Base class of models that walk down a time grid: a subclass adds its samplers to `sampling_choices`."""

    config_type: ClassVar[type[DiffusionConfig]] = DiffusionConfig
    sampling_choices: ClassVar = {"evaluations": (), "grid": GRIDS}
    config: DiffusionConfig

    def default_sampling(self) -> SamplingOptions:
        chosen = self.config.model_dump(include={"sampler", "grid", "noise"})
        return SamplingOptions(evaluations=self.config.evaluations or self.config.num_timesteps, **chosen)

    @property
    def max_evaluations(self) -> int:
        return self.config.num_timesteps

    def time_grid(self, schedule: Schedule, options: SamplingOptions, profile: Profile = ()) -> Grid:
        """The time steps at which to evaluate the network, for options without None."""
        assert options.grid is not None
        return make_grid(options.grid, schedule, options.evaluations, profile)
