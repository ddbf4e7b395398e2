"""The examples in docstrings run as tests: each in an empty folder, all with the same random state."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _fresh_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
