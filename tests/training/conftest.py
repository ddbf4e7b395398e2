"""Runs for the tests of training."""

import pytest
from matplotlib.figure import Figure

from stochseg.training import loop, train


@pytest.fixture(autouse=True)
def _plain_pictures(request, monkeypatch):
    """Pictures are the slowest part of a tiny run; only the test of pictures draws them."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr(loop, "qualitative", lambda rows, info: Figure(figsize=(1, 1)))


@pytest.fixture
def pictures():
    """Draw real pictures in this test."""


@pytest.fixture(scope="session")
def straight(tiny_run, tmp_path_factory):
    """An uninterrupted run of six steps."""
    out = tmp_path_factory.mktemp("straight")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "qualitative", lambda rows, info: Figure(figsize=(1, 1)))
        train(tiny_run("validation.every=2"), out / "run", device="cpu")
    return out / "run"
