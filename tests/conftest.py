"""Fixtures that tests of several folders use: tiny configs, a folder data set, a seed."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from stochseg.training import TrainConfig, override
from stochseg.workers import Pool, open_pool
from tests.support.cli import run, run_raw  # noqa: F401  (fixtures)


@pytest.fixture(autouse=True)
def _same_start():
    """Start every test with the same global random state, whatever ran before it."""
    torch.manual_seed(0)


TINY_RUN = {
    "data": {"name": "phantom", "options": {"size": 8}, "train": {"count": 10}, "val": {"count": 4}},
    "model": {
        "name": "ccdm",
        "options": {"base": 4, "multipliers": [1, 2], "blocks": 1, "num_timesteps": 8, "evaluations": 2},
    },
    "steps": 6,
    "batch_size": 4,
    "lr": 1e-2,
    "ema": 0.9,
    "validation": {"every": 1000, "images": 2, "num_samples": 2},
    "save_every": 1000,
    "log_every": 1,
}


@pytest.fixture(scope="session")
def tiny_run() -> Callable[..., TrainConfig]:
    """A training config of a second, with `key=value` changes."""
    return lambda *changes: TrainConfig.parse(override(TINY_RUN, changes))


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Two workers of a local Dask cluster; mark the module with the group "dask", so that they are started once."""
    pytest.importorskip("distributed")
    with open_pool(2, None, "cpu") as found:
        assert found is not None
        yield found


@pytest.fixture
def interruptible():
    """Let SIGINT interrupt this process and those it starts, even if the suite runs in the background.

    A shell starts background jobs with SIGINT ignored, and child processes inherit that.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def folder_root(tmp_path) -> Path:
    """A folder data set of 8×8 gray images: void 255, two raters of whom the second skipped image "b"."""
    root = tmp_path / "slices"
    rng = np.random.default_rng(0)
    for folder in ("images", "labels/anna", "labels/ben"):
        (root / folder).mkdir(parents=True)
    for name in "abcd":
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(root / f"images/{name}.png")
        for rater in ("anna", "ben"):
            labels = rng.integers(0, 2, (8, 8), dtype=np.uint8)
            labels[0, :3] = 255
            if (rater, name) != ("ben", "b"):
                Image.fromarray(labels).save(root / f"labels/{rater}/{name}.png")
    info = {"name": "slices", "num_classes": 2, "image_channels": 1, "ignore": 255}
    (root / "dataset.yaml").write_text(yaml.safe_dump(info))
    (root / "splits.json").write_text(json.dumps({"train": ["a", "b"], "val": ["c"], "test": ["d"]}))
    return root
