"""Models of the tests of inference."""

import pytest

from stochseg.types import DatasetInfo
from tests.support.predictions import CLASSES, small_model


@pytest.fixture(scope="session")
def model():
    """A model of 8-bit images with two classes."""
    return small_model()


@pytest.fixture(scope="session")
def ct_model():
    """A model of CT slices in Hounsfield units with three classes."""
    info = DatasetInfo.parse({**CLASSES.model_dump(), "normalization": {"mean": (0.0,), "std": (500.0,)}})
    return small_model(classes=3, info=info)
