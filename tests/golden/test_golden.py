"""Results equal the recorded ones, bit for bit on the platform of the recording."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from stochseg import load
from stochseg.data import open_all
from stochseg.models.io import values_before
from stochseg.models.registry import build
from stochseg.training import read_config, train
from stochseg.types import DatasetInfo
from tests.golden.cases import sample_cases
from tests.golden.record import FILE, platform
from tests.support.models import images

OLD = FILE.with_name("old")
CASES = sample_cases()


@pytest.fixture(autouse=True)
def _one_thread():
    """As in the recording: the order of sums depends on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(FILE) as file:
        return dict(file)


def compare(got: np.ndarray, expected: np.ndarray, exact: bool) -> None:
    """Exactly on the recording platform; elsewhere up to rounding, which may flip a label between two equals."""
    assert got.shape == expected.shape
    if exact:
        np.testing.assert_array_equal(got, expected)
    elif expected.dtype == np.uint8:
        assert (got != expected).mean() < 5e-3
    else:
        np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("case", sorted(CASES))
def test_same_values_as_recorded(case, golden):
    if case.startswith("smp:") and find_spec("segmentation_models_pytorch") is None:
        pytest.skip("segmentation_models_pytorch is not installed")
    recorded = {key.removeprefix(f"{case}/"): value for key, value in golden.items() if key.startswith(f"{case}/")}
    got = CASES[case]()
    assert got.keys() == recorded.keys()
    for key, value in got.items():
        compare(value, recorded[key], str(golden["platform"]) == platform())


def test_nothing_recorded_is_left_out(golden):
    known = tuple(f"{case}/" for case in CASES)
    assert [key for key in golden if key != "platform" and not key.startswith(known)] == []


MODELS = json.loads((OLD / "models.json").read_text())


@pytest.mark.parametrize("name", sorted(MODELS))
def test_old_descriptions_build_models_with_the_same_tensors(name):
    """The config.json of a model that an older version saved is read, and its tensors still fit."""
    if name.startswith("smp:") and find_spec("segmentation_models_pytorch") is None:
        pytest.skip("segmentation_models_pytorch is not installed")
    old = MODELS[name]["config"]
    options = {**values_before(old["model"], old["config"]), **old["config"]}  # as `load` does
    model = build(old["model"], DatasetInfo.parse(old["info"]), options)
    assert {key: list(value.shape) for key, value in model.state_dict().items()} == MODELS[name]["tensors"]


def test_an_old_run_loads_and_resumes_to_the_same_weights(tmp_path, golden):
    recorded = json.loads((OLD / "resumed.json").read_text())
    run = shutil.copytree(OLD / "run", tmp_path / "run")
    best = load(run).sample(images(1, 1, 8, 8), 4, seed=1)
    assert best.labels.flatten().tolist() == recorded["best"]
    config = read_config(run / "train.yaml").model_copy(update={"steps": 8})
    train(config, run, device="cpu", resume=True)
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    for key, name in (("train/loss", "loss"), ("val/ged", "ged")):
        compare(
            np.array([record[key] for record in log if key in record]),
            np.array(recorded[name]),
            str(golden["platform"]) == platform(),
        )
    last = load(run / "last").sample(images(1, 1, 8, 8), 4, seed=1)
    assert last.labels.flatten().tolist() == recorded["last"]


def test_an_old_store_opens(tmp_path):
    pytest.importorskip("h5py")
    splits = open_all(OLD / "store.h5")
    assert {split: len(part) for split, part in splits.items()} == {"train": 4, "val": 1, "test": 1}
    example = splits["train"][0]
    assert example.image.shape == (1, 16, 16)
    assert example.raters.dtype == torch.int64
