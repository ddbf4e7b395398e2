"""Refusals are quick."""

import time

import pytest


@pytest.fixture(autouse=True)
def fast():
    """Every refusal is quick."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < 60
