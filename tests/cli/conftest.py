"""Fixtures of the tests of commands: a tiny config, a run trained with it, an image."""

import signal
import sys

import pytest
from PIL import Image

from stochseg import cli
from stochseg.data import Phantoms
from stochseg.training.config import write_config


@pytest.fixture(autouse=True)
def _restore_signal_handler():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def config(tiny_run, tmp_path_factory):
    """Config file of a training of two steps."""
    file = tmp_path_factory.mktemp("config") / "tiny.yaml"
    write_config(tiny_run("data.options.size=16", "steps=2"), file)
    return file


@pytest.fixture(scope="session")
def trained(config, tmp_path_factory):
    """Run folder written by `stochseg train`."""
    out = tmp_path_factory.mktemp("trained") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["stochseg", "train", str(config), "--out", str(out), "--device", "cpu"])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
    assert not exit_.value.code
    return out


@pytest.fixture
def slice_png(tmp_path):
    """A synthetic image as a file."""
    Image.fromarray(Phantoms("test", size=16).raw(0)).save(tmp_path / "slice.png")
    return tmp_path / "slice.png"
