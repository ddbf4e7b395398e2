"""The options that every model has."""

from __future__ import annotations

from pydantic import Field, model_validator

from stochseg.config import Config

MAX_NUMBER = 10**6


class SegmenterConfig(Config):
    """Options that every model has."""

    chunk: int = Field(64, ge=1, description="samples of 128×128 pixels drawn at once, scaled for other sizes")

    @property
    def raters_per_image(self) -> int | None:
        """Raters of an image that one training step draws; None: it takes all of them."""
        return 1

    @model_validator(mode="after")
    def _check_numbers(self) -> SegmenterConfig:
        """Refuse channels, levels and layers that no network has, before lists of that length are made."""
        for key, value in self.model_dump().items():
            if any(abs(number) > MAX_NUMBER for number in _numbers(value)):
                raise ValueError(f"{key}: expected numbers up to {MAX_NUMBER:,}, got {value}")
        return self


def _numbers(value: object) -> list[float]:
    """All numbers in nested lists and dictionaries."""
    if isinstance(value, int | float):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [number for part in parts for number in _numbers(part)]
