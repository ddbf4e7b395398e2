"""Fixtures of the LIDC importers."""

from pathlib import Path

import pytest

from tests.support.lidc import write_series


@pytest.fixture
def source(tmp_path) -> Path:
    """A folder with one DICOM series and no annotations."""
    root = tmp_path / "LIDC-IDRI"
    write_series(root)
    return root
