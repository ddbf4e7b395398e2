"""Saved models: half-precision weights and file permissions."""

import os

import pytest
import torch

from stochseg.errors import UserError
from stochseg.models import load, save
from stochseg.models.io import WEIGHTS
from tests.support.models import fresh


def test_half_precision_halves_the_file_and_keeps_the_weights(tmp_path):
    model = fresh("ccdm-fast")
    full, half = (save(model, tmp_path / kind, half=kind == "half") for kind in ("full", "half"))
    assert (half / WEIGHTS).stat().st_size < 0.6 * (full / WEIGHTS).stat().st_size
    a, b = (load(folder).state_dict() for folder in (full, half))
    for key, value in a.items():
        torch.testing.assert_close(b[key], value, rtol=1e-3, atol=1e-6)
        assert b[key].dtype == value.dtype


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
@pytest.mark.parametrize(("mask", "file", "folder"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)])
def test_permissions_follow_the_umask(tmp_path, mask, file, folder):
    before = os.umask(mask)
    try:
        saved = save(fresh("ccdm-fast"), tmp_path / "model")
    finally:
        os.umask(before)
    assert saved.stat().st_mode & 0o777 == folder
    assert {path.stat().st_mode & 0o777 for path in saved.iterdir()} == {file}


@pytest.mark.parametrize(("path", "device"), [(3, "cpu"), (None, "cpu"), ("lidc", "gpu"), ("lidc", 7.5)])
def test_wrong_types_of_load_are_explained(path, device):
    with pytest.raises(UserError, match="expected"):
        load(path, device=device)
