"""`import stochseg.metrics` stays light: slow packages are imported on first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

import stochseg.metrics

SLOW = ("torchmetrics", "torchvision", "matplotlib", "scipy.optimize", "scipy.sparse", "pandas")


def loaded(code: str) -> set[str]:
    """The slow packages that a fresh interpreter has imported after this code."""
    report = f"import sys; print(*(name for name in {SLOW} if name in sys.modules))"
    run = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_the_functions_need_no_slow_package():
    assert loaded("from stochseg.metrics import brier, ged; ged([[[0, 1]]], [[[1, 1]]], 2)") == set()


def test_the_classes_import_torchmetrics_on_first_use():
    assert "torchmetrics" in loaded("from stochseg.metrics import METRICS, GeneralizedEnergyDistance")


def test_every_public_name_exists():
    assert [name for name in stochseg.metrics.__all__ if not hasattr(stochseg.metrics, name)] == []
    with pytest.raises(AttributeError, match="no_metric"):
        _ = stochseg.metrics.no_metric
