"""A short form of tests/torture/fuzz.py: every target, a few seeded inputs."""

import signal

import pytest

from tests.torture.fuzz import make_input, run_input
from tests.torture.targets import make_targets

INPUTS = 15


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    return make_targets(tmp_path_factory.mktemp("fuzz"))


NAMES = (
    *("png", "jpeg", "other-pictures", "tiff", "nii", "nii-volume", "nii.gz", "nii.gz-volume", "dcm", "dcm-volume"),
    *("folder/nii", "folder/nii.gz", "folder/nrrd", "folder/mha", "folder/mhd"),
    *("zip", "pickle", "dataset.yaml", "train.yaml", "settings", "xml", "points.csv"),
    *("store", "store-volumes", "lidc-hdf5"),
    *("ccdm/config.json", "ccdm/model.safetensors", "prob-unet/config.json", "prob-unet/model.safetensors"),
    *("last/checksums.sha256", "last/state/progress.json", "last/state/optimizer.safetensors"),
    *("last/state/model.safetensors", "log.jsonl", "samples.npz"),
    *("predictions/result.json", "predictions/samples.tif", "predictions/mean.tif", "command"),
    *("npy", "npz", "geojson", "geojson-folder", "rtstruct", "cityscapes/polygons.json"),
    *("nnunet/dataset.json", "nnunet/imagesTr/a_0000.nii.gz", "nnunet/labelsTr/b.nii.gz"),
    *("gather/dataset.json", "gather/a.nii.gz", "gather/a.npz", "gather/result.json"),
    *("upload/png", "upload/zip", "upload/nii", "upload/nii.gz", "upload/nrrd", "upload/mha", "upload/rater.png"),
    *("metrics.json", "metadata.json", "calibration.json", "workspace/request.json", "workspace/events.jsonl"),
)


def test_all_targets_are_listed(targets):
    assert set(NAMES) == set(targets)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_damaged_inputs_are_accepted_or_refused(targets, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # commands write there
    previous = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("more than 20 s"))
    signal.alarm(20)
    try:
        if name != "command":
            assert "accepted" in {run_input(targets[name], seed)[0] for seed in targets[name].seeds}
        for index in range(INPUTS if name != "command" else 10):
            outcome, detail = run_input(targets[name], make_input(targets[name], name, 0, index))
            assert outcome in ("accepted", "refused"), detail
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
